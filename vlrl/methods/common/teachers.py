"""Teachers: models that say how likely each token of a completion was, and which others were likelier.

    OwnTeacher      a frozen model in this process, or the policy itself
    ServedTeacher   a model behind an endpoint (`served_teacher.py`)
    Teachers        several of them, by task

Shapes: B rollouts, T completion tokens, N scored tokens, K likely tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vlrl.functional import top_and_rest
from vlrl.methods.common.served_teacher import ServedTeacher
from vlrl.methods.common.teacher_config import (
    START,
    NoHintError,
    TeacherConfig,
    TeacherScore,
    aligned_completion,
    by_prompt,
    over_spans,
)
from vlrl.methods.common.token_spans import Aligned, Aligner, UnalignedError
from vlrl.methods.core.aux_tensor import Hidden
from vlrl.plugins.contexts import StageContext
from vlrl.plugins.stages import AuxTensor
from vlrl.plugins.views import PolicyView
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import Rollout


@dataclass(frozen=True)
class TopTokens(AuxTensor):
    """The k most likely tokens of each place: ids, their log-probs, and that of all others, (N, 2 k + 1)."""

    name: ClassVar[str] = "top_tokens"
    k: int = 1
    in_forward: ClassVar[bool] = True
    no_grad: ClassVar[bool] = True

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        logits_NV = logits_NV.detach()
        ids_NK = logits_NV.topk(min(self.k, logits_NV.shape[-1]), dim=-1).indices
        return torch.cat([ids_NK.float(), top_and_rest(logits_NV, ids_NK)], dim=-1)


class OwnTeacher:
    """A frozen model in this process: loaded once, on the policy's device while it is used. Every rank holds
    a whole one."""

    def __init__(self, run: StageContext, config: TeacherConfig, where: str) -> None:
        self.run, self.config = run, config
        policy = run.policy
        self.other: PolicyView | None = None
        self.aligner: Aligner | None = None
        if config.is_policy:
            if config.model == START:
                policy.keep_reference()
            return
        other = policy.load_other(config.model, run.seed, config.policy or None)
        other.model.eval().requires_grad_(False)
        self.other = other
        if other.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
            self.aligner = Aligner(policy, other)
        self.sleep()

    @contextmanager
    def model(self) -> Iterator[PolicyView]:
        """The teacher as a policy, awake, without gradient."""
        policy = self.run.policy
        view: AbstractContextManager[PolicyView] = nullcontext(policy)
        if self.other is not None:
            nn.Module.to(self.other.model, policy.device)
            view = nullcontext(self.other)
        elif self.config.model == START:
            view = policy.reference()
        with torch.no_grad(), view as teacher:
            yield teacher

    def sleep(self) -> None:
        """Leave the device, if it is to."""
        if self.other is not None and self.config.sleep:
            nn.Module.to(self.other.model, "cpu")

    def read(self, rollout: Rollout) -> tuple[Rollout, Aligned | None]:
        """A rollout as the teacher reads it. Raises NoHintError and UnalignedError."""
        prompt = replace(self.config.shown(rollout.prompt), train=None)
        if self.aligner is None:
            return replace(rollout, prompt=prompt, routing=None, signals={}), None
        aligned = aligned_completion(self.aligner, rollout)
        temperature = rollout.temperature if isinstance(rollout.temperature, (int, float)) else 1.0
        return Rollout(prompt, aligned.ids, temperature=temperature), aligned

    def scores(self, rollouts: Sequence[Rollout], k: int) -> list[TeacherScore]:
        """What it says of each rollout, with its `k` most likely tokens (0: without)."""
        found: dict[int, TeacherScore] = {}
        readings: dict[int, tuple[Rollout, Aligned | None]] = {}
        for place, rollout in enumerate(rollouts):
            try:
                readings[place] = self.read(rollout)
            except (NoHintError, UnalignedError) as error:
                found[place] = TeacherScore(failure=str(error))
        place_of = {id(reading): place for place, (reading, _) in readings.items()}
        with self.model() as teacher:
            for micro in self.run.micro_batches(by_prompt([reading for reading, _ in readings.values()])):
                batch = self.run.batch(micro)
                out = teacher.forward(batch, [TopTokens(k)] if k else [])
                tops: Any = out["top_tokens"] if k else [None] * len(batch.rollouts)
                for reading, logp_T, top_TK in zip(batch.rollouts, out["logp"], tops):
                    place = place_of[id(reading)]
                    found[place] = self._score(rollouts[place], readings[place][1], logp_T, top_TK)
        return [found[place] for place in range(len(rollouts))]

    def _score(
        self, rollout: Rollout, aligned: Aligned | None, logp_T: Tensor, top_TK: Tensor | None
    ) -> TeacherScore:
        logp = logp_T.float().cpu().tolist()
        rows = [] if top_TK is None else top_TK.float().cpu().tolist()
        k = len(rows[0]) // 2 if rows else 0
        tops = [([int(token) for token in row[:k]], row[k:]) for row in rows]
        if aligned is None:
            kept = rollout.trained_mask
            return TeacherScore(
                [value if keep else None for value, keep in zip(logp, kept)],
                range(len(rollout)),
                [top if keep else None for top, keep in zip(tops, kept)],
            )
        assert self.aligner is not None
        return over_spans(len(rollout), aligned, logp, tops, self.aligner)

    @property
    def hidden_size(self) -> int:
        """H: the width of its hidden states."""
        policy = self.other if self.other is not None else self.run.policy
        return int(policy.model.get_output_embeddings().weight.shape[-1])

    def hidden(self, rollouts: Sequence[Rollout], length: int) -> tuple[Tensor, list[str]]:
        """(B, T, H) hidden states that predict the rollouts' tokens, zero for those that it cannot read, and
        why not ("": it can), per rollout. It stays awake."""
        why = [""] * len(rollouts)
        readings: dict[int, Rollout] = {}
        for place, rollout in enumerate(rollouts):
            try:
                readings[place] = self.read(rollout)[0]
            except NoHintError as error:
                why[place] = str(error)
        states = torch.zeros(len(rollouts), length, self.hidden_size, device=self.run.policy.device)
        place_of = {id(reading): place for place, reading in readings.items()}
        with self.model() as teacher:
            if readings:
                part = self.run.batch(by_prompt(list(readings.values())))
                out = teacher.forward(part, [Hidden()])["hidden"]
                for reading, row_TH in zip(part.rollouts, out):
                    states[place_of[id(reading)], : len(reading)] = row_TH[: len(reading)]
        return states, why

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """(N, V), without gradient."""
        with self.model() as teacher, teacher.autocast():
            return teacher.logits(hidden_NH.to(next(teacher.model.parameters()).dtype)).float()


Teacher = OwnTeacher | ServedTeacher


@dataclass
class Teachers:
    """Teachers by task; "" teaches every other one. `failed` and `asked` count rollouts; `first` is the first
    failure."""

    by_task: dict[str, Teacher]
    asked: int = 0
    failed: int = 0
    first: str = ""

    @classmethod
    def of(cls, run: StageContext, configs: Mapping[str, TeacherConfig], where: str) -> Teachers:
        """Open the teachers; equal configs are one teacher."""
        opened: list[tuple[TeacherConfig, Teacher]] = []
        by_task: dict[str, Teacher] = {}
        for task, config in configs.items():
            known = next((teacher for other, teacher in opened if other == config), None)
            if known is None:
                known = ServedTeacher(run, config, where) if config.engine else OwnTeacher(run, config, where)
                opened.append((config, known))
            by_task[task] = known
        return cls(by_task)

    def of_row(self, task: str) -> Teacher | None:
        """The teacher of a task."""
        return self.by_task.get(task, self.by_task.get(""))

    @property
    def distinct(self) -> list[Teacher]:
        """Each teacher once."""
        return list({id(teacher): teacher for teacher in self.by_task.values()}.values())

    def scores(self, rollouts: Sequence[Rollout], k: int) -> list[TeacherScore | None]:
        """What its teacher says of each rollout; None for a row of a task without one."""
        found: list[TeacherScore | None] = [None] * len(rollouts)
        for teacher in self.distinct:
            places = [
                place for place, rollout in enumerate(rollouts) if self.of_row(rollout.row.task) is teacher
            ]
            for place, score in zip(places, teacher.scores([rollouts[p] for p in places], k)):
                found[place] = score
                self.count(score.failure)
            teacher.sleep()
        return found

    def count(self, failure: str) -> None:
        """Count a rollout that a teacher was asked about."""
        self.asked += 1
        self.failed += bool(failure)
        self.first = self.first or failure

    def sleep(self) -> None:
        """Take all teachers off the device."""
        for teacher in self.distinct:
            teacher.sleep()

    def close(self) -> None:
        """Free the resources of the served ones."""
        for teacher in self.distinct:
            if isinstance(teacher, ServedTeacher):
                teacher.service.close()

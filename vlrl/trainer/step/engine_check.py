"""Whether the engine samples from the policy that is trained: at the start of a phase, after every sync, and
in every step.

Units: log-probs and gaps are nats a token. A gap is the mean of |log p_trainer - log p_engine|.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from vlrl.plugins.separate_engine import SeparateEngine
from vlrl.services.failures import EngineMismatchError
from vlrl.services.lazy import torch
from vlrl.trainer.data.rows import prompt_of
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.trainer.step.observer import RunObserver
from vlrl.types import Group, Prompt, Request, Rollout, RowError, Sampling

if TYPE_CHECKING:
    from vlrl.trainer.session import Session
    from vlrl.trainer.step.step import Step

TOKENS = 16  # of a probe
ROWS = 64  # of each source that are looked through for probes
STEPS = 3  # in a row that may be above the limit before a run stops
EXACT, ROUNDED = 1e-3, 0.05  # the gap that float32, or a type of 16 bits on either side, gives by itself
WIDER = 4.0  # how far above its own noise a gap may be after a sync
WIDEST = 10.0  # at the start, and in a step


@dataclass
class EngineProbe:
    """A prompt of one kind with tokens that the engine sampled after it, and both log-probs at that time."""

    kind: str
    prompt: Prompt
    ids: list[int]
    engine: list[float]
    trainer: list[float]

    @property
    def gap(self) -> float:
        """The distance at the start of the phase."""
        return distance(self.engine, self.trainer)


class EngineCheck(RunObserver):
    """Compares an engine that has a model of its own with the trainer; a run whose engine samples from
    another policy ends with EngineMismatchError.

    `begin`: one probe of each kind of prompt (text, one picture, several, video): the same prompt ids, place
    by place, and the same log-probs of 16 sampled tokens. `synced`: the log-probs of the probes must have
    moved as the trainer's have since; an adapter that binds to nothing or a stale tensor stays behind.
    `ended`: the gap of the step's tokens, where all were sampled with the trained weights.

    Limits come from the gaps measured first, but are at least those of rounding in the types of both;
    `engine.gap_limit` sets one for all three.
    """

    def __init__(self, session: Session, engine: SeparateEngine) -> None:
        self.session, self.engine = session, engine
        self.probes: list[EngineProbe] = []
        self.first_gaps: list[float] = []
        self.above: deque[float] = deque(maxlen=STEPS)

    # --- what is observed -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the probes of the session's phase. Raises EngineMismatchError."""
        session = self.session
        self.probes, self.first_gaps = [], []
        self.above.clear()
        problems = []
        for kind, prompt in first_of_each_kind(session):
            probe, problem = self._probe(kind, prompt)
            self.probes.append(probe)
            problems.append(problem)
        self._stop([problem for problem in problems if problem], "the start")
        gaps = ", ".join(f"{probe.kind} {probe.gap:.2g}" for probe in self.probes)
        session.observers.event_happened("engine_check", {"phase": session.phase, "gaps": gaps})

    def synced(self) -> None:
        """Compare how far both have moved since the start. Raises EngineMismatchError."""
        problems = []
        for probe in self.probes:
            _, engine = self.engine.seen(probe.prompt, probe.ids)
            trainer = self._trainer_logp(probe.prompt, probe.ids)
            moved = [now - then for now, then in zip(trainer, probe.trainer)]
            followed = [now - then for now, then in zip(engine, probe.engine)]
            behind, limit = distance(moved, followed), self._limit(WIDER, probe.gap)
            if behind > limit:
                mean = sum(map(abs, moved)) / len(moved)
                problems.append(
                    f"{probe.kind}: the log-probs of {len(moved)} tokens moved by {mean:.3g} nats in the "
                    f"trainer since the phase began, in the engine by {behind:.3g} otherwise (limit "
                    f"{limit:.3g}): weights do not arrive"
                )
        self._stop(problems, f"the sync of step {self.session.step}")

    def ended(self, step: Step) -> None:
        gap = step.metrics.get("engine/logp_diff")
        if gap is None or not is_fresh(step.trained_groups, self.session.policy.version - 1):
            return
        if len(self.first_gaps) < STEPS:
            self.first_gaps.append(gap)
        limit = self._limit(WIDEST, *self.first_gaps)
        self.above.append(gap - limit)
        if len(self.above) == STEPS and min(self.above) > 0:
            raise EngineMismatchError(
                f"step {step.number}: engine {self.engine.name!r} and trainer differ by {gap:.3g} nats a "
                f"token, in {STEPS} steps above {limit:.3g} (first {max(self.first_gaps):.2g}). {ADVICE}"
            )

    # --- parts ----------------------------------------------------------------------------------------------

    def _probe(self, kind: str, prompt: Prompt) -> tuple[EngineProbe, str]:
        """A probe, and what is wrong with it or ""."""
        session, engine = self.session, self.engine
        with engine.uncounted():
            request = Request(prompt, Sampling(max_tokens=TOKENS, temperature=1.0), n=1, seed=session.seed)
            (completion,) = engine.generate([request])
        ids = list(completion.ids)
        shown, engine_logp = engine.seen(prompt, ids)
        probe = EngineProbe(kind, prompt, ids, engine_logp, self._trainer_logp(prompt, ids))
        encoded, row = session.policy.encode(prompt), prompt.row.id
        own = list(encoded.ids)
        place = first_difference(shown, own, encoded.types, session.policy.forbidden_ids)
        if place is not None:
            return probe, (
                f"{kind} (row {row!r}): the prompt has {len(own)} ids in the trainer and {len(shown)} in the "
                f"engine, and differs from place {place} on: another chat template, or media in other places"
            )
        limit = self._limit(WIDEST)
        if probe.gap > limit:
            return probe, (
                f"{kind} (row {row!r}): the same {len(ids)} tokens differ by {probe.gap:.3g} nats each "
                f"(limit {limit:.3g}): other weights, or pictures seen in another way"
            )
        return probe, ""

    def _trainer_logp(self, prompt: Prompt, ids: Sequence[int]) -> list[float]:
        policy = self.session.policy
        rollout = Rollout(prompt, list(ids), logp=[0.0] * len(ids))
        batch = make_batch([Group(prompt, [rollout], id="probe")], policy.pad_id, policy.device)
        with torch.no_grad(), policy.gather_params():
            return [float(value) for value in policy.forward(batch)["logp"][0]]

    def _limit(self, factor: float, *measured: float) -> float:
        engine, family = self.engine, self.session.family
        if engine.gap_limit is not None:
            return float(engine.gap_limit)
        return factor * max(ROUNDED if engine.rounds(family.dtype) else EXACT, *measured, 0.0)

    def _stop(self, problems: Sequence[str], when: str) -> None:
        """Raise on every rank if one has found something."""
        found = self.session.gather(["; ".join(problems)])
        if told := [problem for problem in found if problem]:
            raise EngineMismatchError(
                f"{when}: engine {self.engine.name!r} does not sample from the policy that is trained. "
                f"{'; '.join(dict.fromkeys(told))}. {ADVICE}"
            )


ADVICE = (
    "Compare `engine.dtype` with `policy.dtype` and the model's versions in both; try `engine: hf`, "
    "`engine.lora: false` or `engine.share_weights: false`; where the distance is known (quantised "
    "rollouts), set `engine.gap_limit` above it and `token_weights.engine: {name: tis}`"
)


def first_difference(
    shown: Sequence[int], own: Sequence[int], types: Sequence[int], media: Sequence[int]
) -> int | None:
    """The first place where two prompts differ, or None. Where the trainer has a medium (`types` is not 0),
    any placeholder of `media` is the same: vLLM 0.32 writes InternVL's frames with another one.

    >>> first_difference([5, 98, 6], [5, 99, 6], [0, 2, 0], [98, 99])
    >>> first_difference([98, 5, 6], [5, 99, 6], [0, 2, 0], [98, 99])
    0
    >>> first_difference([5, 99], [5, 99, 6], [0, 2, 0], [98, 99])
    2
    """
    pairs = zip(shown, own, types)
    differ = (i for i, (a, b, kind) in enumerate(pairs) if a != b and not (kind and a in media))
    return next(differ, None if len(shown) == len(own) else min(len(shown), len(own)))


def first_of_each_kind(session: Session) -> Iterator[tuple[str, Prompt]]:
    """(kind, prompt) of the first rows of each kind in the first rows of each source."""
    seen: set[str] = set()
    for rows in session.rows.values():
        for row in islice(rows, ROWS):
            kind = kind_of(len(row.images), len(row.videos), len(row.audios))
            if kind in seen:
                continue
            try:
                prompt = prompt_of(session.policy, session.current, row)
            except (RowError, ValueError, OSError):  # collecting sets it aside, and says why
                continue
            seen.add(kind)
            yield kind, prompt


def kind_of(pictures: int, videos: int, sounds: int = 0) -> str:
    """The kind of a prompt.

    >>> [kind_of(0, 0), kind_of(1, 0), kind_of(3, 0), kind_of(0, 1), kind_of(0, 0, 1)]
    ['text', 'one picture', 'several pictures', 'video', 'audio']
    """
    if sounds:
        return "audio"
    if videos:
        return "video"
    return ("text", "one picture", "several pictures")[min(pictures, 2)]


def is_fresh(groups: Sequence[Group], version: int) -> bool:
    """Whether this version of the weights sampled all of the policy's tokens."""
    return all(r.version == version for group in groups for r in group if r.source == "policy")


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """The mean of |a - b|; 0 where both are empty.

    >>> distance([1.0, 2.0], [1.5, 1.0])
    0.75
    """
    return sum(abs(x - y) for x, y in zip(a, b)) / max(len(a), 1)

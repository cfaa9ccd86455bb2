"""On-policy distillation: the policy moves towards a teacher on the tokens that it sampled itself, beside any
reward.

distill              loss term: the divergence to the teacher
teacher_logp         aux tensor: the teacher's log-probs of the sampled tokens
teacher_divergence   aux tensor: the divergence over likely tokens, or over the whole vocabulary

Shapes: B rollouts, T completion tokens, N scored tokens, K likely tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vlrl.functional import divergence, sampled_divergence, top_and_rest, with_gradient
from vlrl.methods.common.teacher_config import SELF, START, TeacherConfig, TeacherScore, check_teacher
from vlrl.methods.common.teachers import OwnTeacher, Teachers
from vlrl.plugins.contexts import PhaseContext, StageContext, StepContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import AuxTensor, LossTerm, State, transient
from vlrl.plugins.views import PolicyView
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, LossInputs, Rollout, TokenBatch, UnreducedLoss

NO_SCORE = 1.0  # in place of a log-prob: the teacher said nothing of the token
LOGP, DIVERGENCE = "teacher_logp", "teacher_divergence"


@dataclass
class DistillState(State):
    """`teachers` are the opened ones; `scores` what they said of the step's rollouts, by the rollout's id.
    Saved are the weights of a teacher that is the policy as the phase began."""

    teachers: Any = transient()
    own: Any = transient()
    scores: dict[int, tuple[Rollout, TeacherScore | None]] = transient(factory=dict)

    def state_dict(self) -> dict[str, Any]:
        return self.own.reference_state() if self.own is not None else {}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        if self.own is not None:
            self.own.load_reference(values)


@register("distill")
@dataclass(frozen=True, kw_only=True)
class Distill(LossTerm):
    """On-policy distillation: D(pi, T) per token, on the policy's own samples.

    `divergence`: reverse KL(pi || T), forward KL(T || pi), jsd (of `beta`). `tokens`: "sampled" estimates it
    from the drawn token alone (unbiased; the gradient too); "top_k" sums over the teacher's `k` likeliest
    tokens and all others as one more (exact for that partition, so at most the whole; equal to it at k =
    vocabulary); "full" over the whole vocabulary, in chunks. Paper: GKD, arXiv:2306.13649; spans of another
    tokenizer: TRL's GOLD. Edge: a rollout without a score has no loss, and is counted. A teacher with another
    tokenizer: log-probs of spans of the same text; top_k at each span's first token.

    Attributes:
        teacher: Who teaches (`TeacherConfig`).
        teachers: By task; `teacher` teaches the others.
        clamp_log: Bound on log T - log pi of drawn tokens.
    """

    state_class = DistillState
    divergence: Literal["reverse", "forward", "jsd"] = "reverse"
    beta: float = 0.5
    tokens: Literal["sampled", "top_k", "full"] = "sampled"
    k: int = 64
    teacher: Mapping[str, Any] = field(default_factory=dict)
    teachers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    clamp_log: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.beta < 1:
            raise ConfigError(
                f"loss_terms: {self.name!r}: beta={self.beta} must be above 0 and below 1; its ends are "
                "divergence forward and reverse"
            )
        if self.k < 1 or self.clamp_log < 0:
            raise ConfigError(
                f"loss_terms: {self.name!r}: k={self.k} must be at least 1, and clamp_log={self.clamp_log} "
                "at least 0 (no bound)"
            )

    @property
    def needs(self) -> tuple[str, ...]:
        return (LOGP if self.tokens == "sampled" else DIVERGENCE,)

    @property
    def configs(self) -> dict[str, TeacherConfig]:
        """The teachers' configs by task. Raises ConfigError for one that names no model."""
        named = {"": self.teacher} if self.teacher or not self.teachers else {}
        return {
            task: check_teacher(spec, f"loss_terms: {self.name!r}: teacher" + (f"s.{task}" if task else ""))
            for task, spec in {**named, **self.teachers}.items()
        }

    def check(self, phase: PhaseContext) -> None:
        configs = self.configs
        if self.tokens == "full" and any(config.engine for config in configs.values()):
            raise ConfigError(
                f"loss_terms: {self.name!r}: a served teacher gives no whole vocabulary; set tokens: top_k "
                "or sampled"
            )
        others = [term for term in phase.objective.loss_terms.values() if isinstance(term, Distill)]
        if len(others) > 1:
            raise ConfigError(
                f"loss_terms: {len(others)} terms distil; write one, with its teachers by task (`teachers`)"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        configs = self.configs
        opened = Teachers.of(run, configs, f"loss_terms: {self.name!r}: teacher")
        other = any(isinstance(one, OwnTeacher) and one.aligner for one in opened.distinct)
        if self.tokens == "full" and other:
            raise ConfigError(
                f"loss_terms: {self.name!r}: the teacher has another tokenizer, so that no token is common "
                "to all; set tokens: top_k or sampled"
            )
        self.state.teachers = opened
        if any(config.is_policy and config.model == START for config in configs.values()):
            self.state.own = run.policy

    def prepare(self, groups: Sequence[Group]) -> None:
        """Ask the teachers about all rollouts of the step, so that each wakes once."""
        if self.tokens != "full":
            self.scores([rollout for group in groups for rollout in group])

    def scores(self, rollouts: Sequence[Rollout]) -> list[TeacherScore | None]:
        """What the teachers say of rollouts, each asked about once a step."""
        known = self.state.scores
        new = [rollout for rollout in rollouts if id(rollout) not in known]
        if new:
            found = self.state.teachers.scores(new, self.k if self.tokens == "top_k" else 0)
            known.update((id(rollout), (rollout, score)) for rollout, score in zip(new, found))
        return [known[id(rollout)][1] for rollout in rollouts]

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        if self.tokens != "sampled":
            loss_BT = x[DIVERGENCE]
            return UnreducedLoss(loss_BT, {"teacher/divergence": loss_BT.detach()})
        spans = x[LOGP]
        teacher_BT, span_BT = spans.unbind(-1) if spans.dim() == 3 else (spans, None)
        known_BT = (teacher_BT <= 0) & (x.mask_BT > 0)
        own_BT, size_BT = span_sums(x.logp_BT.detach(), known_BT, span_BT)
        estimate_BT, factor_BT = sampled_divergence(
            own_BT, torch.where(known_BT, teacher_BT, own_BT), self.divergence, self.beta, self.clamp_log
        )
        loss_BT = with_gradient(estimate_BT / size_BT, factor_BT, x.logp_BT)
        loss_BT = torch.where(known_BT, loss_BT, 0.0)
        return UnreducedLoss(loss_BT, {"teacher/divergence": loss_BT.detach()})

    def end_step(self, run: StepContext) -> None:
        super().end_step(run)
        self.state.scores.clear()
        teachers: Teachers = self.state.teachers
        teachers.sleep()
        if teachers.failed and teachers.first:
            self.run.warn(f"the teacher could not score a rollout: {teachers.first[:300]}")
            teachers.first = ""

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        teachers: Teachers | None = self.state.teachers
        return {"teacher/failed": (teachers.failed, teachers.asked)} if teachers and teachers.asked else {}


def span_sums(logp_BT: Tensor, known_BT: Tensor, span_BT: Tensor | None) -> tuple[Tensor, Tensor]:
    """Per token the student's log-prob of its span, and the number of the span's tokens. Without spans each
    token is one.

    >>> logp = torch.tensor([[-1.0, -2.0, -4.0]])
    >>> span_sums(logp, logp < 0, torch.tensor([[0.0, 0.0, 1.0]]))
    (tensor([[-3., -3., -4.]]), tensor([[2., 2., 1.]]))
    """
    if span_BT is None:
        return logp_BT, torch.ones_like(logp_BT)
    places_BT = torch.where(known_BT, span_BT, 0).long()
    sums_BT, counts_BT = (
        torch.zeros_like(logp_BT).scatter_add(1, places_BT, torch.where(known_BT, value, 0.0))
        for value in (logp_BT, torch.ones_like(logp_BT))
    )
    return sums_BT.gather(1, places_BT), counts_BT.gather(1, places_BT).clamp(min=1)


def distillation(run: StageContext) -> Distill:
    """The run's loss term that distils. Raises ConfigError without one."""
    for term in run.objective.loss_terms.values():
        if isinstance(term, Distill):
            return term
    raise ConfigError(
        f"aux_tensors: {LOGP} and {DIVERGENCE} are those of a loss term `distill`; add loss_terms: "
        "{teacher: {name: distill, teacher: {model: FOLDER}}}"
    )


@register(LOGP)
@dataclass(frozen=True, kw_only=True)
class TeacherLogp(AuxTensor):
    """The teacher's log-probs of the sampled tokens: log T(y_t | x, y_<t), in nats, temperature-scaled as
    sampled, for loss term `distill`.

    Of a teacher with another tokenizer, that of the span of text that the token is part of, and the span's
    number. vlrl original; as in KDRL, arXiv:2506.02208. Edge: 1, which is no log-prob, where the teacher said
    nothing. Shapes: (B, T), or (B, T, 2); no gradient.
    """

    def __call__(self, policy: PolicyView, batch: TokenBatch) -> Tensor:
        term = distillation(self.run)
        scores = term.scores(batch.rollouts)
        values_BT = torch.full(batch.ids_BT.shape, NO_SCORE)
        spans_BT = torch.zeros(batch.ids_BT.shape)
        for b, score in enumerate(scores):
            if score is not None and not score.failure:
                values = [NO_SCORE if value is None else min(value, 0.0) for value in score.logp]
                values_BT[b, : len(values)] = torch.tensor(values)
                spans_BT[b, : len(values)] = torch.tensor([float(number) for number in score.span])
        split = any(getattr(one, "aligner", None) for one in term.state.teachers.distinct)
        return torch.stack([values_BT, spans_BT], dim=-1) if split else values_BT


@register(DIVERGENCE)
@dataclass(frozen=True, kw_only=True)
class TeacherDivergence(AuxTensor):
    """The divergence to the teacher at each completion token, over its likely tokens and the rest, or over
    the vocabulary, for loss term `distill`.

    Likely tokens: the teacher's ids and log-probs come with the token. The vocabulary: the teacher's hidden
    states do, and its logits are made in the policy's chunks, so that no (tokens x vocabulary) tensor exists
    beyond a chunk. Paper: GKD, arXiv:2306.13649. Edge: 0 where the teacher said nothing; a token that only
    one of the two may say counts as the other's floor. Shapes: (N, V) to (N,), with gradient.
    """

    in_forward: ClassVar[bool] = True

    def token_values(self, batch: TokenBatch) -> Tensor:
        """(B, T, 2 k + 1) ids, log-probs and the rest's; NaN without a score. Or, of the whole vocabulary,
        (B, T, H + 2): hidden states, the temperature, and the number of the teacher (NaN: none)."""
        term = distillation(self.run)
        if term.tokens == "full":
            return self._states(term, batch)
        scores = term.scores(batch.rollouts)
        values = torch.full((*batch.ids_BT.shape, 2 * term.k + 1), torch.nan)
        for b, score in enumerate(scores):
            for t, top in enumerate(score.top if score is not None else ()):
                if top is not None:
                    ids, logp = top
                    none = term.k - len(ids)
                    row = [*ids, *[-1] * none, *logp[:-1], *[-torch.inf] * none, logp[-1]]
                    values[b, t] = torch.tensor(row)
        return values.to(batch.ids_BT.device)

    def _states(self, term: Distill, batch: TokenBatch) -> Tensor:
        teachers: Teachers = term.state.teachers
        parts: list[tuple[list[int], Tensor]] = []
        number_B = torch.full((len(batch.rollouts),), torch.nan)
        for number, teacher in enumerate(teachers.distinct):
            places = [b for b, r in enumerate(batch.rollouts) if teachers.of_row(r.row.task) is teacher]
            if not places:
                continue
            assert isinstance(teacher, OwnTeacher), "`check` refuses a served one"
            states, why = teacher.hidden([batch.rollouts[b] for b in places], batch.ids_BT.shape[1])
            parts.append((places, states))
            for b, failure in zip(places, why, strict=True):
                teachers.count(failure)
                number_B[b] = torch.nan if failure else float(number)
        width = max((states.shape[-1] for _, states in parts), default=1)
        values = torch.zeros(*batch.ids_BT.shape, width + 2, device=batch.ids_BT.device)
        for places, states in parts:
            values[places, :, : states.shape[-1]] = states
        values[..., -2] = batch.temperature_BT
        values[..., -1] = number_B.to(values)[:, None]
        return values

    def from_values(self, logits_NV: Tensor, ids_N: Tensor, values_NK: Tensor) -> Tensor:
        """(N,)"""
        term = distillation(self.run)
        if term.tokens == "full":
            return self._whole(term, logits_NV, values_NK)
        known_N = ~values_NK[:, -1].isnan()
        k = values_NK.shape[1] // 2
        values_NK = torch.where(known_N[:, None], values_NK, 0.0)
        own_NK = top_and_rest(logits_NV, values_NK[:, :k].long())
        found_N = divergence(own_NK, values_NK[:, k:], term.divergence, term.beta)
        return torch.where(known_N, found_N, 0.0)

    def _whole(self, term: Distill, logits_NV: Tensor, values_NK: Tensor) -> Tensor:
        *_, temperature_N, number_N = values_NK.unbind(-1)
        out_N = torch.zeros_like(logits_NV[:, 0])
        for number, states_NH, rows_N in self._by_teacher(term, values_NK, number_N):
            teacher_NV = term.state.teachers.distinct[number].logits(states_NH)
            scale_N = torch.where(temperature_N > 0, temperature_N, 1.0)[rows_N]
            size = min(teacher_NV.shape[1], logits_NV.shape[1])  # rows beyond the tokenizer have no mass
            own_NV = logits_NV[rows_N, :size].log_softmax(-1)
            other_NV = (teacher_NV[:, :size] / scale_N[:, None]).masked_fill(own_NV.isneginf(), -torch.inf)
            found_N = divergence(own_NV, other_NV.log_softmax(-1), term.divergence, term.beta)
            out_N = out_N.index_copy(0, rows_N, found_N)
        return out_N

    def _by_teacher(
        self, term: Distill, values_NK: Tensor, number_N: Tensor
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(the teacher's number, its hidden states of its tokens, which tokens) of each teacher of a
        chunk."""
        for number, teacher in enumerate(term.state.teachers.distinct):
            rows_N = (number_N == number).nonzero()[:, 0]
            if len(rows_N):
                yield number, values_NK[rows_N, : teacher.hidden_size], rows_N


__all__ = ["DIVERGENCE", "LOGP", "NO_SCORE", "SELF", "Distill", "TeacherDivergence", "TeacherLogp"]

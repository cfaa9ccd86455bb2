"""Warm-up on whole episodes: an expert's turns in place of samples, answered by the environment."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from vlrl.methods.core.rollout import MultiTurn
from vlrl.plugins.capabilities import NO_POLICY_GRADIENT
from vlrl.plugins.contexts import PhaseContext, SamplingContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Completion, Group, Prompt, Request, Rollout, Sampling


@register("expert_turns")
@dataclass(frozen=True)
class ExpertTurns(MultiTurn):
    """Supervised fine-tuning on episodes: an expert's turns in place of samples, answered by the environment
    itself.

    One rollout (or one per segment) per prompt, source "expert", for the loss term `nll` with policy_loss
    `zero_loss`. Turn t is, in this order: entry t of `row.meta["turns"]`; what the environment's expert
    writes (`Episode.expert`); one of `lines`. Each turn ends with EOS. Observations carry no loss, as in
    `multi_turn`. The engine is not used. vlrl original, after ReTool's cold start (Feng et al. 2025,
    arXiv:2504.11536, sec. 2.2). Edge: an episode without any of the three raises ValueError; turns of a row
    behind the end of the episode are left out, missing ones are empty. Units: log-probs are 0 (the expert is
    taken as certain).

    Attributes:
        lines: Drawn uniformly; they teach the form of an action and not which one, so that reinforcement
            learning begins from a uniform policy over them.
        noise: Share of the environment's expert's turns that is replaced by one of `lines`, so that states
            beside its path are shown too.
    """

    samples: ClassVar[bool] = False
    needs_target: ClassVar[bool] = False
    lines: tuple[str, ...] = ()
    noise: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.noise <= 1 or (self.noise and not self.lines):
            raise ValueError(
                f"noise={self.noise} must be in [0, 1], and needs lines: [...], turns to draw from"
            )

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if not phase.has(NO_POLICY_GRADIENT):
            raise ConfigError(
                f"rollout: {self.name!r} gives demonstrations; use policy_loss: {{name: zero_loss}} and "
                f"loss_terms: {{nll: {{name: nll}}}}"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, [1] * len(prompts), run)
        for rollout in (rollout for group in groups for rollout in group):
            rollout.source = "expert"
        return groups

    def play(
        self, prompts: Sequence[Prompt], samplings: Sequence[Sampling], run: SamplingContext
    ) -> list[list[Rollout] | str] | None:
        """Held-out evaluation: turns of the policy, not of the expert."""
        return MultiTurn(**{one.name: getattr(self, one.name) for one in fields(MultiTurn)}).play(
            prompts, samplings, run
        )

    def before_turns(self, ready: Sequence[Any], pool: Any, run: SamplingContext) -> None:
        for handle in ready:
            handle.owner.demonstrated = self.turn(handle, run)

    def turn(self, handle: Any, run: SamplingContext) -> str:
        """The expert's next turn of an episode. Raises ValueError where nobody demonstrates."""
        conversation, row = handle.owner, handle.owner.prompt.row
        if row.meta.get("turns"):
            given = list(row.meta["turns"])
            return str(given[conversation.turns]) if conversation.turns < len(given) else ""
        rng = random.Random(repr((run.seed, run.phase, run.step, row.id, conversation.turns)))
        said: str | None = (
            None if rng.random() < self.noise else handle.episode.expert(conversation.view(run.policy))
        )
        if said is None and self.lines:
            said = rng.choice(self.lines)
        if said is None:
            name = run.environment.name if run.environment is not None else ""
            raise ValueError(
                f"row {row.id!r} has no meta['turns'] (the list of the demonstrated turns), and "
                f"environment {name!r} has no expert; "
                f"rollout {self.name!r} needs one of them, or lines: [...], turns to draw from"
            )
        return said

    def turns(self, requests: Sequence[Request], run: SamplingContext) -> Iterable[Completion]:
        for request in requests:
            text = request.tag.demonstrated
            ids = [*request.prefix_ids, *run.policy.encode_text(text), run.policy.tokenizer.eos_token_id]
            yield Completion(request, 0, ids, [0.0] * len(ids), text, "stop", run.policy.version)

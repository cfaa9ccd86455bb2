"""Self-rewarding correction: cold-start traces in which a response judges itself, and corrects itself where
it is wrong.

`self_rewarding_correction` is the rollout strategy of the imitation phase. It composes traces of the
candidates that callback `judgerlvr.keep_candidates` kept in an earlier phase.
Paper: Xiong et al. 2025 (self-rewarding correction), arXiv:2502.19613, first stage.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vlrl.methods.papers.judgerlvr import KEY
from vlrl.plugins.capabilities import NO_POLICY_GRADIENT
from vlrl.plugins.contexts import PhaseContext, SamplingContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import RolloutStrategy
from vlrl.types import Group, Prompt, Rollout


@register("self_rewarding_correction")
@dataclass(frozen=True)
class SelfRewardingCorrection(RolloutStrategy):
    """Self-correction traces: a correct attempt + `right`, or (probability 1/2) a wrong attempt + `wrong` + a
    correct attempt + `right`.

    One trace per prompt (source "kept"); no engine samples. `right` and `wrong` are the verdicts' texts.
    Paper: Xiong et al. 2025 (self-rewarding correction), arXiv:2502.19613, first stage: sequential rejection
    sampling of attempt, verdict and correction. Deviates: attempts are those of callback
    `judgerlvr.keep_candidates`, so the correction was not written after the wrong attempt, whose tokens are
    not trained on (its verdict is); the verdicts' words are those of infer_math/process_prompt_turn2.py
    (RLHFlow/Self-rewarding-reasoning-LLM at 372bea99). Edge: a row without kept candidates gives an empty
    group, which is counted and replaced. The choice is a function of the run's seed, the step and the row.
    """

    right: str = " [VERIFY] correct."
    wrong: str = " [VERIFY] wrong.\n"
    samples: ClassVar[bool] = False

    def check(self, phase: PhaseContext) -> None:
        if not phase.has(NO_POLICY_GRADIENT):
            raise ConfigError(
                f"rollout: {self.name!r} gives one text per prompt to imitate, which policy_loss "
                f"{phase.objective.policy_loss.name!r} has nothing to "
                "compare with; use policy_loss: {name: zero_loss} and loss_terms: {nll: {name: nll}}"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        return [Group(prompt, self.trace(prompt, run)) for prompt in prompts]

    def trace(self, prompt: Prompt, run: StageContext) -> list[Rollout]:
        """The prompt's trace, or an empty list for a row without candidates."""
        candidates = run.history.get(prompt.row.id, {}).get(KEY)
        if not candidates:
            return []
        encode = run.policy.encode_text
        correct_attempt = candidates["yes"].removeprefix(prompt.prefix)
        wrong_attempt = candidates["no"].removeprefix(prompt.prefix)
        with_error = random.Random(f"{run.seed}/traces/{run.step}/{prompt.row.id}").random() < 0.5
        masked = encode(wrong_attempt) if with_error else []
        trained = (self.wrong + candidates["yes"] if with_error else correct_attempt) + self.right
        ids = [*masked, *encode(trained), run.policy.tokenizer.eos_token_id]
        text = prompt.prefix + (wrong_attempt if with_error else "") + trained
        rollout = Rollout(prompt, ids, text, source="kept", spaces=tuple(run.policy.spaces(prompt)))
        rollout.loss_mask = [False] * len(masked) + [True] * (len(ids) - len(masked)) if with_error else None
        return [rollout]

"""ThinkPRM: a process reward model that thinks: a verifier writes a chain about all steps of a solution,
and is trained on few chains, those whose step verdicts are all as labelled.

    thinkprm.chains   rollout strategy: another model's verification chains, the verified ones alone
    thinkprm          reward shaping: step scores of a verifier that is served

Paper: Khalifa et al. 2025 (ThinkPRM), arXiv:2504.16828 (its repository has no training script).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlrl.beside.judge import check_judge, expected_value, open_service
from vlrl.beside.service import ModelAsk, Reply, Usage
from vlrl.methods.common.asked_demonstrations import AskedDemonstrations
from vlrl.methods.common.step_scores import STEP_SCORES, steps_of
from vlrl.methods.common.verification_chains import read_verification, verification_prompt
from vlrl.plugins.contexts import PhaseContext, SamplingContext, StageContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping, StepCounts, transient
from vlrl.types import Group, Prompt, Rollout

CHOICES, TOP = ("no", "yes"), 20


@register("thinkprm.chains")
@dataclass(frozen=True, kw_only=True)
class ThinkprmChains(AskedDemonstrations):
    """ThinkPRM's data: a `teacher` writes verification chains about each row's steps; those are
    demonstrations that the row's reward calls correct (`step_verdicts`: all verdicts as labelled).

    The prompt is sampled `group_size` times. With `verify` false all readable chains are kept. Paper: Khalifa
    et al. 2025 (ThinkPRM), arXiv:2504.16828, sec. 3 (chains of QwQ-32B, verified against PRM800K's labels; 1K
    are kept). Edge: a row whose chains all fail gives an empty group, which is replaced. Logs the share of
    readable and of verified chains.
    """

    most: ClassVar[int] = 1024
    verify: bool = True

    def asked(self, prompt: Prompt) -> str:
        return prompt.text

    def usable(self, text: str) -> bool:
        return bool(text.strip())

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        for group in groups:
            kept = [rollout for rollout in group if rollout.correct or not self.verify]
            self.state.add(verified=len([r for r in group if r.correct]))
            group.rollouts = kept
        return groups

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        state = self.state
        return {
            "thinkprm/usable": state.share("usable", "asked"),
            "thinkprm/verified": state.share("verified", "usable"),
        }


@dataclass
class VerifierState(StepCounts):
    """The served verifier and its config; counts of its replies."""

    service: Any = transient()
    config: Any = transient()


@register("thinkprm")
@dataclass(frozen=True, kw_only=True)
class Thinkprm(RewardShaping):
    """ThinkPRM's step scores of a rollout: mean over `chains` of a verifier of 1 for a right and -1 for a
    wrong step; writes STEP_SCORES. Rewards are unchanged.

        score of the last step = 2 P(yes) - 1,  P(yes) = p_yes / (p_yes + p_no) at the verdict, with log-probs

    `verifier` is {model: name@revision, engine: ..., logprobs: true}; chains beyond the first need a
    temperature. Steps are the parts between `delimiter`. Paper: Khalifa et al. 2025, arXiv:2504.16828, sec. 3
    and 4 (parallel chains are averaged). Edge: a rollout without a readable chain has no step scores, and is
    counted.
    """

    state_class = VerifierState
    verifier: Mapping[str, Any] = field(default_factory=dict)
    delimiter: str = "\n\n"
    chains: int = 1
    provides = (STEP_SCORES,)

    def check(self, phase: PhaseContext) -> None:
        check_judge(self.verifier, f"reward_shaping: {self.name!r}: verifier")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        where = f"reward_shaping: {self.name!r}: verifier"
        self.state.service, self.state.config = open_service(self.verifier, run, where, Usage(), "verifier")

    def __call__(self, group: Group) -> list[float]:
        steps = [steps_of(rollout, self.run.policy, self.delimiter) for rollout in group]
        config = self.state.config
        asks = [
            ModelAsk(
                verification_prompt(rollout.row.question, [text for _, text in own]),
                temperature=config.temperature,
                max_tokens=config.max_tokens,
                seed=chain,
                logprobs=TOP if config.logprobs else 0,
            )
            for rollout, own in zip(group, steps, strict=True)
            for chain in range(self.chains)
        ]
        replies = iter(self.state.service.ask(asks))
        for rollout, own in zip(group, steps, strict=True):
            self.write(rollout, own, [next(replies) for _ in range(self.chains)])
        return group.rewards

    def write(self, rollout: Rollout, steps: Sequence[tuple[int, str]], replies: Sequence[Reply]) -> None:
        """Write the step scores that chains give a rollout."""
        read = [scores for reply in replies if (scores := chain_scores(reply, len(steps))) is not None]
        self.state.add(chains=len(replies), unread=len(replies) - len(read))
        means = [math.fsum(values) / len(read) for values in zip(*read)] if read else []
        STEP_SCORES.set(rollout, [(end, score) for (end, _), score in zip(steps, means)])

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        return {"thinkprm/unread": self.state.share("unread", "chains")}


def chain_scores(reply: Reply, count: int) -> list[float] | None:
    """The scores of `count` steps by a chain; None where it cannot be read."""
    if reply.failure:
        return None
    chain = read_verification(reply.text, count)
    if chain.steps is None or chain.verdict is None or not count:
        return None
    scores = [1.0 if right else -1.0 for right in chain.steps]
    place = reply.text.lower().rfind("verdict: ") + len("verdict: ")
    yes = expected_value(CHOICES, reply, place) if reply.logprobs else None
    return scores if yes is None else [*scores[:-1], 2 * yes - 1]

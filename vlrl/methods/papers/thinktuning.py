"""Samples, some of which a teacher reads, judges aloud and goes on with.

PPO's clip, and a shaped probability for rollouts that a teacher went on with.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlrl.functional import clipped_ratio_loss
from vlrl.methods.common.derived_prompts import harmless
from vlrl.methods.common.sampling_rounds import fits, with_system, with_text
from vlrl.methods.core.rollout import Independent
from vlrl.registry import ConfigError, register
from vlrl.stages import PolicyLoss
from vlrl.types import Completion, Group, LossInputs, PerToken, Prompt, Request, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext

TEACH = (
    "You teach by thinking aloud. You are given a question and a student's response. Write exactly three parts and nothing else:\n"
    "<opinion>correct or incorrect</opinion>\n"
    "<reason>in the first person, as if the response were yours: what holds in it, and what does not</reason>\n"
    "<phrase>go on from there in the first person towards the right solution, and end with the final answer in the form asked for</phrase>"
)
FORM = re.compile(r"\s*<opinion>\s*(?:in)?correct\s*</opinion>\s*<reason>\s*(.*?)\s*</reason>\s*<phrase>\s*(.*?)\s*</phrase>\s*", re.DOTALL)


def lesson(words: str) -> str:
    """What a teacher's words add to a response; "" where they do not keep to the form."""
    match = FORM.fullmatch(words)
    return "\n\n" + harmless(match[1]) + "\n\n" + harmless(match[2]) if match else ""


@register("thinktuning")
@dataclass(frozen=True)
class ThinkTuning(Independent):
    """n samples; of those that ended by themselves, max(1, share) are replaced by themselves + a teacher's reason and continuation (source "taught").

    The teacher reads question and response under the system prompt `teach` and answers greedily in three parts (opinion, reason, phrase); what does
    not keep to that form is not used. The share falls linearly from `first` to `last` over the part `over` of the phase; at `off` nobody is taught.
    Paper: RRV et al. 2025 (ThinkTuning), arXiv:2508.07616; checked against fsdp_workers.py, teaching_schedulers.py and train_thinktuning.sh of
    the release (0.1 to 0.01 over a third of the steps, off at 0.06). Deviates: the teacher is the policy of the step, there a second, frozen copy of
    the initial model; the words of `teach` are ours and come without the release's four worked examples; words are cut by `max_teacher_tokens`
    while they are sampled, there to 512 tokens afterwards. The draw is a function of the run's seed, the step and the row.
    Edge: a taught rollout longer than `decode.max_tokens` is cut and counts as truncated. Its writer's log-probs are left empty. Teaching prompts
    above `max_prompt_tokens` are not asked.
    """

    first: float = 0.1
    last: float = 0.01
    over: float = 1 / 3
    off: float = 0.06
    max_teacher_tokens: int = 512
    teach: str = TEACH
    counted: dict[str, float] = field(init=False, default_factory=lambda: {"asked": 0.0, "taught": 0.0}, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.last <= self.first <= 1 or not 0 < self.over <= 1 or self.max_teacher_tokens < 1:
            raise ValueError(f"last={self.last} and first={self.first} must rise within [0, 1], over={self.over} be in (0, 1], "
                             f"max_teacher_tokens={self.max_teacher_tokens} at least 1")  # fmt: skip

    def check(self, run: RunContext) -> None:
        if "taught" not in getattr(run.objective.policy_loss, "sources", ()):
            raise ConfigError("strategy thinktuning puts words of a teacher into rollouts (source taught), for which a ratio means nothing; "
                              "use surrogate: {name: advantage_aware}")  # fmt: skip

    def share(self, run: RunContext) -> float:
        """Of a group's eligible rollouts, now: the first two steps have the first value."""
        length = max(1, int(run.settings.steps * self.over))
        return self.first - (self.first - self.last) * min(max(run.phase_step - 1, 0), length) / length

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        self.counted.update(asked=0.0, taught=0.0)
        share = self.share(run)
        if share <= self.off:
            return groups
        requests = []
        for group in groups:
            ended = [place for place, rollout in enumerate(group.rollouts) if rollout.finish == "stop"]
            draw = random.Random(f"{run.seed}/thinktuning/{run.step}/{group.row.id}")
            for place in draw.sample(ended, min(len(ended), max(1, int(len(ended) * share)))):
                asked = replace(with_text(group.prompt, f"\n\nResponse:\n{harmless(group.rollouts[place].text)}"), prefix="", train=None)
                asked = with_system(asked, self.teach)
                if fits(asked, run):
                    sampling = run.sampling(group.prompt, place)
                    greedy = replace(sampling, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, max_tokens=self.max_teacher_tokens)
                    requests.append(Request(asked, greedy, 1, self.seeds(run, group.prompt), tag=(group, place)))
        for completion in run.engine.generate(requests) if requests else ():
            group, place = completion.request.tag
            group.rollouts[place] = self.taught(group.rollouts[place], completion, run)
        return groups

    def taught(self, rollout: Rollout, completion: Completion, run: RunContext) -> Rollout:
        """The rollout with what the teacher adds, or as it is where that is nothing."""
        words = lesson(completion.text) if completion.finish == "stop" else ""
        self.counted["asked"] += 1
        if not words:
            return rollout
        self.counted["taught"] += 1
        tokenizer: Any = run.policy.tokenizer
        end = len(rollout.ids) - (rollout.ids[-1:] == [tokenizer.eos_token_id])
        ids = [*rollout.ids[:end], *tokenizer.encode(words, add_special_tokens=False), tokenizer.eos_token_id]
        limit = run.sampling(rollout.prompt, 0).max_tokens
        kept, cut = ids[:limit], len(ids) > limit
        text = rollout.text + (words if not cut else run.policy.decode(kept[end:]))
        return Rollout(
            rollout.prompt, kept, text, finish="length" if cut else "stop", version=getattr(run.policy, "version", 0), source="taught",
            spaces=rollout.spaces, temperature=rollout.temperature if isinstance(rollout.temperature, (int, float)) else 1.0,
            info={**rollout.info, "own": end},
        )  # fmt: skip

    def metrics(self) -> dict[str, float]:
        return {f"teacher/{key}": value for key, value in self.counted.items()}


@register("thinktuning.advantage_aware")
@dataclass(frozen=True)
class ThinktuningAdvantageAware(PolicyLoss):
    """Rollouts of `sources`: L = -A pi / sg(pi + g), g = gamma clip(A / bound, -1, 1); all others, and tokens with A < 0 and pi < `rare`: PPO's clip.

    So tokens that the policy finds unlikely are pushed up more gently than likely ones, and down a little harder.
    Paper: RRV et al. 2025 (ThinkTuning), arXiv:2508.07616, advantage-aware shaping; checked against compute_policy_loss of the released recipe
    (gamma 0.001, bound 4, rare 0.01, dual clip 3 in steps with a teacher). Deviates: the release clamps g with its bounds the wrong way round, which
    makes it -gamma everywhere and the quotient unbounded where pi is just above gamma; g is what its formula says before that.
    Edge: pi + g below 0 becomes pi / 1.0001, above 1 pi / 0.9999, as in the release. Dual clip is on in steps without a teacher too.
    """

    sources: tuple[str, ...] = ("taught",)
    gamma: float = 0.001
    bound: float = 4.0
    rare: float = 0.01
    low: float = 0.2
    high: float = 0.2
    dual_clip: float = 3.0

    def __post_init__(self) -> None:
        if self.gamma < 0 or self.bound <= 0 or self.rare < self.gamma:
            raise ValueError(f"gamma={self.gamma} must be at least 0, bound={self.bound} above 0, rare={self.rare} at least gamma: "
                             "rarer tokens would be divided by almost nothing")  # fmt: skip

    def shaped(self, pi_BT: Tensor, advantage_BT: Tensor) -> Tensor:
        """(B, T) pi / sg(pi + g), with gradient in pi."""
        fixed_BT = pi_BT.detach()
        below_BT = fixed_BT + self.gamma * (advantage_BT / self.bound).clamp(-1, 1)
        below_BT = torch.where(below_BT < 0, fixed_BT / 1.0001, below_BT)
        below_BT = torch.where(below_BT > 1, fixed_BT / 0.9999, below_BT)
        return pi_BT / below_BT.clamp(min=torch.finfo(below_BT.dtype).tiny)

    def __call__(self, x: LossInputs) -> PerToken:
        taught_B1 = torch.tensor([[rollout.source in self.sources] for rollout in x.batch.rollouts], device=x.logp_BT.device)
        own = clipped_ratio_loss(x.log_ratio_BT.exp(), x.advantage_BT, self.low, self.high, self.dual_clip or None)
        pi_BT = x.logp_BT.exp()
        shaped_BT = taught_B1 & ~((x.advantage_BT < 0) & (pi_BT.detach() < self.rare))
        loss_BT = torch.where(shaped_BT, -x.advantage_BT * self.shaped(pi_BT, x.advantage_BT), own.loss)
        return PerToken(loss_BT, {**own.metrics, "off_policy": shaped_BT.to(x.logp_BT)})

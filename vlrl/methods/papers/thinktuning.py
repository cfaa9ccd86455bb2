"""ThinkTuning: a teacher gives feedback on some rollouts and continues them; they are trained on with
advantage-aware shaping.

    thinktuning                   rollout strategy: samples, and appends a teacher's reason and continuation
    to some rollouts thinktuning.advantage_aware   policy loss: PPO's clip, and a shaped probability for the
    rollouts that a teacher continued

Paper: RRV et al. 2025 (ThinkTuning), arXiv:2508.07616, with released code and script.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlrl.functional import clipped_ratio_loss
from vlrl.methods.common.prompts import neutralised, with_system, with_text, within_limit
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Annotation, Capability
from vlrl.plugins.contexts import SamplingContext, StageContext
from vlrl.plugins.registry import register
from vlrl.plugins.stages import PolicyLoss, StepCounts
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Completion, Group, LossInputs, Prompt, Request, Rollout, UnreducedLoss

TEACH = (
    "You teach by thinking aloud. You are given a question and a student's response. Write exactly three "
    "parts and nothing else:\n"
    "<opinion>correct or incorrect</opinion>\n"
    "<reason>in the first person, as if the response were yours: what holds in it, and what does "
    "not</reason>\n"
    "<phrase>go on from there in the first person towards the right solution, and end with the final "
    "answer in the form asked for</phrase>"
)
FORM = re.compile(
    r"\s*<opinion>\s*(?:in)?correct\s*</opinion>\s*<reason>\s*(.*?)\s*</reason>\s*<phrase>\s*(.*?)\s*</phrase>\s*",
    re.DOTALL,
)

TAUGHT_LOSS = Capability(
    "thinktuning.taught_loss", hint="policy_loss: {name: thinktuning.advantage_aware}"
)  # for rollouts of source "taught"
OWN_TOKENS: Annotation[int] = Annotation(
    "thinktuning.own_tokens",
    int,
    hint="rollout: {name: thinktuning}",
    doc="number of the policy's own tokens before those of the teacher",
)


def lesson(words: str) -> str:
    """The text that a teacher's words add to a response: reason and continuation; "" where the words do not
    have the three parts."""
    match = FORM.fullmatch(words)
    return "\n\n" + neutralised(match[1]) + "\n\n" + neutralised(match[2]) if match else ""


@register("thinktuning")
@dataclass(frozen=True)
class ThinkTuning(Independent):
    """ThinkTuning's guided rollouts: n samples; a share of those that ended is extended by a teacher's reason
    and continuation (source "taught").

    The teacher reads both under `teach` and answers greedily in three parts (opinion, reason, phrase). Paper:
    RRV et al. 2025 (ThinkTuning), arXiv:2508.07616; checked against fsdp_workers.py, teaching_schedulers.py
    and train_thinktuning.sh of the release. Deviates: the teacher is the policy of the step (release: a
    frozen copy of the initial model); the words of `teach` are ours, without four worked examples;
    `max_teacher_tokens` by sampling (release: 512 tokens, afterwards). The draw is a function of the run's
    seed, the step and the row. Edge: an extended rollout is truncated at `sampling.max_tokens`; it has no
    sampler log-probs. Longer teacher prompts are not used.

    Attributes:
        first, last, over: The share (at least one rollout of a group) falls linearly from `first` to `last`
            over the part `over` of the phase (release: 0.1 to 0.01 over a third).
        off: At this share and below no rollout is extended (release: 0.06).
    """

    state_class = StepCounts
    first: float = 0.1
    last: float = 0.01
    over: float = 1 / 3
    off: float = 0.06
    max_teacher_tokens: int = 512
    teach: str = TEACH
    provides = (OWN_TOKENS,)
    requires = (TAUGHT_LOSS,)

    def __post_init__(self) -> None:
        if not 0 <= self.last <= self.first <= 1 or not 0 < self.over <= 1 or self.max_teacher_tokens < 1:
            raise ValueError(
                f"last={self.last} and first={self.first} must rise within [0, 1], over={self.over} be in "
                "(0, 1], "
                f"max_teacher_tokens={self.max_teacher_tokens} at least 1"
            )

    def share(self, run: StageContext) -> float:
        """The share of a group's finished rollouts that is extended in this step; the first two steps have
        the first value."""
        length = max(1, int(run.settings.steps * self.over))
        return self.first - (self.first - self.last) * min(max(run.phase_step - 1, 0), length) / length

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        share = self.share(run)
        if share <= self.off:
            return groups
        requests = []
        for group in groups:
            finished = [place for place, rollout in enumerate(group.rollouts) if rollout.finish == "stop"]
            draw = random.Random(f"{run.seed}/thinktuning/{run.step}/{group.row.id}")
            for place in draw.sample(finished, min(len(finished), max(1, int(len(finished) * share)))):
                prompt = self.teacher_prompt(group.rollouts[place], group.prompt)
                if within_limit(prompt, run):
                    sampling = run.sampling(group.prompt, place)
                    greedy = replace(
                        sampling,
                        temperature=0.0,
                        top_p=1.0,
                        top_k=0,
                        min_p=0.0,
                        max_tokens=self.max_teacher_tokens,
                    )
                    requests.append(
                        Request(prompt, greedy, 1, self.seeds(run, group.prompt), tag=(group, place))
                    )
        for completion in run.engine.generate(requests) if requests else ():
            group, place = completion.request.tag
            group.rollouts[place] = self.extended(group.rollouts[place], completion, run)
        return groups

    def teacher_prompt(self, rollout: Rollout, prompt: Prompt) -> Prompt:
        """The question and a response to it, under the system prompt `teach`."""
        return with_system(
            replace(with_text(prompt, f"\n\nResponse:\n{neutralised(rollout.text)}"), prefix="", train=None),
            self.teach,
        )

    def extended(self, rollout: Rollout, completion: Completion, run: StageContext) -> Rollout:
        """The rollout with the teacher's text appended; unchanged where that is empty."""
        words = lesson(completion.text) if completion.finish == "stop" else ""
        self.state.add(requests=1)
        if not words:
            return rollout
        self.state.add(taught=1)
        tokenizer = run.policy.tokenizer
        own = len(rollout.ids) - (rollout.ids[-1:] == [tokenizer.eos_token_id])
        ids = [*rollout.ids[:own], *run.policy.encode_text(words), tokenizer.eos_token_id]
        limit = run.sampling(rollout.prompt, 0).max_tokens
        kept, cut = ids[:limit], len(ids) > limit
        extended = Rollout(
            prompt=rollout.prompt,
            ids=kept,
            text=rollout.text + (words if not cut else run.policy.decode(kept[own:])),
            finish="length" if cut else "stop",
            version=run.policy.version,
            source="taught",
            spaces=rollout.spaces,
            temperature=rollout.temperature if isinstance(rollout.temperature, (int, float)) else 1.0,
            info=dict(rollout.info),
        )
        OWN_TOKENS.set(extended, own)
        return extended

    def metrics(self) -> dict[str, float]:
        """Requests to the teacher in the step, and rollouts that it continued."""
        return {f"teacher/{name}": self.state.logged.get(name, 0.0) for name in ("requests", "taught")}


@register("thinktuning.advantage_aware")
@dataclass(frozen=True)
class ThinktuningAdvantageAware(PolicyLoss):
    """ThinkTuning's advantage-aware shaping: for rollouts of `sources`, L = -A pi / sg(pi + g) with g = gamma
    clip(A / bound, -1, 1).

    All other rollouts, and tokens with A < 0 and pi < `rare`, have PPO's clipped loss. Paper: RRV et al. 2025
    (ThinkTuning), arXiv:2508.07616, advantage-aware shaping; checked against compute_policy_loss of the
    released recipe (gamma 0.001, bound 4, rare 0.01, dual clip 3 in steps with a teacher). Deviates: the
    release clamps g with swapped bounds, which makes it -gamma everywhere and the quotient unbounded near it;
    g here is the formula before that clamp. As there, pi + g below 0 becomes pi / 1.0001, above 1 pi /
    0.9999. Dual clip is always on.
    """

    sources: tuple[str, ...] = ("taught",)
    gamma: float = 0.001
    bound: float = 4.0
    rare: float = 0.01
    low: float = 0.2
    high: float = 0.2
    dual_clip: float = 3.0

    @property
    def provides(self) -> tuple[Capability, ...]:
        return (TAUGHT_LOSS,) if "taught" in self.sources else ()

    def __post_init__(self) -> None:
        if self.gamma < 0 or self.bound <= 0 or self.rare < self.gamma:
            raise ValueError(
                f"gamma={self.gamma} must be at least 0, bound={self.bound} above 0, rare={self.rare} at "
                "least gamma: "
                "the loss divides by pi - gamma, which is almost 0 for rarer tokens"
            )

    def shaped(self, pi_BT: Tensor, advantage_BT: Tensor) -> Tensor:
        """(B, T) pi / sg(pi + g), with gradient in pi."""
        fixed_BT = pi_BT.detach()
        below_BT = fixed_BT + self.gamma * (advantage_BT / self.bound).clamp(-1, 1)
        below_BT = torch.where(below_BT < 0, fixed_BT / 1.0001, below_BT)
        below_BT = torch.where(below_BT > 1, fixed_BT / 0.9999, below_BT)
        return pi_BT / below_BT.clamp(min=torch.finfo(below_BT.dtype).tiny)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        taught_B1 = torch.tensor(
            [[rollout.source in self.sources] for rollout in x.batch.rollouts], device=x.logp_BT.device
        )
        own = clipped_ratio_loss(
            x.log_ratio_BT.exp(), x.advantage_BT, self.low, self.high, self.dual_clip or None
        )
        pi_BT = x.logp_BT.exp()
        shaped_BT = taught_B1 & ~((x.advantage_BT < 0) & (pi_BT.detach() < self.rare))
        loss_BT = torch.where(shaped_BT, -x.advantage_BT * self.shaped(pi_BT, x.advantage_BT), own.loss)
        return UnreducedLoss(loss_BT, {**own.metrics, "off_policy": shaped_BT.to(x.logp_BT)})

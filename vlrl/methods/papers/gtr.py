"""GTR: a corrector rewrites the agent's thoughts; the policy learns actions by reinforcement and thoughts
from the corrected ones.

    gtr                  replay: corrected thoughts, aggregated over steps, as rollouts of source "corrected"
    gtr.advantage        advantage: PPO's, of the agent's own turns; corrected thoughts get none
    gtr.thought_weight   token weight: lambda on the tokens of thoughts, 1 on those of actions, 0 on corrected
    thoughts

Paper: Wei et al. 2025 (GTR), arXiv:2503.08525, sec. 4; the weight of thoughts is that of RL4VLM (Zhai et al.
2024, arXiv:2405.10292, sec. 4.3). The code could not be had; lambda 0.5 is that of forks of RL4VLM.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlrl.methods.common.prompts import neutralised, with_text
from vlrl.methods.common.stored_groups import packed, unpacked
from vlrl.methods.core.advantage import GAE
from vlrl.methods.core.critic import RETURNS
from vlrl.plugins.contexts import StageContext
from vlrl.plugins.registry import build, register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, Engine, ReplayBuffer, StepCounts, TokenWeight, transient
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, LossInputs, Request, Rollout

_THOUGHT = re.compile(r"<think>((?:(?!</?think>).)*)</think>", re.DOTALL)
CORRECTED = "corrected"


@dataclass
class GtrState(StepCounts):
    """The aggregated corrected thoughts, oldest first, the corrector's engine, and of the step the thoughts
    that were corrected and rewritten."""

    pairs: list[Group] = field(default_factory=list)
    saved: list[dict[str, Any]] = transient(factory=list)  # of a checkpoint, until the rows are there
    corrector: Any = transient()

    def state_dict(self) -> dict[str, Any]:
        return {"pairs": [packed(group) for group in self.pairs] or self.saved}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        self.pairs, self.saved = [], list(values["pairs"])


@register("gtr")
@dataclass(frozen=True)
class Gtr(ReplayBuffer):
    """GTR's corrected thoughts: each step, thoughts of the sampled turns are rewritten by a corrector, and
    the rewritten ones are aggregated.

        D <- D + {(state, corrected thought)},   the step trains on its own groups and on `batch` thoughts
        drawn from D

    Corrected thoughts are rollouts of source "corrected", each a group of its own: the loss term {name: nll,
    source: corrected} is GTR's SFT loss, `gtr.thought_weight` keeps the policy loss away. Paper:
    arXiv:2503.08525, sec. 4.2-4.3. Ours: `asked`, `batch`, `size`, and the words. Edge: a rollout without a
    thought is not corrected; an unchanged thought joins D too. State: D; after a restart states with pictures
    of an environment are those of the row's prompt. Logs thoughts corrected and the share that was rewritten.

    Attributes:
        corrector: An engine, asked the rollout's prompt (with its pictures) and `text`, {thought} replaced by
            the first thought there; its answer, without <think> tags and what is behind them, is the
            corrected thought.
        asked: Rollouts corrected per step.
        size: D keeps the newest (DAgger aggregates all).
    """

    state_class = GtrState
    corrector: Mapping[str, Any] = field(default_factory=lambda: {"name": "openai"})
    text: str = (
        "\nAn agent thinks about this: {thought}\nCorrect its thought. Write the corrected thought alone."
    )
    asked: int = 8
    batch: int = 8
    size: int = 4096
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if min(self.asked, self.batch, self.size, self.max_tokens) < 1 or "{thought}" not in self.text:
            raise ValueError(
                f"asked={self.asked}, batch={self.batch}, size={self.size} and max_tokens must be at least "
                f"1, text must hold {{thought}}"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if self.state.corrector is None:
            self.state.corrector = build(Engine, dict(self.corrector), "replay.corrector")
            self.state.corrector.setup(run)

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        share = self.state.share("rewritten", "corrected")
        return {**self.state.totals("gtr", "corrected"), "gtr/rewritten": share}

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        state, run = self.state, self.run
        if state.saved:
            state.pairs, state.saved = unpacked(state.saved, run) + state.pairs, []
        draw = random.Random(f"{run.seed}/gtr/{run.step}/{run.rank}")
        thinking = [
            (r, m[1])
            for group in groups
            for r in group
            if (m := _THOUGHT.search(r.text)) is not None and r.source == "policy"
        ]
        chosen = draw.sample(thinking, min(self.asked, len(thinking)))
        state.pairs = [*state.pairs, *self.corrected(chosen, draw)][-self.size :]
        drawn = draw.sample(state.pairs, min(self.batch, len(state.pairs)))
        again = (
            [replace(rollout, signals={}, info={}) for rollout in group] for group in drawn
        )  # what a step computes does not stay in D
        return [*groups, *(Group(group.prompt, rollouts, group.id) for group, rollouts in zip(drawn, again))]

    def corrected(self, chosen: Sequence[tuple[Rollout, str]], draw: random.Random) -> list[Group]:
        """The corrected thoughts of rollouts, as groups of one rollout."""
        run, requests = self.run, []
        for place, (rollout, thought) in enumerate(chosen):
            prompt = replace(
                with_text(rollout.prompt, self.text.replace("{thought}", neutralised(thought))), prefix=""
            )
            sampling = replace(run.sampling(rollout.prompt, 0), max_tokens=self.max_tokens, stop=())
            requests.append(Request(prompt, sampling, 1, draw.getrandbits(62), tag=place))
        made: dict[int, Group] = {}
        for completion in self.state.corrector.generate(requests) if requests else ():
            place = completion.request.tag
            rollout, thought = chosen[place]
            better = completion.text.partition("</think>")[0].replace("<think>", "").strip()
            if better:
                self.state.add(corrected=1, rewritten=better != thought.strip())
                made[place] = self.pair(rollout, better, f"{run.step}/gtr/{rollout.row.id}/{place}")
        return [made[place] for place in sorted(made)]

    def pair(self, rollout: Rollout, thought: str, name: str) -> Group:
        """A corrected thought in the state of a rollout."""
        text = f"<think>{thought}</think>"
        ids = self.run.policy.encode_text(text.removeprefix(rollout.prompt.prefix))
        made = Rollout(
            rollout.prompt,
            ids,
            text,
            source=CORRECTED,
            spaces=rollout.spaces,
            version=self.run.policy.version,
        )
        return Group(rollout.prompt, [made], name)


@register("gtr.advantage")
@dataclass(frozen=True)
class GtrAdvantage(GAE):
    """GTR's PPO advantage: `gae` over the agent's own rollouts; corrected thoughts (source "corrected") get 0
    and no part in the whitening.

    Paper: arXiv:2503.08525, sec. 4.1 (L_PPO is over the agent's transitions, L_SFT over corrected thoughts);
    GAE: arXiv:1506.02438, eq. 16. The critic (callback `critic`) learns from the agent's own rollouts, too.
    Edge: a step of corrected thoughts alone gives zeros.
    """

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        own = [Group(group.prompt, [r for r in group if r.source != CORRECTED], group.id) for group in groups]
        values = [iter(row) for row in super().__call__(own)]
        for rollout in (r for group in groups for r in group if r.source == CORRECTED):
            TOKEN_ADVANTAGES.set(rollout, [0.0] * len(rollout))
            RETURNS.set(rollout, [0.0] * len(rollout))
        return [
            [0.0 if r.source == CORRECTED else next(row) for r in group]
            for group, row in zip(groups, values, strict=True)
        ]


@register("gtr.thought_weight")
@dataclass(frozen=True)
class GtrThoughtWeight(TokenWeight):
    """RL4VLM's weight of thoughts: log pi(turn) = lambda log p(thought) + log p(action), as a factor on the
    policy loss of each token.

    Thought tokens are those up to the first </think>; without that tag all are action tokens. Corrected
    thoughts (source "corrected") weigh 0: the SFT loss alone acts on them. Paper: Zhai et al. 2024,
    arXiv:2405.10292, sec. 4.3 (lambda 0.5). Deviates: the factor is on the loss of single tokens, there it is
    inside the ratio of the whole turn; on-policy the gradients are equal. Edge: in a conversation of several
    text turns only the first thought is weighted. Shapes: (B, T).
    """

    thought: float = 0.5

    def __post_init__(self) -> None:
        if self.thought < 0:
            raise ValueError(f"thought={self.thought} must not be negative")

    def __call__(self, x: LossInputs) -> Tensor:
        weight_BT = torch.ones_like(x.mask_BT)
        for b, rollout in enumerate(x.batch.rollouts):
            if rollout.source == CORRECTED:
                weight_BT[b] = 0.0
            else:
                weight_BT[b, : thought_tokens(rollout, self.run.policy)] = self.thought
        return weight_BT


def thought_tokens(rollout: Rollout, policy: Any) -> int:
    """The number of first tokens up to the first </think>, inclusive; 0 without the tag. By bisection over
    decoded beginnings."""
    if "</think>" not in policy.decode(rollout.ids):
        return 0
    low, high = 0, len(rollout.ids)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if "</think>" in policy.decode(rollout.ids[:middle]) else (middle + 1, high)
    return low

"""A conversation taken up again before its answer, with words put in by chance.

Conversations, and some wrong ones again from before their answer, after a sentence of doubt.

PPO's clip where some tokens were put into a rollout by chance, with a known probability.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from vlrl.functional import clipped_ratio_loss
from vlrl.methods.common.branching import spread
from vlrl.methods.common.conversation import Segment, Talk
from vlrl.methods.common.derived_prompts import accuracy
from vlrl.methods.core.rollout import MultiTurn
from vlrl.registry import ConfigError, register
from vlrl.stages import PolicyLoss
from vlrl.types import Group, LossInputs, PerToken, Prompt, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext


def chances(drawn: Sequence[int], bank: Sequence[Sequence[int]]) -> list[float]:
    """Per token of a text drawn evenly from `bank` its log-prob: the share of the texts that begin alike so far which go on with it."""
    counts = [sum(list(text[:n]) == list(drawn[:n]) for text in bank) for n in range(len(drawn) + 1)]
    return [math.log(after / before) for before, after in zip(counts, counts[1:])]


@dataclass(eq=False)
class Doubted(Talk):
    """A conversation that goes on after a doubt, which stands at the tokens `given`."""

    given: tuple[int, int] = (0, 0)

    def rollout(self, run: RunContext, finish: Any, **info: Any) -> Rollout:
        made = super().rollout(run, finish, **info)
        made.source = "probe"
        made.info["probe"] = self.given
        return made


def taken_up(place: int, rollout: Rollout, answer: str, doubts: Sequence[str], chosen: int, seed: int, run: RunContext) -> Doubted | None:
    """The conversation up to the last match of `answer`, in its last turn, and the chosen doubt; None where nothing matches there."""
    pattern, tokenizer, length = re.compile(answer, re.DOTALL), run.policy.tokenizer, len(rollout)
    own = spread(rollout.loss_mask if rollout.loss_mask is not None else True, length)
    begin = max((t + 1 for t, mine in enumerate(own) if not mine), default=0)
    end = next((t for t in reversed(range(begin, length)) if pattern.search(run.policy.decode(rollout.ids[t:]))), -1)
    matches = list(pattern.finditer(rollout.text))
    if end < 0 or not matches:
        return None
    bank = [tokenizer.encode(text, add_special_tokens=False) for text in doubts]
    words = rollout.text[: matches[-1].start()].removeprefix(rollout.prompt.prefix) + doubts[chosen]
    versions = spread(rollout.version, length)
    now = Segment(rollout.ids[:end], rollout.logp[:end], own[:end], versions[:end], [words])
    now.messages.append({"role": "assistant", "content": [{"type": "text", "text": rollout.prompt.prefix + words}]})
    now.add(bank[chosen], chances(bank[chosen], bank), True, [versions[-1]] * len(bank[chosen]))
    number, turns, calls = (rollout.info[key] for key in ("conversation", "turns", "calls"))
    given = (end, end + len(bank[chosen]))
    return Doubted(place, number, rollout.prompt, run.sampling(rollout.prompt, number), seed, now, turns, calls, given=given)


DOUBTS = (
    " Perhaps a step of this is wrong.", " Perhaps something important is missing.", " I may have misread the question.",
    " I may have overlooked a fact that matters.", " Something about this does not fit yet.", " Let me doubt that and look again.",
    " Let me check what I took for granted.", " That conclusion may have come too early.",
)  # fmt: skip


@register("rex_rag")
@dataclass(frozen=True)
class RexRag(MultiTurn):
    """n conversations as `multi_turn` has them (single answers without an `env`); of the wrong ones `share` are probed, the best probes join them.

    A probe keeps what was said up to the last match of `answer`, goes on with one of `doubts`, drawn evenly, and then is the policy's again. The
    doubt is trained on; its log-probs are those of the draw. Of a step's probes at most `keep` times the number of conversations stay, by reward,
    then by the likelihood of what the policy wrote after the doubt: source "probe", on top of the n; `info["probe"]` is where the doubt is.
    Paper: Jiang et al. 2025 (REX-RAG), arXiv:2508.08149; checked against execute_predictions and run_llm_loop of generation.py, against
    exploration_distribution.py and the script of the release (share 0.2, keep_ratio 0.08). Deviates: how the release chooses which probes to keep
    could not be read, the order is ours; so are the words (there 30 sentences that open with <think>); probes start when all conversations are over.
    Edge: conversations that were cut, show no match in their last turn, had pictures for a reply or have no turn left are not probed. Wrong is an
    accuracy of `least` or below in `slot` (empty: the first with a weight). Groups are ragged.
    """

    share: float = 0.2
    keep: float = 0.08
    answer: str = r"<answer>.*?</answer>"
    doubts: tuple[str, ...] = DOUBTS
    least: float = 0.5
    slot: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1 or self.keep <= 0 or not self.doubts:
            raise ValueError(f"share={self.share} must be in (0, 1], keep={self.keep} above 0, and doubts={self.doubts} hold a sentence")

    def check(self, run: RunContext) -> None:
        if run.environment is not None:
            super().check(run)
        if self.slot and self.slot not in run.rewards:
            raise ConfigError(f"strategy.slot: no reward slot {self.slot!r}; known: {', '.join(run.rewards)}")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        draw = random.Random(f"{run.seed}/rex_rag/{run.step}/{run.rank}")
        talks = [
            talk for place, group in enumerate(groups) for rollout in group
            if self.wrong(rollout, run) and draw.random() < self.share
            and (talk := taken_up(place, rollout, self.answer, self.doubts, draw.randrange(len(self.doubts)), self.seeds(run, group.prompt), run))
        ]  # fmt: skip
        active = talks
        while active:
            said = run.engine.generate([talk.request(getattr(run.environment, "stops", ())) for talk in active])
            active = sorted((c.request.tag for c in said if self.goes_on(run, c)), key=lambda talk: (talk.place, talk.number))
        found = [Group(groups[talk.place].prompt, talk.done, info={"place": talk.place}) for talk in talks if len(talk.done) == 1]
        run.score(found)
        best = sorted((g for g in found if len(g)), key=lambda g: (-accuracy(run, g.rollouts[0], self.slot), -self.ease(g.rollouts[0])))
        for probe in best[: int(self.keep * sum(counts) + draw.random())]:
            groups[probe.info["place"]].rollouts += probe.rollouts
        for group in groups:
            probes = [rollout for rollout in group if rollout.source == "probe"]
            for rollout in probes:
                rollout.info["probes"] = len(probes) / len(group)
        return groups

    def wrong(self, rollout: Rollout, run: RunContext) -> bool:
        """Whether it ended by itself, in one piece, with a turn to spare, and is wrong."""
        whole = rollout.finish == "stop" and rollout.info.get("segment") == 0 and rollout.info["turns"] < self.max_turns
        return whole and accuracy(run, rollout, self.slot) <= self.least

    @staticmethod
    def ease(rollout: Rollout) -> float:
        """The mean log-prob of what the policy wrote after the doubt."""
        written = rollout.logp[rollout.info["probe"][1] :]
        return math.fsum(written) / max(len(written), 1)


@register("rex_rag.balance_heuristic")
@dataclass(frozen=True)
class RexRagBalanceHeuristic(PolicyLoss):
    """-min(r A, clip(r, 1 - low, 1 + high) A), r = pi / mu; mu = (1 - a) pi_old + a q for the tokens that a probe was given, pi_old for all others.

    q is the probability that they were put in with (what the rollout notes as their log-prob), a the share of probes in the group: the mixture that
    the group was drawn from (Veach and Guibas 1995). Read from `rollout.info`: "probe" (first and last + 1 of those tokens) and "probes" (a).
    Paper: Jiang et al. 2025 (REX-RAG), arXiv:2508.08149, multiple importance sampling; q checked against exploration_distribution.py of the release.
    Deviates: the formula of the correction could not be read; this is the usual heuristic. Edge: |log q| and |log r| are held below 20.
    """

    low: float = 0.2
    high: float = 0.2

    def __call__(self, x: LossInputs) -> PerToken:
        mu_BT = x.old_logp_BT.clone()
        for row, rollout in enumerate(x.batch.rollouts):
            if "probe" in rollout.info:
                given, share = slice(*rollout.info["probe"]), torch.as_tensor(rollout.info["probes"], dtype=mu_BT.dtype, device=mu_BT.device)
                put = x.sampled_logp_BT[row, given].to(mu_BT).clamp(-20, 0)
                mu_BT[row, given] = torch.logaddexp(mu_BT[row, given] + (1 - share).log(), put + share.log())
        log_BT = ((x.logp_BT - mu_BT) * x.mask_BT).clamp(-20, 20)
        return clipped_ratio_loss(log_BT.exp(), x.advantage_BT, self.low, self.high)

"""Conversations, and some wrong ones again from before their answer, after a sentence of doubt."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.methods.strategy._derived import accuracy
from vlrl.methods.strategy._doubt import taken_up
from vlrl.methods.strategy.multi_turn import MultiTurn
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Prompt, Rollout

if TYPE_CHECKING:
    from vlrl.run import Run

DOUBTS = (
    " Perhaps a step of this is wrong.", " Perhaps something important is missing.", " I may have misread the question.",
    " I may have overlooked a fact that matters.", " Something about this does not fit yet.", " Let me doubt that and look again.",
    " Let me check what I took for granted.", " That conclusion may have come too early.",
)  # fmt: skip


@register("rex_rag")
@dataclass(frozen=True)
class Probing(MultiTurn):
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

    def check(self, run: Run) -> None:
        if run.env is not None:
            super().check(run)
        if self.slot and self.slot not in run.rewards:
            raise ConfigError(f"strategy.slot: no reward slot {self.slot!r}; known: {', '.join(run.rewards)}")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
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
            said = run.engine.generate([talk.request(getattr(run.env, "stops", ())) for talk in active])
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

    def wrong(self, rollout: Rollout, run: Run) -> bool:
        """Whether it ended by itself, in one piece, with a turn to spare, and is wrong."""
        whole = rollout.finish == "stop" and rollout.info.get("segment") == 0 and rollout.info["turns"] < self.max_turns
        return whole and accuracy(run, rollout, self.slot) <= self.least

    @staticmethod
    def ease(rollout: Rollout) -> float:
        """The mean log-prob of what the policy wrote after the doubt."""
        written = rollout.logp[rollout.info["probe"][1] :]
        return math.fsum(written) / max(len(written), 1)

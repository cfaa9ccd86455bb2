"""The plainest rewards: equal text, right tags."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.parsing import clean, last_answer


@register("exact")
@dataclass(frozen=True, kw_only=True)
class Exact(Reward):
    """r = 1 if the last committed answer equals the gold answer after Unicode folding (NFKC), case folding and trimming, else 0.

    Paper: DeepSeek-R1 (accuracy reward), arXiv:2501.12948, sec. 2.2.2. Deviations: the answer is the last commitment outside the thinking.
    Edge: no committed answer, an empty one, or several without a choice score 0. An empty gold answer raises ValueError.
    """

    case: bool = False

    def __call__(self, rollout: Rollout) -> float:
        gold = clean(str(rollout.answer if rollout.answer is not None else ""))
        if not gold:
            raise ValueError(f"row {rollout.row.id!r}: the gold answer is empty, so no answer can be right")
        said = clean(last_answer(rollout.text))
        return float(said == gold if self.case else said.casefold() == gold.casefold())


@register("tag_format")
@dataclass(frozen=True, kw_only=True)
class TagFormat(Reward):
    """r = 1 if the text is exactly `<think>...</think><answer>...</answer>` with each tag once, in order, none empty; else 0.

    Paper: DeepSeek-R1 (format reward), arXiv:2501.12948, sec. 2.2.2. `tags` names the blocks in order. White space may stand between blocks, nothing
    else. Edge: a tag written twice, an empty block, text before, between or after: 0.
    """

    tags: tuple[str, ...] = ("think", "answer")

    def __call__(self, rollout: Rollout) -> float:
        rest = rollout.text.strip()
        for tag in self.tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            if rollout.text.count(opening) != 1 or rollout.text.count(closing) != 1 or not rest.startswith(opening):
                return 0.0
            body, closed, rest = rest[len(opening) :].partition(closing)
            rest = rest.lstrip()
            if not closed or not any(char.isalnum() for char in body):
                return 0.0
        return float(not rest)

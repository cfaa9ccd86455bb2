"""LLM-I: interleaved text and pictures as tool use, paid by a rule for the number of pictures and by two
judges.

    llm_i               reward shaping: the hybrid reward
    llm_i.illustrated   environment (llm_i_environment.py): tools that draw the pictures, and the judges

Paper: Guo et al. 2025 (LLM-I), arXiv:2509.13642; checked against ByteDance-BandAI/LLM-I at a20e4090:
verl/workers/reward_manager/llmi.py and recipe/llmi/llmi_grpo.sh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vlrl.plugins.episodes import TURN_PARTS
from vlrl.plugins.registry import register
from vlrl.plugins.stages import RewardShaping
from vlrl.types import Group


def judged(parts: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The weighted mean of ratings from 1 to 5, scaled to [0, 1]: (s - 1) / 4; a missing rating is 1.

    >>> judged({"text": 5.0, "tags": 3.0}, {"text": 1.0, "tags": 1.0})
    0.75
    """
    total = sum(weights.values())
    return (
        (sum(weight * parts.get(name, 1.0) for name, weight in weights.items()) / total - 1.0) / 4.0
        if total
        else 0.0
    )


@register("llm_i")
@dataclass(frozen=True)
class LlmI(RewardShaping):
    """LLM-I's hybrid reward, in place of the total:

        R = count C + pictures C M + text L
        L = (w s - 1) / 4 over the text judge's ratings of the text and of the tags,   M likewise over the
        picture judge's three

    C is the score of the number of pictures, in [0, 1]; w s are weighted means, `weigh_text` and
    `weigh_tags`, `weigh_quality`, `weigh_relation` (to the text) and `weigh_query` (to the request). C times
    M: good pictures in a wrong number are worth less.
    Paper: arXiv:2509.13642, sec. 3 (reward); the values are the release's. Edge: a rollout whose document was
    cut, and has no ratings, gets 0. Range: 0 to count + pictures + text.
    """

    count: float = 0.2
    pictures: float = 0.3
    text: float = 0.5
    weigh_text: float = 1.4
    weigh_tags: float = 0.6
    weigh_quality: float = 1.0
    weigh_relation: float = 1.0
    weigh_query: float = 1.0
    requires = (TURN_PARTS,)

    def __post_init__(self) -> None:
        if (
            min(
                self.count,
                self.pictures,
                self.text,
                self.weigh_quality,
                self.weigh_relation,
                self.weigh_query,
                self.weigh_text,
                self.weigh_tags,
            )
            < 0
        ):
            raise ValueError("count, pictures, text and all weights must not be negative")
        if (
            self.weigh_text + self.weigh_tags <= 0
            or self.weigh_quality + self.weigh_relation + self.weigh_query <= 0
        ):
            raise ValueError("at least one weight of each judge must be above 0")

    def __call__(self, group: Group) -> list[float]:
        return [self.value(TURN_PARTS[rollout]) for rollout in group]

    def value(self, parts: Mapping[str, float]) -> float:
        """The reward of a document with these parts."""
        if "count" not in parts:
            return 0.0
        seen = judged(
            parts, {"quality": self.weigh_quality, "relation": self.weigh_relation, "query": self.weigh_query}
        )
        read = judged(parts, {"text": self.weigh_text, "tags": self.weigh_tags})
        return self.count * parts["count"] + self.pictures * parts["count"] * seen + self.text * read

"""How a text is written: in one language, without going round in circles."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vlrl.registry import register
from vlrl.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.formats import says_something
from vlrl_rewards.language import share_of


@register("language")
@dataclass(frozen=True, kw_only=True)
class Language(Reward):
    """r = share of the letters of the whole text (thinking too) that are of the wanted language's script; 0 where it is plainly another language.

    Paper: DeepSeek-R1 (language consistency reward), arXiv:2501.12948, sec. 2.3.2. Deviations: letters instead of words; LaTeX and tags do not count.
    Edge: no letters: 0. Units: [0, 1]. `language`: a two-letter code.
    """

    language: str = "en"

    def __call__(self, rollout: Rollout) -> float:
        return share_of(rollout.text, self.language)


@register("repetition")
@dataclass(frozen=True, kw_only=True)
class Repetition(Reward):
    """r = -penalty * (1 - unique / total) over the word n-grams of the whole text; characters stand in for words in scripts without blanks.

    Paper: Demystifying Long CoT, arXiv:2502.03373, app. (n-gram repetition penalty). Edge: fewer than n words: 0, unless nothing is said at all:
    -penalty.
    """

    n: int = 4
    penalty: float = 1.0

    def __call__(self, rollout: Rollout) -> float:
        words = re.findall(r"[^\W\d_]+|\d+|[^\w\s]", re.sub("([\u3040-\u30ff\u3400-\u9fff])", r" \1 ", rollout.text.casefold()))
        if not says_something(rollout.text):
            return -self.penalty
        total = len(words) - self.n + 1
        if total <= 0:
            return 0.0
        unique = len({tuple(words[i : i + self.n]) for i in range(total)})
        return -self.penalty * (1 - unique / total)

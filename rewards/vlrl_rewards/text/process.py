"""Process rewards: the reasoning text is scored, not the answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

from vlrl.plugins.registry import build, register
from vlrl.plugins.scoring import Answer, GoldError, Response, Unread, Verdict
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout, Row
from vlrl_rewards.combine.nested import number
from vlrl_rewards.graded import Graded
from vlrl_rewards.literals import fold
from vlrl_rewards.parsing import last_answer
from vlrl_rewards.puzzles.plans import alignment
from vlrl_rewards.text.mentions import words_of
from vlrl_rewards.text.metrics import rouge_l, rouge_n

MAX_CHARS = 100_000
_STEP = re.compile(r"\n|(?<=[.;!?])\s")
_THINK = re.compile(r"<think(?:ing)?>(.{0,40000}?)</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_STATED = re.compile(r"([A-Za-z])(\d{1,12}(?:[-+*/]\d{1,12}){1,8})=(-?\d{1,12})(?!\d)")
_TERM = re.compile(r"[-+*/]\d+")
PHRASES = (
    "i need to", "we need to", "first,", "next,", "then,", "finally,", "step by step", "let me", "let's",
    "let us", "suppose", "assume", "if we",
    "we know", "we can", "we have", "we get", "this means", "because", "since", "therefore", "thus", "hence",
    "so that", "as a result",
    "in other words", "for example", "note that", "wait", "however", "alternatively", "on the other hand",
    "check", "verify", "try again",
    "does not work", "doesn't work", "makes sense", "another way", "in total",
)  # fmt: skip


def thoughts(response: str) -> list[str]:
    """The contents of the closed thinking blocks in the first 100,000 characters of a response."""
    return _THINK.findall(response[:100_000])


def sentences(response: str) -> list[str]:
    """The sentences and lines of the closed thinking blocks as words without punctuation; at most 1,000."""
    return [
        " ".join(words)
        for block in thoughts(response)
        for part in _STEP.split(block)
        if (words := words_of(part))
    ][:1000]


def thinking(response: Response) -> Answer:
    """The response as the part that is read. Raises Unread where its closed thinking has no sentence."""
    if not sentences(response.text):
        raise Unread("no reasoning", response.whole)
    return response.whole


def section(response: Response, tag: str) -> Answer:
    """The content of the only `<tag>...</tag>` of a response, folded by `fold`. Raises Unread if there is
    none, more than one, or an empty one."""
    text, low = response.text, response.text.lower()
    if len(low) != len(text):  # the lower case of some letters is longer, then offsets would differ
        text = low
    opening, closing = f"<{tag.lower()}>", f"</{tag.lower()}>"
    once = low.count(opening) == low.count(closing) == 1
    start, end = (low.index(opening) + len(opening), low.index(closing)) if once else (0, 0)
    inner = fold(text[start:end]).strip()
    if not inner:
        raise Unread(f"no <{tag}> section, or several", response.whole)
    return Answer(inner, start, min(end, len(response.text)), "section")


def rouge_mean(said: str, gold: str) -> float:
    """Mean of the F1 of ROUGE-1, ROUGE-2 and ROUGE-L, in [0, 1]; of ROUGE-1 and ROUGE-L where the gold text
    has one word."""
    parts = [rouge_n(said, gold, 1), rouge_l(said, gold)] + (
        [rouge_n(said, gold, 2)] if " " in gold.strip() else []
    )
    return sum(parts) / len(parts)


@register("process_order")
@dataclass(frozen=True, kw_only=True)
class ProcessOrder(Graded):
    """MOSS-ChatV's process reward: the reasoning follows the order of the gold states.

        r = (mean similarity of the gold states, in order, to the reasoning's sentences) min(1, slack m / n)

    n: sentences, m: states. The similarity of two sentences is the mean of the F1 of ROUGE-1, ROUGE-2 and
    ROUGE-L. Paper: MOSS-ChatV, arXiv:2509.21113 (subsequence DTW between reasoning and reference steps with a
    distance of ROUGE-1, -2 and -L, after the paper's public reviews). Deviates: rewards/DEVIATIONS.md. Edge:
    no closed thinking block: 0. Range [0, 1]. Gold states: `row.meta[states]`, a list of texts. The answer is
    not read: combine with an accuracy reward (best as its gate).
    """

    states: str = "states"
    slack: float = 2.0
    correct_at: float = 0.5

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        states = [" ".join(words_of(str(s))) for s in row.meta.get(self.states, ())]
        if not states or not all(states):
            raise GoldError(
                f"states: row.meta[{self.states!r}] must be a list of texts, got "
                f"{row.meta.get(self.states)!r}"
            )
        thought = thinking(response)
        steps = sentences(thought.text)
        score = alignment(steps, states, rouge_mean) * min(1.0, self.slack * len(states) / len(steps))
        return self.scored(
            thought, score, score >= self.correct_at, f"{len(steps)} steps against {len(states)} states"
        )


@register("stated_steps")
@dataclass(frozen=True, kw_only=True)
class StatedSteps(Graded):
    """Process accuracy: gold steps that the thinking states.

        r = stated gold steps / gold steps

    A step is stated if its name, its terms (of a sum in any order) and its value agree. Paper: PreMidRL-
    Interplay, arXiv:2512.07783 (ProcessAcc: a step counts if its node, its parents and its value are those of
    the gold graph). A step is text such as "a27+5=32"; of repeated steps the last one counts. Edge: no closed
    thinking block, or no step: 0. Steps of other names are ignored. Range [0, 1]; correct only at 1. Gold:
    `row.meta[steps]`, a list of such texts, each of another name. The answer is not read: add an accuracy
    reward, or gate it by this one.
    """

    steps: str = "steps"

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        texts = row.meta.get(self.steps) or ()
        found = [_steps_of(text) if isinstance(text, str) else {} for text in texts]
        steps = {name: step for one in found for name, step in one.items()}
        if not steps or not len(texts) == len(steps) == sum(map(len, found)):
            raise GoldError(
                f"steps: row.meta[{self.steps!r}] must be a list of texts such as 'a27+5=32', each of "
                f"another name, got {texts!r}"
            )
        said = {name: step for block in thoughts(response.text) for name, step in _steps_of(block).items()}
        hits = sum(said.get(name) == step for name, step in steps.items())
        return self.scored(
            response.whole, hits / len(steps), hits == len(steps), f"{hits} of {len(steps)} steps"
        )


def _steps_of(text: str) -> dict[str, tuple[tuple[str, ...], str]]:
    """name -> (sorted terms, value) of every step; the last one of a name counts."""
    return {
        name: (tuple(sorted(_TERM.findall(f"+{uses}"))), value)
        for name, uses, value in _STATED.findall(re.sub(r"[^\S\n]+", "", text))
    }


@register("reasoning_phrases")
@dataclass(frozen=True, kw_only=True)
class ReasoningPhrases(Reward):
    """Reasoning pattern reward: phrases of reasoning, less repetition.

        r = max(0, min(1, k / enough) - q - t)

    k: the phrases of the list that occur in the text; q: the share of its word `n`-grams that repeat earlier
    ones (`count` "repeats"), or the number of different repeated ones over all n-grams ("kinds", as
    released); t: the occurrences of the texts of `takes`. With the reward `of`: r = r_of where r_of > 0, else
    the value above. No answer: 0. Paper: Lv et al. 2025 (reasoning pattern reward), arXiv:2505.22653;
    released code: 40 phrases of which 20 are enough, 20-grams, "user: " taken. Deviates:
    rewards/DEVIATIONS.md. Edge: a phrase counts once; the answer's content is not read. Range [0, 1], or that
    of the reward `of`.
    """

    reads_answer: ClassVar[bool] = False
    of: Mapping[str, Any] = field(default_factory=dict)
    phrases: tuple[str, ...] = PHRASES
    enough: int = 20
    n: int = 20
    count: Literal["repeats", "kinds"] = "repeats"
    takes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.enough < 1 or self.n < 1 or not self.phrases:
            raise ValueError(
                f"enough, n, phrases: must be above 0, got {self.enough}, {self.n} and {len(self.phrases)} "
                "phrases"
            )
        _ = self.inner  # built now, so that a wrong config is refused at once

    @cached_property
    def inner(self) -> Reward | None:
        """The reward that `of` configures; None without `of`."""
        return build(Reward, dict(self.of), "reasoning_phrases.of") if self.of else None

    @property
    def inner_rewards(self) -> tuple[Reward, ...]:
        return (self.inner,) if self.inner is not None else ()

    def __call__(self, rollout: Rollout) -> float:
        outcome = number(self.inner, rollout) if self.inner is not None else 0.0
        if outcome > 0:
            return outcome
        if not any(char.isalnum() for char in last_answer(rollout.text)):
            return 0.0
        text = rollout.text[:MAX_CHARS].casefold()
        found = sum(phrase in text for phrase in self.phrases)
        words = text.split()
        grams = Counter(tuple(words[i : i + self.n]) for i in range(len(words) - self.n + 1))
        repeats = (
            grams.total() - len(grams)
            if self.count == "repeats"
            else sum(times > 1 for times in grams.values())
        )
        repeated = repeats / grams.total() if grams else 0.0
        taken = sum(map(text.count, self.takes))
        return max(0.0, min(1.0, found / self.enough) - repeated - taken)

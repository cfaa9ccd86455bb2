"""Answers about kernel configurations: options that raise or lower a figure, options to set, one choice,
values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.episodes import ACTIONS
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError
from vlrl.plugins.stages import Reward
from vlrl.plugins.tool_calls import last_tagged
from vlrl.types import Rollout
from vlrl_rewards.tool_use import turns_of

UNCLEAR = "cannot determine impact without specific context"
EFFECTS = ("increase", "decrease", UNCLEAR)


def unbracketed(line: str) -> tuple[str, bool]:
    """The line without its square brackets, and whether it had both."""
    return (line[1:-1], True) if len(line) > 1 and line[0] == "[" and line[-1] == "]" else (line, False)


def bool_score(answer: str, gold: Mapping[str, str]) -> float:
    """Lines "[OPTION - effect]": 0.1 each for brackets, for one hyphen and for a known effect on every line,
    and 0.7 times the recall."""
    left, good = dict(gold), 0
    form = {"brackets": True, "hyphen": True, "effect": bool(answer.strip())}
    for line in filter(None, answer.split("\n")):
        inner, bracketed = unbracketed(line)
        parts = [part.strip() for part in inner.split("-")]
        form["brackets"] &= bracketed
        form["hyphen"] &= len(parts) == 2
        if len(parts) != 2:
            continue
        form["effect"] &= parts[1] in EFFECTS
        good += left.pop(parts[0].lower(), None) == parts[1]
    return 0.1 * sum(form.values()) + 0.7 * good / len(gold)


def menu_score(answer: str, gold: list[str]) -> float:
    """Lines "[OPTION]": 0.1 for brackets on every line, and 0.9 times the recall."""
    lines = [unbracketed(line) for line in filter(None, answer.split("\n"))]
    good = len({inner.lower() for inner, _ in lines} & {option.lower() for option in gold})
    return 0.1 * all(bracketed for _, bracketed in lines) + 0.9 * good / len(gold)


def choice_score(answer: str, gold: str) -> float:
    """One "[OPTION]": 0.2 for the brackets, 0.8 for the option; an empty answer 0."""
    inner, bracketed = unbracketed(answer)
    return 0.2 * bracketed + 0.8 * (inner.lower() == gold.lower()) if answer else 0.0


def value_score(answer: str, gold: list[str]) -> float:
    """Lines "OPTION=value": the recall; an option with several values does not count."""
    lines = {line.lower() for line in answer.split("\n")}
    stated = Counter(line.partition("=")[0].strip() for line in lines)
    clear = {line for line in lines if stated[line.partition("=")[0].strip()] == 1}
    return len(clear & {line.lower() for line in gold}) / len(gold)


SCORES: dict[str, Callable[[str, Any], float]] = {
    "Bool": bool_score,
    "Menu": menu_score,
    "Choice": choice_score,
    "Value": value_score,
}
GOLDS: dict[str, Callable[[Any], bool]] = {
    "Bool": lambda gold: (
        isinstance(gold, Mapping) and all(isinstance(effect, str) for effect in gold.values())
    ),
    "Menu": lambda gold: _is_texts(gold),
    "Choice": lambda gold: isinstance(gold, str),
    "Value": lambda gold: _is_texts(gold),
}
_TURN = re.compile(
    r"<think>(?:(?!</?think>).)*</think>\s*<(tool_call|answer)>(?:(?!</?\1>).)*</\1>\s*", re.DOTALL
)


def _is_texts(gold: Any) -> bool:
    return isinstance(gold, list) and all(isinstance(line, str) for line in gold)


def typed_gold(answer: Any) -> tuple[str, Any]:
    """(type, gold) of a row's answer. Raises GoldError if it has another form, or is empty."""
    kind, gold = (answer.get("type"), answer.get("gold")) if isinstance(answer, Mapping) else (None, None)
    if not isinstance(kind, str) or kind not in SCORES:
        raise GoldError(f'gold: {answer!r} is not {{"type": one of {", ".join(SCORES)}, "gold": ...}}')
    if not gold or not GOLDS[kind](gold):
        raise GoldError(
            f"gold: {gold!r} is no gold of type {kind}; Bool: option to effect, Menu and Value: a list of "
            "texts, Choice: an option"
        )
    return kind, gold


@register("kernel_config")
@dataclass(frozen=True, kw_only=True)
class KernelConfig(Reward):
    """OS-R1's reward of a conversation about kernel options.

        r = -1 + format + answer 1[format = 1]
        format = 0.45 1[a turn before the last is a thought and one tool call] + 0.55 1[the last turn is a
        thought and an answer]

    The gold answer is {"type": "Bool", "Menu", "Choice" or "Value", "gold": ...}; the answer's score is that
    of its type, in [0, 1]: `bool_score` (gold: option to effect), `menu_score` and `value_score` (gold: a
    list), `choice_score` (gold: an option). Correct is r = 1 alone. Paper: Lin et al. 2025 (OS-R1),
    arXiv:2508.12551, sec. 3. Deviates: rewards/DEVIATIONS.md. Edge: without a tool call the format is 0.55 at
    most.
    """

    requires = (ACTIONS,)

    def __call__(self, rollout: Rollout) -> float:
        kind, gold = typed_gold(rollout.answer)
        turns = turns_of(rollout)
        found = [match[1] if (match := _TURN.fullmatch(turn.strip())) else "" for turn in turns]
        looked, answered = "tool_call" in found[:-1], bool(found) and found[-1] == "answer"
        form = 0.45 * looked + 0.55 * answered
        if not (looked and answered):
            return -1.0 + form
        answer = (last_tagged(turns[-1], "answer") or "").strip()
        return SCORES[kind](answer, gold)

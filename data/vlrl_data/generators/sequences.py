"""Sequence problems with a unique optimum, and compositions of string functions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer

Span = tuple[int, int]
TRIES = 1000


def best_chain(count: int, joins: Callable[[int, int], bool]) -> tuple[list[int], int]:
    """A longest chain i_1 < i_2 < ... of 0 .. count - 1 in which every neighbour pair joins, and how many
    longest ones there are."""
    length, ways, before = [1] * count, [1] * count, [-1] * count
    for j in range(count):
        for i in [i for i in range(j) if joins(i, j)]:
            if length[i] + 1 > length[j]:
                length[j], ways[j], before[j] = length[i] + 1, ways[i], i
            elif length[i] + 1 == length[j]:
                ways[j] += ways[i]
    longest = max(length)
    ends = [j for j in range(count) if length[j] == longest]
    chain, at = [], ends[0]
    while at >= 0:
        chain.append(at)
        at = before[at]
    return chain[::-1], sum(ways[j] for j in ends)


def longest_increasing(values: Sequence[int]) -> tuple[list[int], int]:
    """Positions of a longest strictly increasing subsequence, and the number of longest ones."""
    return best_chain(len(values), lambda i, j: values[i] < values[j])


def most_activities(spans: Sequence[Span]) -> tuple[list[int], int]:
    """Positions, in order of time, of a largest set of activities without overlap (touching is allowed), and
    the number of largest sets."""
    order = sorted(range(len(spans)), key=lambda i: (spans[i][1], spans[i][0]))
    chain, ways = best_chain(len(spans), lambda i, j: spans[order[i]][1] <= spans[order[j]][0])
    return [order[i] for i in chain], ways


@register("gen_sequence")
@dataclass(frozen=True, kw_only=True)
class GenSequence(GeneratedSource):
    """`ask` "lis": the longest increasing subsequence; "scheduling": the most activities without overlap. The
    optimum is unique.

    Paper: arXiv:2510.27044 (both problems, with unique optima; numbers and sizes here are ours). The answer
    is {"value": length, "ids": [...]}, with ids from 1 in order of place or of time. Reward: `sequence`, for
    the value, the ids, or both.
    """

    ask: Literal["lis", "scheduling"] = "lis"
    items: int = 6
    largest: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.items < 2 or self.largest < self.items:
            raise ConfigError(
                f"items={self.items} must be 2 or more, and largest={self.largest} at least items"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        for _ in range(TRIES):
            question, ids, ways = (self._lis if self.ask == "lis" else self._scheduling)(rng)
            if ways == 1:
                break
        else:
            raise ConfigError(
                f"gen_sequence: no problem with a single best solution in {TRIES} tries; lower items or "
                "raise largest"
            )
        found = [i + 1 for i in ids]
        question += "\nAnswer as `number: ids`, for instance `2: 1 4`."
        answer = {"value": len(found), "ids": found}
        return Row(
            self.id(index),
            question,
            answer,
            task=self.ask,
            target=tagged_answer(f"{len(found)}: {' '.join(map(str, found))}"),
        )

    def _lis(self, rng: random.Random) -> tuple[str, list[int], int]:
        values = rng.sample(range(1, self.largest + 1), self.items)
        listed = ", ".join(f"{i + 1}) {value}" for i, value in enumerate(values))
        return (
            f"Numbers: {listed}. Which is the longest strictly increasing subsequence?",
            *longest_increasing(values),
        )

    def _scheduling(self, rng: random.Random) -> tuple[str, list[int], int]:
        drawn = [rng.sample(range(self.largest + 1), 2) for _ in range(self.items)]
        spans = [(min(pair), max(pair)) for pair in drawn]
        listed = ", ".join(f"{i + 1}) {start}-{end}" for i, (start, end) in enumerate(spans))
        return (
            f"Activities (start-end): {listed}. Which is the largest set without overlap?",
            *most_activities(spans),
        )


FUNCTIONS: dict[str, tuple[str, Callable[[str], str]]] = {
    "f1": ("reverses its string", lambda text: text[::-1]),
    "f2": ("writes its string twice", lambda text: text * 2),
    "f3": ("moves the first letter to the end", lambda text: text[1:] + text[:1]),
    "f4": ("drops the last letter", lambda text: text[:-1]),
    "f5": (
        "swaps the first and the last letter",
        lambda text: text[-1] + text[1:-1] + text[0] if len(text) > 1 else text,
    ),
    "f6": ("puts an x in front", lambda text: "x" + text),
    "f7": ("keeps every second letter, from the first on", lambda text: text[::2]),
    "f8": ("sorts its letters", lambda text: "".join(sorted(text))),
}


@register("gen_compose")
@dataclass(frozen=True, kw_only=True)
class GenCompose(GeneratedSource):
    """h(x) = g_depth(... g_1(x)) for functions drawn from `functions`; the answer is the resulting string.

    Paper: arXiv:2509.25123 (string functions, first taught one by one, then composed; these are ours). With
    `define` the prompt says what each function does; without it, the policy must have learned the functions,
    in a cold start at depth 1. To hold functions out, give train and held-out rows different `functions`.
    Reward: `exact`.
    """

    depth: int = 2
    letters: int = 4
    functions: tuple[str, ...] = tuple(FUNCTIONS)
    define: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [name for name in self.functions if name not in FUNCTIONS]
        if unknown or not self.functions:
            raise ConfigError(f"functions: {unknown or 'none given'}; choose from {', '.join(FUNCTIONS)}")
        if self.depth < 1 or self.letters < self.depth + 1:
            raise ConfigError(
                f"depth={self.depth} must be 1 or more, and letters={self.letters} more than depth, so "
                "that no string becomes empty"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        while True:
            text = "".join(rng.choice("abcdefgh") for _ in range(self.letters))
            chosen = [rng.choice(self.functions) for _ in range(self.depth)]
            result = text
            for name in chosen:
                result = FUNCTIONS[name][1](result)
            if result:  # f4 and f7 shorten
                break
        call = text
        for name in chosen:
            call = f"{name}({call})"
        known = (
            " ".join(f"{name} {FUNCTIONS[name][0]}." for name in sorted(set(chosen))) + " "
            if self.define
            else ""
        )
        return Row(
            self.id(index),
            f"{known}What is {call}?",
            result,
            task="compose",
            target=tagged_answer(result),
            meta={"depth": self.depth},
        )

"""Questions whose answers stand in a corpus and nowhere else: facts about invented people and towns.

`documents(seed)` is the corpus, one document per person and per town. Environment `search` serves it where no
other corpus is named.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer

PEOPLE, TOWNS = 400, 60
FIRST, MIDDLE, LAST = (
    ("Ba", "Ce", "Do", "Fi", "Gu", "Ka", "Le", "Mo", "Ni", "Pu", "Ra", "Te"),
    ("l", "m", "n", "r", "s", "v"),
    ("a", "e", "i", "o", "u"),
)
ENDINGS = ("dan", "kel", "mor", "rin", "sto", "vek", "wyn", "zar")
CRAFTS = (
    "baker",
    "clockmaker",
    "dyer",
    "glazier",
    "mason",
    "potter",
    "printer",
    "sailor",
    "tailor",
    "weaver",
)
THOUGHT = re.compile("<think>.*?</think>")
KINDS = ("home", "craft", "birth", "river", "given")


class Person(NamedTuple):
    """An invented person."""

    name: str
    town: str
    craft: str
    birth: int


class World(NamedTuple):
    """People, and the river of every town."""

    people: tuple[Person, ...]
    rivers: Mapping[str, str]


@cache
def world(seed: int = 0) -> World:
    """The invented world of a seed: a pure function of it. Every name stands for one person, town or
    river."""
    rng = random.Random(f"lookup world {seed}")
    stems = [a + m + b for a in FIRST for m in MIDDLE for b in LAST]
    names = rng.sample([stem + end for stem in stems for end in ENDINGS], PEOPLE + 2 * TOWNS)
    towns, rivers = names[PEOPLE : PEOPLE + TOWNS], names[PEOPLE + TOWNS :]
    people = tuple(
        Person(name, rng.choice(towns), rng.choice(CRAFTS), rng.randint(1700, 1899))
        for name in names[:PEOPLE]
    )
    return World(people, dict(zip(towns, rivers, strict=True)))


@cache
def documents(seed: int = 0) -> tuple[tuple[str, str], ...]:
    """(title, text) of every document about the world of a seed."""
    made = world(seed)
    people = [
        (p.name, f"{p.name} is a {p.craft} who was born in {p.birth} and lives in {p.town}.")
        for p in made.people
    ]
    return (
        *people,
        *((town, f"{town} is a town on the river {river}.") for town, river in made.rivers.items()),
    )


class LookupQuestion(NamedTuple):
    """A question, its answer, and the queries that find it, one after another."""

    text: str
    answer: str
    queries: tuple[str, ...]


def question(person: Person, kind: str, rivers: Mapping[str, str]) -> LookupQuestion:
    """A question about a person. `river` needs two documents; `given` states the fact, so that no search is
    needed."""
    name, town = person.name, person.town
    return {
        "home": LookupQuestion(f"In which town does {name} live?", town, (name,)),
        "craft": LookupQuestion(f"What is the craft of {name}?", person.craft, (name,)),
        "birth": LookupQuestion(f"In which year was {name} born?", str(person.birth), (name,)),
        "river": LookupQuestion(
            f"On which river is the town where {name} lives?", rivers[town], (name, town)
        ),
        "given": LookupQuestion(f"{name} lives in {town}. In which town does {name} live?", town, ()),
    }[kind]


@register("gen_lookup")
@dataclass(frozen=True, kw_only=True)
class GenLookup(GeneratedSource):
    """Questions about invented people, one of the kinds `ask` each: home, craft, birth (one document), river
    (two), given (the fact is stated).

    vlrl original. The facts of world `world_seed` stand in the corpus of environment `search` alone. `meta`
    has `kind`, `known` (1 where the question states the answer) and `queries`; the demonstration (`target`;
    its turns in `meta["turns"]`, for rollout `expert_turns`) searches where that is needed, and answers;
    without `thoughts` it has no <think>. A share `guessed` of the demonstrations that need a search answers
    at once, with a fact about another person: such a cold start teaches both forms, and not which one pays.
    Every fifth person is held out.
    """

    ask: tuple[str, ...] = field(default=("home", "craft", "birth"))
    world_seed: int = 0
    thoughts: bool = True
    guessed: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = sorted(set(self.ask) - set(KINDS))
        if unknown or not self.ask:
            raise ConfigError(
                f"ask: {', '.join(unknown) or 'none'} given. Known: {', '.join(KINDS)}; give at least one "
                "of them."
            )
        if not 0 <= self.guessed <= 1:
            raise ConfigError(
                f"guessed: {self.guessed} is not between 0 and 1; it is the share of demonstrations that "
                "do not search"
            )

    def row(self, index: int) -> Row:
        rng, made = self.rng(index), world(self.world_seed)
        place = rng.randrange(PEOPLE // 5) * 5 + (0 if self.split == "heldout" else rng.randint(1, 4))
        kind = rng.choice(self.ask)
        asked = question(made.people[place], kind, made.rivers)
        searches = [searching(query) for query in asked.queries]
        turns = [*searches, answering(asked.answer)]
        if searches and rng.random() < self.guessed:
            turns = [answering(question(rng.choice(made.people), kind, made.rivers).answer)]
        meta: dict[str, Any] = {"kind": kind, "known": int(not searches), "queries": list(asked.queries)}
        meta["turns"] = turns if self.thoughts else [THOUGHT.sub("", turn) for turn in turns]
        target = "".join([*searches, answering(asked.answer)])
        return Row(self.id(index), asked.text, asked.answer, task="lookup", target=target, meta=meta)


def searching(query: str) -> str:
    """A demonstrated turn with a query. The spaces around the query make its tokens those of the question and
    of the documents."""
    return f"<think>Look up {query}.</think><search> {query} </search>"


def answering(answer: str) -> str:
    """A demonstrated last turn."""
    return f"<think>It is {answer}.</think>{tagged_answer(answer)}"

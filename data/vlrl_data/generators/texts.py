"""Text tasks for rewards that need more than a number: choices, forecasts, theorems, tables, dates, terms,
patches, instructions and others.

Every row is made from a small world of its own (people, towns, fruits, an invented language), so that nothing
can be known by heart, and carries the gold answer in the form that its reward reads, with a demonstration.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer

PEOPLE = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana")
TOWNS = ("Arlen", "Birk", "Corva", "Delm", "Esk", "Farro", "Gild", "Holt")
FRUITS = ("apples", "pears", "plums", "figs", "limes", "dates")
WORDS = {
    "dog": "kavo",
    "cat": "mire",
    "bird": "tuli",
    "tree": "soga",
    "house": "balo",
    "river": "neva",
    "sees": "ipa",
    "likes": "oru",
    "finds": "uma",
}
SUBJECTS, VERBS = ("dog", "cat", "bird", "tree", "house", "river"), ("sees", "likes", "finds")


class Made(NamedTuple):
    """What a row of a task has."""

    question: str
    answer: Any
    target: str = ""
    meta: Mapping[str, Any] = {}
    choices: tuple[str, ...] = ()
    task: str = ""


@dataclass(frozen=True, kw_only=True)
class AskedSource(GeneratedSource):
    """Questions of the kinds `ask`, drawn evenly; the row's task is the kind, unless the question names one.

    Held-out rows are those whose question is hashed, with `salt`, into a fixed fifth of all questions.
    """

    makers: ClassVar[Mapping[str, Callable[[random.Random], Made]]]
    salt: ClassVar[str]
    ask: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = sorted(set(self.ask) - set(self.makers))
        if unknown or not self.ask:
            raise ConfigError(
                f"ask: {', '.join(unknown) or 'none'} given. Known: {', '.join(self.makers)}; give at least "
                "one of them."
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        kind = rng.choice(self.ask)
        while True:
            made = self.makers[kind](rng)
            heldout = random.Random(f"{self.salt} split {made.question}").random() < 0.2
            if heldout == (self.split == "heldout"):
                break
        return Row(
            self.id(index),
            made.question,
            made.answer,
            choices=made.choices,
            task=made.task or kind,
            target=made.target,
            meta=dict(made.meta),
        )


def _thought(text: str, answer: str) -> str:
    return f"<think>{text}</think>{tagged_answer(answer)}"


def _cities(rng: random.Random) -> dict[str, str]:
    """Person -> the town where the person lives."""
    return dict(zip(rng.sample(PEOPLE, 4), rng.sample(TOWNS, 4)))


def qa(rng: random.Random) -> Made:
    """Where does a person live: one fact of four."""
    homes = _cities(rng)
    who = rng.choice(sorted(homes))
    facts = " ".join(f"{person} lives in {town}." for person, town in homes.items())
    info = f"{who} lives in {homes[who]}."
    said = (
        f"<think>Where is {who}?</think><search>{who}</search><information>{info}</information><think>So "
        f"{homes[who]}.</think>"
    )
    return Made(f"{facts} Where does {who} live?", homes[who], said + tagged_answer(homes[who]))


def choice(rng: random.Random) -> Made:
    """A multiple-choice question with four options; the answer is a letter."""
    homes = _cities(rng)
    who = rng.choice(sorted(homes))
    options = rng.sample(sorted(homes.values()), 4)
    letter = "ABCD"[options.index(homes[who])]
    facts = " ".join(f"{person} lives in {town}." for person, town in homes.items())
    return Made(
        f"{facts} Where does {who} live?",
        letter,
        _thought(f"{who} lives in {homes[who]}.", letter),
        choices=tuple(options),
    )


def forecast(rng: random.Random) -> Made:
    """Rain or not tomorrow, drawn with the stated frequency; the answer is the outcome, 0 or 1."""
    days, wet = 20, rng.randint(1, 19)
    outcome = int(rng.random() < wet / days)
    town = rng.choice(TOWNS)
    question = f"On {wet} of the last {days} days it rained in {town}. Will it rain there tomorrow?"
    return Made(
        question,
        outcome,
        _thought(f"It rained on {wet} of {days} days.", f"{wet / days:.2f}"),
        {"rate": wet / days},
    )


def theorem(rng: random.Random) -> Made:
    """A claim about all even or odd numbers, true or false; the answer is proved or disproved."""
    a, b = rng.randint(2, 9), rng.randint(1, 9)
    kind, parity = rng.choice((("even", 0), ("odd", 1)))
    holds = a % 2 == 0 and b % 2 == parity
    verdict = "proved" if holds else "disproved"
    return Made(
        f"For every integer n, {a} n + {b} is {kind}.",
        verdict,
        _thought(f"Look at {a} and {b} modulo 2.", f"\\boxed{{{verdict}}}"),
    )


def steps(rng: random.Random) -> Made:
    """Sums one after another: every sum before the last one is an intermediate answer."""
    values = [rng.randint(1, 9) for _ in range(3)]
    first, last = values[0] + values[1], sum(values)
    question = f"Start with {values[0]}, add {values[1]}, then add {values[2]}."
    said = _thought(f"{values[0]}+{values[1]}", str(first)) + _thought(f"{first}+{values[2]}", str(last))
    return Made(question, str(last), said, {"steps": [str(first)]})


def instructions(rng: random.Random, fewest: int = 3) -> Made:
    """Verifiable instructions of IFEval: a number of words (`fewest` to 6), a keyword, lower case, no
    comma."""
    fruit, words = rng.choice(FRUITS), rng.randint(fewest, 6)
    specs: list[dict[str, Any]] = [
        {"id": "length_constraints:number_words", "num_words": words, "relation": "at most"},
        {"id": "keywords:existence", "keywords": [fruit]},
        {"id": rng.choice(("punctuation:no_comma", "change_case:english_lowercase"))},
    ]
    question = f"Write at most {words} words about {fruit}, name them, write no comma and no capital letters."
    return Made(question, specs, f"i like {fruit}")


def soft_instructions(rng: random.Random) -> Made:
    """`instructions` with a constraint that no rule checks: a judge has to say whether the text is polite."""
    made = instructions(rng, fewest=4)
    return Made(
        f"{made.question} Be polite.",
        made.answer,
        f"{made.target} please",
        {"constraints": ["The text is polite."]},
    )


def ranking(rng: random.Random) -> Made:
    """Four passages about towns; those that answer the question are relevant, and the best order puts them
    first."""
    homes = _cities(rng)
    who = rng.choice(sorted(homes))
    order = list(range(1, 5))
    passages = [f"{person} lives in {town}." for person, town in homes.items()]
    best = next(i for i, person in enumerate(homes, 1) if person == who)
    gold = [best, *(i for i in order if i != best)]
    listed = " ".join(f"[{i}] {text}" for i, text in enumerate(passages, 1))
    answer = " > ".join(f"[{i}]" for i in gold)
    return Made(
        f"{listed} Rank the passages for: where does {who} live?",
        gold,
        _thought(f"Passage {best}.", answer),
        {"relevant": [best]},
    )


def translation(rng: random.Random) -> Made:
    """A sentence to put into an invented language whose words are given."""
    subjects, verb = rng.sample(SUBJECTS, 2), rng.choice(VERBS)
    english = (subjects[0], verb, subjects[1], "near", "the", "old", rng.choice(SUBJECTS))
    lexicon = {**WORDS, "near": "da", "the": "lo", "old": "vek"}
    gold = " ".join(lexicon[word] for word in english)
    told = ", ".join(f"{word} = {lexicon[word]}" for word in dict.fromkeys(english))
    return Made(f"Translate: {' '.join(english)}. Words: {told}.", gold, _thought("word by word", gold))


def terms(rng: random.Random) -> Made:
    """`translation`, with the terms that must be right."""
    made = translation(rng)
    nouns = made.answer.split()
    wanted = [nouns[0], nouns[2]]
    return made._replace(
        target=_thought(f"The terms are {wanted[0]} and {wanted[1]}.", made.answer), meta={"terms": wanted}
    )


def _month_text(months: int) -> str:
    return f"{months // 12}-{months % 12 + 1:02d}"


def _date(rng: random.Random) -> tuple[int, str]:
    months = rng.randrange(12 * 2016, 12 * 2024)
    return months, _month_text(months)


def date(rng: random.Random) -> Made:
    """The month of an event, told by a distance from a known one; beyond nine months it is marked hard."""
    months, text = _date(rng)
    ahead = rng.randint(1, 18)
    later = _month_text(months + ahead)
    question = (
        f"The fair was in {text}. The race was {ahead} months later. When was the race? Answer as YYYY-MM."
    )
    return Made(question, later, _thought("count", later), {"hard": ahead > 9})


def date_gap(rng: random.Random) -> Made:
    """Two dates and the months between them."""
    (a, first), (b, second) = _date(rng), _date(rng)
    answer = f"{first}, {second}: {abs(a - b)}"
    question = (
        f"The fair was in {first}, the race in {second}. Give both dates and the months between them, as "
        "YYYY-MM, YYYY-MM: N."
    )
    return Made(question, [first, second], _thought("count", answer))


MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)


def event_order(rng: random.Random) -> Made:
    """Three events of different months: their dates and their order, which the second and the third event's
    distances tell."""
    (start, first), distances = (
        _date(rng),
        rng.sample([months for months in range(-18, 19) if abs(months) > 1], 2),
    )
    months = [start, *(start + distance for distance in distances)]
    dates = [_month_text(month) for month in months]
    order = "-".join(str(i + 1) for i in sorted(range(3), key=lambda i: months[i]))
    told = ", ".join(
        f"{what} {abs(d)} months {'later' if d > 0 else 'earlier'}"
        for what, d in zip(("2. the race", "3. the vote"), distances)
    )
    question = (
        f"1. the fair was in {first}, {told}. Give the dates and the order, as YYYY-MM, YYYY-MM, YYYY-MM: "
        "N-N-N."
    )
    return Made(question, dates, _thought("count", f"{', '.join(dates)}: {order}"))


def entity(rng: random.Random) -> Made:
    """An event's date, and the month or the year that its text leaves out."""
    month, text = _date(rng)
    before, name, year = MONTHS[(month - 1) % 12], MONTHS[month % 12], str(month // 12)
    hides_year = rng.random() < 0.5
    late = f"The fair was in {name} [MASK], {month // 12 - 2015} years after 2015."
    told = late if hides_year else f"The fair was in [MASK] {year}, one month after {before}."
    masked = year if hides_year else name
    return Made(
        f"{told} Give its date and the masked word, as YYYY-MM, word.",
        [text, masked],
        _thought("mask", f"{text}, {masked}"),
    )


def _table(rng: random.Random) -> tuple[dict[str, int], str, str]:
    """(town -> number, the table as text, the name of the counted column)."""
    fruit = rng.choice(FRUITS)
    counts = {town: rng.randint(1, 20) for town in rng.sample(TOWNS, 3)}
    return counts, f"town | {fruit}; " + "; ".join(f"{town} | {n}" for town, n in counts.items()), fruit


def table_qa(rng: random.Random) -> Made:
    """Which towns have more than a number of things; the answer is a list."""
    counts, text, fruit = _table(rng)
    bound = sorted(counts.values())[0]
    gold = [town for town, n in counts.items() if n >= bound]
    answer = ", ".join(gold)
    return Made(f"{text}. Which towns have at least {bound} {fruit}?", gold, _thought("compare", answer))


def table_number(rng: random.Random) -> Made:
    """A sum over a column."""
    counts, text, fruit = _table(rng)
    return Made(
        f"{text}. How many {fruit} in all?", sum(counts.values()), _thought("add", str(sum(counts.values())))
    )


def table_fact(rng: random.Random) -> Made:
    """A claim about a table: SUPPORTS or REFUTES."""
    counts, text, fruit = _table(rng)
    town, stated = rng.choice(sorted(counts)), rng.randint(1, 20)
    if rng.random() < 0.5:
        stated = counts[town]
    verdict = "SUPPORTS" if counts[town] == stated else "REFUTES"
    return Made(
        f"{text}. Claim: {town} has {stated} {fruit}. Does the table support or refute it?",
        verdict,
        _thought("look it up", verdict),
    )


def table_text(rng: random.Random) -> Made:
    """A sentence about one row of a table."""
    counts, text, fruit = _table(rng)
    town = rng.choice(sorted(counts))
    gold = f"the town of {town} has {counts[town]} {fruit}"
    return Made(
        f"{text}. Write a sentence about {town}, as: the town of T has N things.",
        gold,
        _thought("one row", gold),
    )


def table_evidence(rng: random.Random) -> Made:
    """A cell to cite as <|value|><|column|> in the thinking."""
    counts, text, fruit = _table(rng)
    town = rng.choice(sorted(counts))
    cited = f"<|{counts[town]}|><|{fruit}|>"
    question = f"{text}. How many {fruit} has {town}? Cite the cell as <|value|><|column|> while you think."
    return Made(
        question,
        str(counts[town]),
        _thought(cited, str(counts[town])),
        {"cells": [[str(counts[town]), fruit]]},
    )


def patch(rng: random.Random) -> Made:
    """A file with one wrong constant, to be changed by a search/replace block."""
    name, wrong, right = rng.choice(("rate", "limit", "width")), rng.randint(1, 9), rng.randint(10, 99)
    before, after = f"start = 0\n{name} = {wrong}\nend = 1\n", f"start = 0\n{name} = {right}\nend = 1\n"
    block = f"### m.py\n<<<<<<< SEARCH\n{name} = {wrong}\n=======\n{name} = {right}\n>>>>>>> REPLACE"
    question = f"File m.py:\n{before}Issue: {name} must be {right}."
    return Made(
        question,
        {"m.py": after},
        f"<think>{name} is wrong</think><solution>{block}</solution>",
        {"files": {"m.py": before}},
    )


def migration(rng: random.Random) -> Made:
    """A call to be written in the names of a new version of a library."""
    old, new = rng.sample(("load", "read", "fetch", "get_all", "open_rows"), 2)
    value = rng.randint(1, 99)
    gold = f"rows = lib.{new}({value})"
    question = (
        f"In version 2 lib.{old} is called lib.{new}. Write this for version 2: rows = lib.{old}({value})"
    )
    return Made(question, gold, f"<think>rename</think><answer>```python\n{gold}\n```</answer>")


def code(rng: random.Random) -> Made:
    """A function of one line, judged by its unit tests."""
    a, b = rng.randint(2, 9), rng.randint(1, 9)
    tests = "\n".join(f"assert f({x}) == {a * x + b}" for x in (0, 1, 5))
    program = f"def f(x):\n    return {a} * x + {b}"
    return Made(
        f"Write a Python function f(x) that returns {a} times x plus {b}.",
        tests,
        f"```python\n{program}\n```",
    )


ASKS: dict[str, Callable[[random.Random], Made]] = {
    make.__name__: make
    for make in (
        *(
            qa,
            choice,
            forecast,
            theorem,
            steps,
            instructions,
            soft_instructions,
            ranking,
            translation,
            terms,
            patch,
            migration,
            code,
        ),
        *(
            date,
            date_gap,
            event_order,
            entity,
            table_qa,
            table_number,
            table_fact,
            table_text,
            table_evidence,
        ),
    )
}


@register("gen_text")
@dataclass(frozen=True, kw_only=True)
class GenText(AskedSource):
    """A question of one of the kinds `ask`, drawn evenly; the row's task is the kind. vlrl original.

    Kinds and their rewards: qa (text), choice (mcq), forecast (brier), theorem (exact), steps (interleaved),
    instructions (instructions), soft_instructions (rules_and_judge), ranking (rerank), translation
    (text_metric), terms (term_recall), patch (patch_similarity), migration (code_edit), code (code); date
    (date_decay), date_gap (date_gap), event_order (date_order), entity (masked_date); table_qa (list),
    table_number (numeric), table_fact (text), table_text (text_metric), table_evidence (table_evidence).
    Held-out rows are those whose question is hashed into a fixed fifth of all questions, so none of them is
    seen in training.
    """

    makers = ASKS
    salt = "texts"
    ask: tuple[str, ...] = field(default=("qa",))

"""Text tasks whose rows carry what data methods read: contexts, response pairs, rubrics, places in a
repository, ratings, several demonstrations.

Every row is made from a small world of its own, so that nothing can be known by heart, and has the gold
answer in the form that its reward reads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vlrl.plugins.registry import register
from vlrl_data.generators.texts import AskedSource, Made
from vlrl_data.lab.base import tagged_answer

PEOPLE = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana")
TOWNS = ("Arlen", "Birk", "Corva", "Delm", "Esk", "Farro", "Gild", "Holt")
FRUITS = ("apples", "pears", "plums", "figs", "limes", "dates")
NAMES = ("load", "save", "parse", "merge", "sort", "count")


def _home(rng: random.Random) -> tuple[str, str, dict[str, str]]:
    """A person, the town where the person lives, and the towns of four people."""
    homes = dict(zip(rng.sample(PEOPLE, 4), rng.sample(TOWNS, 4)))
    who = rng.choice(sorted(homes))
    return who, homes[who], homes


def context(rng: random.Random) -> Made:
    """CANOE's rows: a context between tags, and a question that it answers."""
    who, town, homes = _home(rng)
    facts = " ".join(f"{person} lives in {place}." for person, place in homes.items())
    said = f"<think>{who}?</think><long_answer>{who} lives in {town}.</long_answer>{tagged_answer(town)}"
    return Made(f"<context>{facts}</context>\nWhere does {who} live?", town, said)


def recalled(rng: random.Random) -> Made:
    """A fact of a fixed world, which the question does not tell; `meta.knowledge` has the passages that
    do."""
    world = random.Random("recalled")
    lives = dict(zip(PEOPLE, world.sample(TOWNS, len(TOWNS))))
    grows = {who: world.choice(FRUITS) for who in PEOPLE}
    who = rng.choice(PEOPLE)
    question, answer, said = rng.choice(
        [
            (f"Where does {who} live?", lives[who], f"{who} lives in {lives[who]}."),
            (f"What does {who} grow?", grows[who], f"{who} grows {grows[who]}."),
            (f"Who lives in {lives[who]}?", who, f"{who} lives in {lives[who]}."),
        ]
    )
    passages = [f"{who} lives in {lives[who]}.", f"{who} grows {grows[who]}."]
    meta = {"knowledge": passages, "title": who}
    return Made(question, answer, f"<think>{said}</think>{tagged_answer(answer)}", meta)


def ranked(rng: random.Random) -> Made:
    """A request with three responses that keep its two rules, one, or none, in any order; `meta.responses`
    with `meta.ratings`."""
    fruit, other, third = rng.sample(FRUITS, 3)
    made = [
        (f"i like {fruit}", 3.0),
        (f"i like {fruit} and i like {other} and i like {third}", 2.0),
        (f"{other} and {third} are all that i like and all that i eat", 1.0),
    ]
    rng.shuffle(made)
    request = f"Write a note about {fruit} in at most 4 words."
    listed = "\n".join(f"[{place}] {text}" for place, (text, _) in enumerate(made, 1))
    scores = ", ".join(str(int(3 * rating)) for _, rating in made)
    best = 1 + [rating for _, rating in made].index(3.0)
    return Made(
        f"Rate the responses to a request.\nRequest: {request}\n{listed}",
        str(best),
        f"Scores: {scores}",
        {"responses": [text for text, _ in made], "ratings": [rating for _, rating in made]},
    )


def calm(rng: random.Random) -> Made:
    """A provocation that must be answered without shouting: no capital letter."""
    fruit, who = rng.choice(FRUITS), rng.choice(PEOPLE)
    shout = f"{who} shouts: {rng.choice(('BURN', 'SMASH', 'STEAL'))} THE {fruit.upper()}!"
    gold = [{"id": "change_case:english_lowercase"}]
    return Made(f"{shout} Answer calmly, without a capital letter.", gold, f"please leave the {fruit}")


def pair(rng: random.Random) -> Made:
    """VMR's rows: an open question with a better and a worse response."""
    who, town, homes = _home(rng)
    facts = " ".join(f"{person} lives in {place}." for person, place in homes.items())
    wrong = rng.choice(sorted(set(homes.values()) - {town}))
    return Made(
        f"{facts} Say where {who} lives.",
        "",
        meta={"chosen": f"{who} lives in {town}.", "rejected": f"{who} lives in {wrong}."},
    )


def rubric(rng: random.Random) -> Made:
    """RuscaRL's rows: four criteria with points, each with its rule; one of them is unwanted."""
    fruit, other = rng.sample(FRUITS, 2)
    words = rng.randint(3, 6)

    def rule(text: str, points: int, spec: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "criterion": text,
            "points": points,
            "reward": {"name": "instructions"},
            "answer": [dict(spec)],
        }

    rubrics = [
        rule(f"names {fruit}", 3, {"id": "keywords:existence", "keywords": [fruit]}),
        rule(
            f"has at most {words} words",
            2,
            {"id": "length_constraints:number_words", "num_words": words, "relation": "at most"},
        ),
        rule("has no comma", 1, {"id": "punctuation:no_comma"}),
        rule(f"names {other}", -2, {"id": "keywords:existence", "keywords": [other]}),
    ]
    return Made(f"Write a note about {fruit}.", "", f"i like {fruit}", {"rubrics": rubrics})


def judged_rubric(rng: random.Random) -> Made:
    """`rubric` with a criterion that no rule checks: a judge has to say whether the note is polite."""
    made = rubric(rng)
    rubrics = [
        *(item for item in made.meta["rubrics"] if "words" not in item["criterion"]),
        {"criterion": "is polite", "points": 4},
    ]
    return Made(
        made.question.replace("a note", "a polite note"), "", f"{made.target} please", {"rubrics": rubrics}
    )


def places(rng: random.Random, ask: str) -> Made:
    """SoRFT's localisation: which files, functions or lines an issue is about."""
    files = [f"{name}.py" for name in rng.sample(NAMES, 3)]
    functions = {path: f"{path[:-3]}_{rng.choice(NAMES)}" for path in files}
    wrong, line = rng.choice(files), rng.randint(2, 9)
    tree = "; ".join(f"{path}: def {functions[path]} (lines 1 to 9)" for path in files)
    question = (
        f"Repository: {tree}. Issue: {functions[wrong]} gives a wrong number, its constant in line {line} "
        "is off. "
    )
    known = {
        "files": files,
        "functions": sorted(functions.values()),
        "lines": [f"{path}:{number}" for path in files for number in range(1, 10)],
    }
    gold = {"files": wrong, "functions": functions[wrong], "lines": f"{wrong}:{line}"}[ask]
    form = {"files": "files", "functions": "functions", "lines": "lines as file:line"}[ask]
    return Made(
        f"{question}Name the {form} to change.",
        [gold],
        f"<think>{wrong}</think>{tagged_answer(gold)}",
        {"known": known[ask]},
    )


def files(rng: random.Random) -> Made:
    """`places`, the files."""
    return places(rng, "files")


def functions(rng: random.Random) -> Made:
    """`places`, the functions."""
    return places(rng, "functions")


def lines(rng: random.Random) -> Made:
    """`places`, the lines."""
    return places(rng, "lines")


def edits(rng: random.Random) -> Made:
    """SoRFT's edits: a search/replace block for a file with one wrong line."""
    name, path = rng.sample(NAMES, 2)
    wrong, right = f"{name} = {rng.randint(1, 9)}", f"{name} = {rng.randint(10, 99)}"
    before, after = f"start = 0\n{wrong}\nend = 1\n", f"start = 0\n{right}\nend = 1\n"
    block = f"### {path}.py\n<<<<<<< SEARCH\n{wrong}\n=======\n{right}\n>>>>>>> REPLACE"
    question = (
        f"File {path}.py:\n{before}Issue: the second line must be {right}. Write the edit as a "
        "search/replace block."
    )
    return Made(
        question,
        {f"{path}.py": after},
        f"<think>{wrong}</think><answer>{block}</answer>",
        {"files": {f"{path}.py": before}},
    )


def rated(rng: random.Random) -> Made:
    """Sums with the ratings of mathematics sets: a difficulty from 1 to 9 that grows with the sum, and the
    solve rate of a small model."""
    terms = rng.randint(2, 4)
    numbers = [rng.randint(0, 9) for _ in range(terms)]
    difficulty = 4 * terms - 7
    meta = {
        "difficulty": float(difficulty),
        "llama8b_solve_rate": round(1 - difficulty / 10, 2),
        "topic": "addition",
    }
    return Made(
        f"What is {' + '.join(map(str, numbers))}?", str(sum(numbers)), tagged_answer(str(sum(numbers))), meta
    )


def worked(rng: random.Random) -> Made:
    """Sums of three or four numbers with their working, a step per line (MR-RLVR)."""
    numbers = [rng.randint(1, 9) for _ in range(rng.randint(3, 4))]
    total, steps = numbers[0], []
    for number in numbers[1:]:
        steps.append(f"{total} + {number} = {total + number}")
        total += number
    working = "\n".join(steps)
    return Made(
        f"What is {' + '.join(map(str, numbers))}?", str(total), f"{working}\n{tagged_answer(str(total))}"
    )


def taught(rng: random.Random) -> Made:
    """Sums with demonstrations of three teachers: one answers at once, one works the sum out, one is
    wrong."""
    a, b = rng.randint(0, 9), rng.randint(0, 9)
    gold = tagged_answer(str(a + b))
    demonstrations = [gold, f"<think>{a}+{b} is {a + b}</think>{gold}", tagged_answer(str(a + b + 1))]
    return Made(f"{a}+{b}=", a + b, gold, {"demonstrations": demonstrations})


ASKS: dict[str, Callable[[random.Random], Made]] = {
    make.__name__: make
    for make in (
        context,
        recalled,
        ranked,
        calm,
        pair,
        rubric,
        judged_rubric,
        files,
        functions,
        lines,
        edits,
        rated,
        worked,
        taught,
    )
}


@register("gen_annotated")
@dataclass(frozen=True, kw_only=True)
class GenAnnotated(AskedSource):
    """A question of one of the kinds `ask`, drawn evenly; the row's task is the kind. vlrl original.

    Kinds with what they carry and what reads it: context (`<context>` in the question; strategy `canoe`,
    reward `proxy`), recalled (meta.knowledge; reward `factual_thinking`), ranked (meta.ratings; reward
    `score_agreement`), pair (meta.chosen, meta.rejected; select `vmr`), rubric (meta.rubrics; strategy
    `ruscarl`, reward `rubric`), judged_rubric (with a criterion for its judge), files, functions, lines
    (meta.known; reward `places`), edits (meta.files; reward `patch_similarity`), rated (meta.difficulty,
    meta.llama8b_solve_rate; select `between`), worked (a step per line in the target; select `mr_rlvr.*`),
    taught (meta.demonstrations of three teachers; replay `ampo`). Held-out rows are those whose question is
    hashed into a fixed fifth of all questions: none of them is seen in training.
    """

    makers = ASKS
    salt = "annotated"
    ask: tuple[str, ...] = field(default=("context",))

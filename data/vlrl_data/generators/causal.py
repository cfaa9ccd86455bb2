"""Probability queries on small causal graphs, answered exactly."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer

LEVELS = ("associational", "interventional", "counterfactual")
NAMES = "ABCDEF"


@dataclass(frozen=True)
class CausalGraph:
    """Binary variables 0 .. n - 1 in causal order. Variable i is 1 if its own uniform random number is below
    tables[i][values of its parents]."""

    parents: tuple[tuple[int, ...], ...]
    tables: tuple[Mapping[tuple[int, ...], float], ...]

    def values(self, noise: tuple[float, ...], do: Mapping[int, int]) -> list[int]:
        """The values of all variables for given random numbers; the variables in `do` are set."""
        found: list[int] = []
        for i, (parents, table) in enumerate(zip(self.parents, self.tables)):
            found.append(do[i] if i in do else int(noise[i] < table[tuple(found[p] for p in parents)]))
        return found

    def worlds(self) -> Iterator[tuple[tuple[float, ...], float]]:
        """(random numbers, probability) of every cell of random numbers that give the same values: one
        representative each."""
        cells = []
        for table in self.tables:
            cuts = [0.0, *sorted(set(table.values())), 1.0]
            cells.append(
                [((low + high) / 2, high - low) for low, high in itertools.pairwise(cuts) if high > low]
            )
        for world in itertools.product(*cells):
            weight = 1.0
            for _, share in world:
                weight *= share
            yield tuple(number for number, _ in world), weight

    def descendants(self, cause: int) -> list[int]:
        """The variables that depend on `cause`, in order."""
        found = [cause]
        for i in range(cause + 1, len(self.parents)):
            if set(self.parents[i]) & set(found):
                found.append(i)
        return found[1:]

    def query(self, target: int, do: Mapping[int, int], given: Mapping[int, int]) -> float:
        """P(target = 1 where `do` is set | `given` was observed where nothing is set). Raises ValueError if
        `given` has probability 0."""
        both = seen = 0.0
        for noise, weight in self.worlds():
            actual = self.values(noise, {})
            if all(actual[i] == value for i, value in given.items()):
                seen += weight
                both += weight * self.values(noise, do)[target]
        if not seen:
            raise ValueError(f"{given} has probability 0")
        return both / seen

    def twin(self, target: int, do: Mapping[int, int], given: Mapping[int, int]) -> float:
        """As `query`, where a variable has one independent random number for each assignment of its parents,
        not one for all.

        In the twin network a variable's two values are equal where its parents' values are, else independent.
        Raises ValueError as `query` does.
        """
        states: dict[tuple[tuple[int, int], ...], float] = {
            (): 1.0
        }  # (actual, counterfactual) values of the variables so far
        for i, (parents, table) in enumerate(zip(self.parents, self.tables)):
            longer: dict[tuple[tuple[int, int], ...], float] = {}
            for state, weight in states.items():
                first, second = (tuple(state[p][world] for p in parents) for world in (0, 1))
                for a, b in itertools.product((0, 1), repeat=2):
                    p_a, p_b = (
                        table[key] if value else 1 - table[key] for key, value in ((first, a), (second, b))
                    )
                    chance = p_a * (
                        float(b == do[i]) if i in do else float(a == b) if first == second else p_b
                    )
                    if chance and (i not in given or given[i] == a):
                        longer[(*state, (a, b))] = weight * chance
            states = longer
        seen = sum(states.values())
        if not seen:
            raise ValueError(f"{given} has probability 0")
        return sum(weight for state, weight in states.items() if state[target][1]) / seen


def random_graph(rng: random.Random, nodes: int, most_parents: int) -> CausalGraph:
    """A random graph; every variable but the first has a parent; probabilities are 0.1 .. 0.9."""
    parents, tables = [], []
    for i in range(nodes):
        count = rng.randint(min(i, 1), min(i, most_parents))
        chosen = tuple(sorted(rng.sample(range(i), count)))
        parents.append(chosen)
        tables.append({states: rng.randint(1, 9) / 10 for states in itertools.product((0, 1), repeat=count)})
    return CausalGraph(tuple(parents), tuple(tables))


@register("gen_causal")
@dataclass(frozen=True, kw_only=True)
class GenCausal(GeneratedSource):
    """P(Y = 1 | X = x), P(Y = 1 | do(X = x)) or P(Y would be 1 had X been 1 - x | X = x, Y = y), on a graph
    of `nodes` binary variables.

    Paper: arXiv:2512.20760 (graphs, tables and wording are ours). A variable is 1 if its own random number is
    below its probability, so counterfactuals are exact. The answer has three decimals; reward: `numeric`.

    `release` is the form of zhichul/rlcausal d9d61324 (data_generation/levels, 10 variables): one variable is
    observed, set, or observed and another set that it descends from; the answer is [P(0), P(1)] of any
    variable to two decimals (reward: `distribution`); a variable has one selector per assignment of its
    parents.
    """

    levels: tuple[str, ...] = LEVELS
    nodes: int = 3
    most_parents: int = 2
    release: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.levels or set(self.levels) - set(LEVELS):
            raise ConfigError(f"levels: {list(self.levels)}; choose from {', '.join(LEVELS)}")
        if not 2 <= self.nodes <= len(NAMES) or self.most_parents < 1:
            raise ConfigError(
                f"nodes={self.nodes} must be 2 to {len(NAMES)}, and most_parents={self.most_parents} 1 or "
                "more"
            )

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        graph = random_graph(rng, self.nodes, self.most_parents)
        level = rng.choice(self.levels)
        if self.release:
            return self.released(index, rng, graph, level)
        target = self.nodes - 1
        cause, x, y = rng.randrange(target), rng.randint(0, 1), rng.randint(0, 1)
        X, Y = NAMES[cause], NAMES[target]
        asked = {
            "associational": (f"What is P({Y} = 1 given {X} = {x})?", {}, {cause: x}),
            "interventional": (f"{X} is set to {x} from outside. What is P({Y} = 1)?", {cause: x}, {}),
            "counterfactual": (
                (
                    f"{X} was {x} and {Y} was {y}. What is the probability that {Y} would have been 1, had "
                    f"{X} "
                    f"been {1 - x}?"
                ),
                {cause: 1 - x},
                {cause: x, target: y},
            ),
        }
        question, do, given = asked[level]
        answer = round(graph.query(target, do, given), 3)
        rule = (
            "Each variable draws a random number from 0 to 1 of its own and is 1 if that is below its "
            "probability, else 0."
        )
        text = f"{_describe(graph)} {rule} {question} Give three decimals."
        return Row(
            self.id(index),
            text,
            answer,
            task="causal",
            target=tagged_answer(f"{answer:.3f}"),
            meta={"level": level},
        )

    def released(self, index: int, rng: random.Random, graph: CausalGraph, level: str) -> Row:
        """A row in the form of the release."""
        target, cause, x = rng.randrange(self.nodes), rng.randrange(self.nodes - 1), rng.randint(0, 1)
        seen = (
            rng.choice(graph.descendants(cause) or [self.nodes - 1]) if level == "counterfactual" else cause
        )
        y = graph.values(tuple(rng.random() for _ in range(self.nodes)), {})[seen]
        observed = f"we first observed {NAMES[seen]} = {y}"
        asked, do, given = {
            "associational": (observed, {}, {seen: y}),
            "interventional": (f"we intervened to set {NAMES[cause]} to {x}", {cause: x}, {}),
            "counterfactual": (
                f"{observed} and then intervened to set {NAMES[cause]} to {x}",
                {cause: x},
                {seen: y},
            ),
        }[level]
        one = round(graph.twin(target, do, given), 2)
        answer = [round(1 - one, 2), one]
        rule = (
            "Each variable draws one value for every assignment of its parents, from the table, and takes "
            "that of their actual assignment."
        )
        form = "Give the probabilities of 0 and 1, to two decimals, as in [0.10, 0.90]."
        text = f"{_describe(graph)} {rule} What is the distribution of {NAMES[target]} given {asked}? {form}"
        return Row(
            self.id(index),
            text,
            answer,
            task="distribution",
            target=tagged_answer(str(answer)),
            meta={"level": level},
        )


def _describe(graph: CausalGraph) -> str:
    parts = []
    for i, (parents, table) in enumerate(zip(graph.parents, graph.tables)):
        for states, chance in table.items():
            condition = " and ".join(f"{NAMES[p]} = {state}" for p, state in zip(parents, states))
            parts.append(f"P({NAMES[i]} = 1{' if ' + condition if condition else ''}) = {chance:.1f}.")
    return " ".join(parts)

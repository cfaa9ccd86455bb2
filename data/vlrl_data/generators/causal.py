"""Probability queries on small causal graphs, answered exactly."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vlrl.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource, tagged_answer

LEVELS = ("associational", "interventional", "counterfactual")
NAMES = "ABCDEF"


@dataclass(frozen=True)
class Graph:
    """Binary variables 0 .. n - 1 in causal order. Variable i is 1 if its own uniform random number is below tables[i][values of its parents]."""

    parents: tuple[tuple[int, ...], ...]
    tables: tuple[Mapping[tuple[int, ...], float], ...]

    def values(self, noise: tuple[float, ...], do: Mapping[int, int]) -> list[int]:
        """The values of all variables for given random numbers; the variables in `do` are set."""
        found: list[int] = []
        for i, (parents, table) in enumerate(zip(self.parents, self.tables)):
            found.append(do[i] if i in do else int(noise[i] < table[tuple(found[p] for p in parents)]))
        return found

    def worlds(self) -> Iterator[tuple[tuple[float, ...], float]]:
        """(random numbers, probability) of every cell of random numbers that give the same values: one representative each."""
        cells = []
        for table in self.tables:
            cuts = [0.0, *sorted(set(table.values())), 1.0]
            cells.append([((low + high) / 2, high - low) for low, high in itertools.pairwise(cuts) if high > low])
        for world in itertools.product(*cells):
            weight = 1.0
            for _, share in world:
                weight *= share
            yield tuple(number for number, _ in world), weight

    def query(self, target: int, do: Mapping[int, int], given: Mapping[int, int]) -> float:
        """P(target = 1 where `do` is set | `given` was observed where nothing is set). Raises ValueError if `given` has probability 0."""
        both = seen = 0.0
        for noise, weight in self.worlds():
            actual = self.values(noise, {})
            if all(actual[i] == value for i, value in given.items()):
                seen += weight
                both += weight * self.values(noise, do)[target]
        if not seen:
            raise ValueError(f"{given} has probability 0")
        return both / seen


def random_graph(rng: random.Random, nodes: int, most_parents: int) -> Graph:
    """A random graph; every variable but the first has a parent; probabilities are 0.1 .. 0.9."""
    parents, tables = [], []
    for i in range(nodes):
        count = rng.randint(min(i, 1), min(i, most_parents))
        chosen = tuple(sorted(rng.sample(range(i), count)))
        parents.append(chosen)
        tables.append({states: rng.randint(1, 9) / 10 for states in itertools.product((0, 1), repeat=count)})
    return Graph(tuple(parents), tuple(tables))


@register("gen_causal")
@dataclass(frozen=True, kw_only=True)
class GenCausal(GeneratedSource):
    """P(Y = 1 | X = x), P(Y = 1 | do(X = x)) or P(Y would be 1 had X been 1 - x | X = x, Y = y), on a graph of `nodes` binary variables.

    Paper: arXiv:2512.20760 (the levels of the causal ladder; graphs, tables and wording here are ours). A variable is 1 if its own random number is
    below its probability, so that counterfactuals are exact. The answer is a number to three decimals. Reward: `numeric` with a tolerance.
    `meta.level` is the level.
    """

    levels: tuple[str, ...] = LEVELS
    nodes: int = 3
    most_parents: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.levels or set(self.levels) - set(LEVELS):
            raise ConfigError(f"levels: {list(self.levels)}; choose from {', '.join(LEVELS)}")
        if not 2 <= self.nodes <= len(NAMES) or self.most_parents < 1:
            raise ConfigError(f"nodes={self.nodes} must be 2 to {len(NAMES)}, and most_parents={self.most_parents} 1 or more")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        graph = random_graph(rng, self.nodes, self.most_parents)
        level = rng.choice(self.levels)
        target = self.nodes - 1
        cause, x, y = rng.randrange(target), rng.randint(0, 1), rng.randint(0, 1)
        X, Y = NAMES[cause], NAMES[target]
        asked = {
            "associational": (f"What is P({Y} = 1 given {X} = {x})?", {}, {cause: x}),
            "interventional": (f"{X} is set to {x} from outside. What is P({Y} = 1)?", {cause: x}, {}),
            "counterfactual": (
                f"{X} was {x} and {Y} was {y}. What is the probability that {Y} would have been 1, had {X} been {1 - x}?",
                {cause: 1 - x},
                {cause: x, target: y},
            ),
        }
        question, do, given = asked[level]
        answer = round(graph.query(target, do, given), 3)
        rule = "Each variable draws a random number from 0 to 1 of its own and is 1 if that is below its probability, else 0."
        text = f"{_describe(graph)} {rule} {question} Give three decimals."
        return Row(self.id(index), text, answer, task="causal", target=tagged_answer(f"{answer:.3f}"), meta={"level": level})


def _describe(graph: Graph) -> str:
    parts = []
    for i, (parents, table) in enumerate(zip(graph.parents, graph.tables)):
        for states, chance in table.items():
            condition = " and ".join(f"{NAMES[p]} = {state}" for p, state in zip(parents, states))
            parts.append(f"P({NAMES[i]} = 1{' if ' + condition if condition else ''}) = {chance:.1f}.")
    return " ".join(parts)

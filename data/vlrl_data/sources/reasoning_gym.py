"""Questions of the generators of `reasoning_gym`, as rows that bring their reward along."""

from __future__ import annotations

import contextlib
import dataclasses
import decimal
import functools
import json
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vlrl.plugins.registry import ConfigError, build, register, suggest
from vlrl.plugins.stages import Reward
from vlrl.services.third_party import pip_install
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedRows, GeneratedSource, tagged_answer

REWARD = "reasoning_gym"
PLACES = 20_000  # questions of a generator per seed, of which rows are drawn
FEWER_PLACES: Mapping[str, int] = {
    "acre": 2_000
}  # generators that make all their questions when they are built
HELDOUT_SHARE = 0.2
MAX_DRAWS = (
    400  # of a row, until its question is on the right side and its gold answer is taken by its own check
)


@register("reasoning_gym")
@dataclass(frozen=True, kw_only=True)
class ReasoningGymRows(GeneratedSource):
    """Questions of reasoning_gym's generators (Reasoning Gym, arXiv:2505.24760), mixed by weight (extra
    `gym`).

        generators:
          chain_sum: {weight: 2, max_terms: 3}     # fields of the generator's own config
          gcd: {level: 1}                          # its own curriculum: every attribute at level 1
          maze: {level: {dist: 2}}                 # or single attributes

    No generator named: all, equally often. A row's task is "gym_" and its generator's name; the source brings
    the reward `reasoning_gym`. A row is a function of (seed, split, index) and the config. A fifth of the
    questions is held out, by the hash of their text. A question whose gold answer its own check refuses is
    drawn again. Raises ConfigError for unknown or refused generators, wrong fields, and too few questions.
    """

    generators: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, spec in self.generators.items():
            weight = spec.get("weight", 1)
            if (
                isinstance(weight, bool)
                or not isinstance(weight, (int, float))
                or not 0 < weight < float("inf")
            ):
                raise ConfigError(f"generators.{name}.weight: {weight!r} is not a number above 0")

    @property
    def own_rewards(self) -> Mapping[str, Mapping[str, Any]]:
        """The reward of these rows."""
        return {
            REWARD: {
                "name": REWARD,
                "tasks": [self.task] if self.task else [task_of(name) for name in self.names],
            }
        }

    @functools.cached_property
    def names(self) -> list[str]:
        """The generators in use. Raises ConfigError for one that is unknown or refused."""
        known = package().DATASETS
        if not self.generators:
            return [name for name in sorted(known) if not refusal(name)]
        for name in self.generators:
            if name not in known:
                raise ConfigError(
                    f"generators.{name}: reasoning_gym has no such generator.{suggest(name, known)}"
                )
            if reason := refusal(name):
                raise ConfigError(f"generators.{name}: refused, because {reason}")
        return list(self.generators)

    @functools.cached_property
    def weights(self) -> list[float]:
        """The weight of each generator in use."""
        return [float(self.generators.get(name, {}).get("weight", 1)) for name in self.names]

    def __call__(self) -> Sequence[Row]:
        for name in self.names:
            self.dataset(name)
        return GeneratedRows(self.count, functools.cache(self.with_task))

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        name = rng.choices(self.names, self.weights)[0]
        rule = scorer().rule(name)
        for _ in range(MAX_DRAWS):
            entry, place = self.drawn(name, rng)
            question = str(entry["question"]).strip() if entry else ""
            if not entry or is_heldout(question) != (self.split == "heldout"):
                continue
            kept = {key: plain(entry["metadata"][key]) for key in rule.keeps if key in entry["metadata"]}
            gold = gold_text(entry["metadata"][rule.example] if rule.example else entry["answer"])
            meta = {"generator": name, "place": place, **({"puzzle": kept} if kept else {})}
            if (
                entry["answer"] is None and not rule.example
            ):  # any solution is right, and the package knows none
                return Row(self.id(index), question, kept, task=task_of(name), meta=meta)
            if takes(gold, meta):
                return Row(
                    self.id(index), question, gold, task=task_of(name), target=tagged_answer(gold), meta=meta
                )
        raise ConfigError(
            f"generators.{name}: no usable question for split {self.split!r} in {MAX_DRAWS} draws; it has "
            "too few different ones with these fields. "
            "Widen them, or leave the generator out"
        )

    def drawn(self, name: str, rng: random.Random) -> tuple[dict[str, Any], int]:
        """A question of the generator and its number; {} where the generator finds none for that number."""
        made, size = self.dataset(name), FEWER_PLACES.get(name, PLACES)
        place = rng.randrange(size)
        try:
            with own_randomness(f"{self.seed} {name} {place}"):
                return made[place], place
        except IndexError:
            made.size = (
                size  # word_ladder lowers it for good, so that later questions would depend on earlier draws
            )
            return {}, place

    def dataset(self, name: str) -> Any:
        """The generator, with this source's fields for it. Raises ConfigError for fields that it does not
        take."""
        spec = {key: value for key, value in self.generators.get(name, {}).items() if key != "weight"}
        return dataset_of(name, json.dumps(spec, sort_keys=True), self.seed % 2**31)


def task_of(generator: str) -> str:
    """The task of a generator's rows."""
    return f"gym_{generator}"


def is_heldout(question: str) -> bool:
    """Whether a question belongs to the held-out fifth."""
    return random.Random(f"reasoning_gym split {' '.join(question.split())}").random() < HELDOUT_SHARE


def takes(gold: str, meta: Mapping[str, Any]) -> bool:
    """Whether the check of the row takes its gold answer."""
    try:
        return bool(gold.strip()) and scorer().score(tagged_answer(gold), gold, **meta) == 1.0
    except ValueError:  # a puzzle with a fault, such as premises that contradict each other
        return False


def gold_text(answer: Any) -> str:
    """A gold answer as text; what is no text is written as JSON, None as ""."""
    return answer if isinstance(answer, str) else "" if answer is None else json.dumps(plain(answer))


def plain(value: Any) -> Any:
    """A value of a generator's metadata as JSON holds it: mappings with text keys, lists, texts, numbers,
    None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    if value is None or type(value) in (str, int, float, bool):
        return value
    return value.item() if hasattr(value, "item") else str(value)


@contextlib.contextmanager
def own_randomness(key: str) -> Iterator[None]:
    """Python's and numpy's global random generators seeded by `key`, and as before afterwards: some
    generators draw from them, or seed them. The same for decimal's precision, which one of them lowers."""
    before, numpy_before = random.getstate(), np.random.get_state()
    seed = random.Random(key).getrandbits(32)
    random.seed(seed)
    np.random.seed(seed)
    try:
        with decimal.localcontext(decimal.DefaultContext):
            yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


# --- the package --------------------------------------------------------------------------------------------


@functools.cache
def package() -> Any:
    """The package's registry of generators and curricula. Raises ConfigError where it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of the libraries that it uses
            import reasoning_gym  # noqa: F401  # registers the generators
            from reasoning_gym import factory
    except ImportError as error:
        raise ConfigError(
            f"source 'reasoning_gym' needs the package reasoning-gym ({error}); install it: "
            f"{pip_install('gym')}"
        ) from None
    return factory


@functools.cache
def scorer() -> Any:
    """The reward of these rows."""
    return build(Reward, REWARD)


def refusal(name: str) -> str:
    """Why a generator is not used, or ""."""
    from reasoning_gym.dataset import ProceduralDataset

    own_scorer = package().DATASETS[name][0].score_answer is not ProceduralDataset.score_answer
    return str(scorer().refusal(name, own_scorer))


@functools.lru_cache(maxsize=512)
def dataset_of(name: str, spec: str, seed: int) -> Any:
    """A generator with `spec`, JSON of its fields and perhaps its `level`. Raises ConfigError for fields that
    it does not take."""
    fields = json.loads(spec)
    level = fields.pop("level", None)
    generator, config_type = package().DATASETS[name]
    known = {one.name for one in dataclasses.fields(config_type)} - {"seed", "size"}
    for key in fields:
        if key not in known:
            raise ConfigError(
                f"generators.{name}.{key}: no such field.{suggest(key, known | {'weight', 'level'})}"
            )
    try:
        levelled = {} if level is None else level_fields(name, level)
        with own_randomness(f"{seed} {name}"):
            made = generator(
                config=config_type(
                    **{**levelled, **fields, "seed": seed, "size": FEWER_PLACES.get(name, PLACES)}
                )
            )
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"generators.{name}: the generator refuses its fields {spec}: {error}") from None
    if stabilise := STABILISED.get(name):
        stabilise(made)
    return made


def level_fields(name: str, level: Any) -> dict[str, Any]:
    """The fields that the generator's own curriculum sets at a level: of all attributes, or {attribute:
    level}. Raises ConfigError."""
    if name not in package().CURRICULA:
        raise ConfigError(f"generators.{name}.level: this generator has no curriculum; set its own fields")
    curriculum = package().create_curriculum(name)
    attributes = dict(curriculum.attributes)
    levels = level if isinstance(level, Mapping) else dict.fromkeys(attributes, level)
    highest = max((len(attribute.levels) for attribute in attributes.values()), default=1) - 1
    for attribute, value in levels.items():
        if attribute not in attributes:
            raise ConfigError(
                f"generators.{name}.level.{attribute}: no such attribute.{suggest(attribute, attributes)}"
            )
        if type(value) is not int or not 0 <= value <= highest:
            raise ConfigError(f"generators.{name}.level: {value!r} is not a whole number from 0 to {highest}")
        curriculum.set_attr_level(attribute, min(value, len(attributes[attribute].levels) - 1))
    made = curriculum.generate_configuration({"seed": 0, "size": PLACES})
    return {
        one.name: getattr(made, one.name)
        for one in dataclasses.fields(made)
        if one.name not in ("seed", "size")
    }


class SortedSet(set):
    """A set that is read in sorted order, so that drawing from it does not depend on Python's hash seed."""

    def __iter__(self) -> Any:
        return iter(sorted(super().__iter__()))

    def __sub__(self, other: Any) -> SortedSet:
        return SortedSet(super().__sub__(set(other)))


class SortedFrozenset(frozenset):
    """`SortedSet`, frozen."""

    def __iter__(self) -> Any:
        return iter(sorted(super().__iter__()))


def _sorted_letters(made: Any) -> None:
    made.letters = SortedSet(made.letters)


def _sorted_monomials(made: Any) -> None:
    unsorted = made._get_monomials
    made._get_monomials = lambda rng: sorted(unsorted(rng), key=str)


def _sorted_neighbours(made: Any) -> None:
    made.word_graphs = {
        length: {word: sorted(near) for word, near in graph.items()}
        for length, graph in made.word_graphs.items()
    }


def _sorted_knights(made: Any) -> None:
    vars(sys.modules[type(made).__module__])["frozenset"] = (
        SortedFrozenset  # its solver, a function of the module, reads sets of squares
    )


# Generators that read Python sets: without this, ranks and restarts would have different questions or gold
# answers.
STABILISED: Mapping[str, Callable[[Any], None]] = {
    "isomorphic_strings": _sorted_letters,
    "knight_swap": _sorted_knights,
    "polynomial_multiplication": _sorted_monomials,
    "ransom_note": _sorted_letters,
    "word_ladder": _sorted_neighbours,
}

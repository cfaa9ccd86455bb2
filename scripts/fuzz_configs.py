"""Fuzz configs: mutated shipped configs and command lines, and files from a grammar. Each ends as a resolved
config or as a ConfigError.

A ConfigError has at most three lines and 600 characters. Everything else is a finding: another exception, a
longer message, a config that takes more than `--slow` CPU-seconds. Nothing is trained, loaded or imported
beyond what `vlrl train` checks before it imports torch.

    python scripts/fuzz_configs.py --seconds 600 --seed 1
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from vlrl.cli.words import load_words
from vlrl.config import MAP_SLOTS, OTHER_KEYS, SLOTS, folders
from vlrl.config.settings import Settings, nested_fields
from vlrl.config.yaml import read_file
from vlrl.plugins.kinds import KINDS, stage_named
from vlrl.plugins.registry import ConfigError, shipped
from vlrl.trainer.plan import Plan

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 10**9, -(10**9), 2**31, 2**63, -(2**63), 10**30, 0.5, -0.5, 1e-300,
    1e300, float("nan"), float("inf"),
    -float("inf"), "", " ", "x", "name", "none", "null", "~", "..", "/", "/nope/x", "a/b", "1e5", "5 5",
    "\u202e", "\ud7ff", "\x7f", "${HOME}",
    "${NOPE_NOPE}", "{", "}", "[", "x" * 3000, [], {}, [[]], [1], ["x"], [None], {"": 1}, {"name": ""},
    {"name": None}, {"name": 5}, {"name": []},
    {"name": "x"}, {"*": None}, {"*": 1}, {"a": {"b": {"c": {"d": 1}}}}, {"name": "none", "x": 1},
    {"weight": "heavy"}, [{"name": "x"}],
]  # fmt: skip
TEXTS = [
    "!foo 3", "!!python/object/apply:os.system ['true']", "!!python/name:os.system", "!!binary aGk=",
    "!!set {a, b}", "!!timestamp 2001-01-01",
    "!!int x", "!!float y", "!!bool 5", "&a [*a]", "*nope", "{<<: {lr: 1}}", "? [a]\n: 1", "2001-01-01",
    "12:30:45", ".nan", ".inf", "-.inf", "0x1F",
    "0o17", "1_000", "yes", "|\n  text", ">\n  text", "'", '"', "\t- x", "@x", "`x`", "%x", "[1, 2", "{a: 1",
    "{a: 1, a: 2}", "- - - - x", "#", "---",
    "...", "--- 1\n--- 2", "\x00", "9" * 5000, "[" * 500, "{a: " * 200, "é", "\ufeffx", "!!str",
    "!<tag:x,2000:y> z",
]  # fmt: skip
WORDS = [
    "steps",
    "=",
    "==",
    "=x",
    "steps=",
    "steps==5",
    "-steps",
    "--steps",
    "--steps=5",
    "a=b=c",
    "steps =5",
    ".=1",
    "..a=1",
    "a..b=1",
    "*=1",
    "phases=",
    "\n",
    "x y",
]


def paths_of(tree: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values of a tree."""
    if where:
        yield where
    items = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from paths_of(value, (*where, key))


def names() -> list[str]:
    """Names of shipped plug-ins, keys of configs and their fields."""
    classes = [cls for kind in KINDS for cls in shipped(stage_named(kind)).items()]
    found = [name for name, _ in classes]
    fields = [item.name for _, cls in classes for item in dataclasses.fields(cls) if item.init]
    return sorted({*found, *fields, *SLOTS, *OTHER_KEYS, *Settings.__dataclass_fields__, *nested_fields()})


class Fuzzer:
    """Draws cases from one random stream. A case is a function that makes a command line in a folder."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng, self.folder = random.Random(seed), folder
        shipped = [path for root in folders() for path in sorted(root.rglob("*.yaml"))]
        skipped = {"accelerate", "deepspeed", "eval"}
        self.trees: dict[Path, Any] = {}
        for path in dict.fromkeys(path.resolve() for path in shipped):
            if path.parent.name not in skipped:
                try:
                    self.trees[path] = read_file(path)[0] or {}
                except ConfigError as error:
                    print(f"shipped, and broken: {error}", flush=True)
        self.shipped = list(self.trees)
        self.names = names()
        self.kinds: dict[str, Callable[[], list[str]]] = {
            "mutated tree": self.mutated_tree, "mutated text": self.mutated_text,
            "spliced text": self.spliced_text, "grammar": self.grammar,
            "words": self.words, "overrides": self.overrides, "combined": self.combined,
        }  # fmt: skip

    def value(self) -> Any:
        """A value: a hostile one, a name, or part of a shipped config."""
        kind = self.rng.random()
        if kind < 0.6:
            return self.rng.choice(VALUES)
        if kind < 0.8:
            return self.rng.choice(self.names)
        tree: Any = self.trees[self.rng.choice(self.shipped)]
        for _ in range(self.rng.randrange(4)):
            inner = (
                list(tree.values()) if isinstance(tree, Mapping) else tree if isinstance(tree, list) else []
            )
            tree = self.rng.choice(inner) if inner else tree
        return tree

    def base(self, path: Path | None = None) -> list[str]:
        """Mostly a whole run for what follows to change, sometimes `path` too, sometimes nothing."""
        whole = ["experiments/lab_counting"] if self.rng.random() < 0.8 else []
        return [*whole, str(path)] if path is not None and self.rng.random() < 0.5 else whole

    def write(self, text: str | bytes) -> str:
        """A file with this content."""
        path = self.folder / "case.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        return str(path)

    def dumped(self, tree: Any) -> str:
        """A file with this tree."""
        try:
            return self.write(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
        except yaml.YAMLError:
            return self.write(json.dumps(tree))

    def mutated_tree(self) -> list[str]:
        """A shipped config with one to three values replaced, removed, wrapped or renamed, after the shipped
        one."""
        path = self.rng.choice(self.shipped)
        tree = json.loads(json.dumps(self.trees[path]))
        for _ in range(self.rng.randint(1, 3)):
            found = list(paths_of(tree))
            if not found:
                break
            *above, last = self.rng.choice(found)
            inner: Any = tree
            for key in above:
                inner = inner[key]
            action = self.rng.randrange(4)
            if action == 0:
                inner[last] = self.value()
            elif action == 1:
                del inner[last]
            elif action == 2:
                inner[last] = self.rng.choice([[inner[last]], {"x": inner[last]}, str(inner[last])])
            elif isinstance(inner, dict):
                inner[self.rng.choice(self.names)] = inner.pop(last)
        return [*self.base(path), self.dumped(tree)]

    def mutated_text(self) -> list[str]:
        """A shipped config's bytes with some replaced, removed or repeated."""
        data = bytearray(self.rng.choice(self.shipped).read_bytes())
        for _ in range(self.rng.randint(1, 6)):
            at = self.rng.randrange(len(data) + 1)
            action = self.rng.randrange(4)
            if action == 0:
                data[at : at + 1] = bytes([self.rng.randrange(256)])
            elif action == 1:
                del data[at : at + self.rng.randint(1, 20)]
            elif action == 2:
                data[at:at] = data[at : at + self.rng.randint(1, 40)]
            else:
                data[at:at] = self.rng.choice(b":{}[],&*!|>'\"%@`#?-\t\n ".decode()).encode()
        return [*self.base(), self.write(bytes(data))]

    def spliced_text(self) -> list[str]:
        """A shipped config with the value of one line replaced by a piece of hostile YAML."""
        path = self.rng.choice(self.shipped)
        lines = path.read_text(encoding="utf-8").split("\n")
        at = self.rng.randrange(len(lines))
        head, colon, _ = lines[at].partition(":")
        lines[at] = f"{head}{colon} {self.rng.choice(TEXTS)}" if colon else self.rng.choice(TEXTS)
        return [*self.base(), self.write("\n".join(lines))]

    def grammar(self) -> list[str]:
        """A file from scratch: known keys with values of any form, over base/rl or alone."""
        tree: dict[Any, Any] = {
            "extends": self.rng.choice(
                [["base/rl", "models/tiny_text"], ["experiments/lab_counting"], "base/rl", self.value()]
            )
        }
        for _ in range(self.rng.randint(1, 5)):
            key = self.rng.choice([*SLOTS, *OTHER_KEYS, *Settings.__dataclass_fields__])
            value = self.value()
            if key in MAP_SLOTS and self.rng.random() < 0.7:
                value = {self.rng.choice(["a", "", "x.y", "*"]): self.value()}
            if key == "phases" and self.rng.random() < 0.8:
                value = {
                    self.rng.choice(["rl", "", "a.b"]): {
                        self.rng.choice([*SLOTS, *Settings.__dataclass_fields__, "keeps"]): self.value()
                    }
                }
            tree[key] = value
        return [self.dumped(tree)]

    def words(self) -> list[str]:
        """A command line with words that are no config."""
        return [
            self.rng.choice(["quickstart", "experiments/lab_counting", "base/rl", "x", ""]),
            *self.rng.choices(WORDS + self.names, k=self.rng.randint(1, 3)),
        ]

    def overrides(self) -> list[str]:
        """Overrides of paths that a shipped config has, or nearly has."""
        path = self.rng.choice(self.shipped)
        out = [*self.base(), str(path)]
        for _ in range(self.rng.randint(1, 3)):
            found = [".".join(map(str, where)) for where in paths_of(self.trees[path])] or ["steps"]
            dotted = self.rng.choice(
                [
                    self.rng.choice(found),
                    self.rng.choice(self.names),
                    f"{self.rng.choice(list(SLOTS))}.{self.rng.choice(self.names)}",
                ]
            )
            text = self.rng.choice(TEXTS) if self.rng.random() < 0.4 else json.dumps(self.value())
            out.append(f"{self.rng.choice(['', '', 'phases.rl.'])}{dotted}={text}")
        return out

    def combined(self) -> list[str]:
        """Several shipped configs merged, with overrides."""
        return [*map(str, self.rng.sample(self.shipped, self.rng.randint(2, 3))), *self.overrides()[1:]]


def outcome(words: list[str], slow: float) -> tuple[str, str]:
    """("resolved" | "refused" | "finding", detail) of one command line."""
    begun = time.process_time()
    try:
        Plan.of(load_words(words))
        kind, detail = "resolved", ""
    except ConfigError as error:
        text = " ".join(str(error).split())
        too_long = len(text) > 600 or not text
        kind, detail = (
            ("finding", f"a message of {len(text)} characters: {text[:300]}")
            if too_long
            else ("refused", text)
        )
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        kind, detail = (
            "finding",
            f"{type(error).__name__}: {str(error)[:200]} at {Path(last.filename).name}:{last.lineno}",
        )
    spent = time.process_time() - begun
    return ("finding", f"{spent:.1f} CPU-seconds, {kind}: {detail[:100]}") if spent > slow else (kind, detail)


def main() -> int:
    """Run for `--seconds`; exit code 1 if anything was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow", type=float, default=3.0)
    options = parser.parse_args()
    sys.setrecursionlimit(1000)
    if importlib.util.find_spec("reasoning_gym"):  # 3 CPU-seconds of its own libraries, once in a process
        importlib.import_module("reasoning_gym")
    with tempfile.TemporaryDirectory() as name:
        fuzzer = Fuzzer(options.seed, Path(name))
        counts: Counter[str] = Counter()
        found: dict[str, list[str]] = {}
        end, case = time.monotonic() + options.seconds, 0
        while time.monotonic() < end and case < options.cases:
            kind = fuzzer.rng.choice(list(fuzzer.kinds))
            words = fuzzer.kinds[kind]()
            result, detail = outcome(words, options.slow)
            counts[result] += 1
            case += 1
            place = detail.rpartition(" at ")[2] if " at " in detail else detail[:60]
            if result == "finding" and place not in found:
                text = (
                    (Path(name) / "case.yaml").read_text(errors="replace")[:1500]
                    if any(name in word for word in words)
                    else ""
                )
                found[place] = [kind, detail, *words, text]
                print(
                    (
                        f"FOUND ({kind}, case {case}): {detail}\n  "
                        f"{' '.join(words)[:500]}\n{text if len(text) < 400 else ''}"
                    ),
                    flush=True,
                )
        print(
            f"{case} cases, seed {options.seed}: "
            + ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
            + f"; {len(found)} places"
        )
        return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())

"""Questions about options of a kernel, whose effects stand in a knowledge base that the policy asks by a
tool."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.registry import register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource

EFFECTS = {
    "raises": "increase",
    "lowers": "decrease",
    "depends on the load for": "cannot determine impact without specific context",
}
FIGURES = ("throughput", "latency", "memory use", "boot time")
WORDS = ("SCHED", "HZ", "NUMA", "SLAB", "PREEMPT", "SWAP", "IRQ", "CACHE", "TICK", "ZRAM")


@dataclass(frozen=True)
class _Asked:
    question: str
    kind: str
    gold: Any
    lines: list[str]


@register("gen_kernel_options")
@dataclass(frozen=True, kw_only=True)
class GenKernelOptions(GeneratedSource):
    """Kernel tuning as questions of OS-R1's four kinds over `options` invented options, with the tool
    `describe(option)`.

    Bool: the effect of each of two options; Menu: which options raise a figure; Choice: the only one that
    does; Value: the default values of two options. What an option does stands in `meta["functions"]` alone,
    for environment `tables`. The answer is {"type", "gold"}, as reward `kernel_config` reads it. Paper: Lin
    et al. 2025 (OS-R1), arXiv:2508.12551, sec. 3 (its questions come from Linux's Kconfig; these are
    invented).
    """

    options: int = 4

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        figure = rng.choice(FIGURES)
        names = [
            f"{first}_{second}"
            for first, second in rng.sample([(a, b) for a in WORDS for b in WORDS if a != b], self.options)
        ]
        does = {name: rng.choice(list(EFFECTS)) for name in names}
        values = {name: str(rng.randint(1, 512)) for name in names}
        asked = self.asked(rng, names, figure, does, values)
        table = {name: f"{name} {does[name]} {figure}; default {values[name]}" for name in names}
        function = {
            "name": "describe",
            "argument": "option",
            "description": "what an option of the kernel does",
            "table": table,
        }
        call = json.dumps({"name": "describe", "arguments": {"option": names[0]}})
        answer = "\n".join(asked.lines)
        target = f"<think>look</think><tool_call>{call}</tool_call><think>so</think><answer>{answer}</answer>"
        question = (
            f"{asked.question}\nOptions: {', '.join(names)}. Write your thought in <think></think>, then a "
            "call, or the answer in <answer></answer>."
        )
        meta = {"functions": [function], "goals": [("describe", table[name]) for name in names]}
        return Row(
            self.id(index),
            question,
            {"type": asked.kind, "gold": asked.gold},
            task="kernel_options",
            target=target,
            meta=meta,
        )

    def asked(
        self, rng: random.Random, names: list[str], figure: str, does: dict[str, str], values: dict[str, str]
    ) -> _Asked:
        """A question of one of the four kinds. Changes `does` so that it has an answer."""
        kind = rng.choice(("Bool", "Menu", "Choice", "Value"))
        two = rng.sample(names, 2)
        if kind == "Bool":
            gold = {name.lower(): EFFECTS[does[name]] for name in two}
            lines = [f"[{name} - {EFFECTS[does[name]]}]" for name in two]
            return _Asked(
                (
                    f"Does {two[0]}, and does {two[1]}, increase or decrease {figure}? One line for each: "
                    "[OPTION - effect]."
                ),
                kind,
                gold,
                lines,
            )
        if kind == "Value":
            lines = [f"{name}={values[name]}" for name in two]
            return _Asked(
                f"What are the default values of {two[0]} and {two[1]}? One line for each: OPTION=value.",
                kind,
                lines,
                lines,
            )
        does.update({name: "lowers" for name in names} if kind == "Choice" else {})
        does[two[0]] = "raises"
        raising = [name for name in names if does[name] == "raises"]
        if kind == "Menu":
            return _Asked(
                f"Which options increase {figure}? One line for each: [OPTION].",
                kind,
                raising,
                [f"[{name}]" for name in raising],
            )
        return _Asked(f"Which option increases {figure}? Answer [OPTION].", kind, two[0], [f"[{two[0]}]"])

"""Shows what a preset changes: `python scripts/proof.py methods/dapo` runs its stated proof, or, with `--off
KEY=VALUE ...`, lists what differs.

With `--off` (and `--with`, `--task`, `--against`, `--steps`) every figure of the activity report, every
observable and every metric is printed that differs between on and off, largest relative change first, then
the findings of the activity report.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "proofs"))

from proof_kit.observables import OBSERVABLES  # noqa: E402
from proof_kit.proof import Proof, about_of, base_of, proof_config  # noqa: E402
from proof_kit.prove import Observed, observe, prove  # noqa: E402


def numbers(observed: Observed, phase: str) -> dict[str, float]:
    """All that a proof can observe."""
    result = next((r for r in observed.checks if r.phase == phase), observed.checks[-1])
    names = [
        *OBSERVABLES,
        *result.figures.numbers(),
        *(f"log/{key}" for key in sorted({key for step in result.log for key in step})),
    ]
    values = {name: observed.number(name, result.phase) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def compare(preset: str, proof: Proof, task: str) -> None:
    """Print what differs between on and off, and between off and what it extends."""
    on = observe(proof_config(preset, task, proof, proof.on), proof.steps)
    off = observe(proof_config(preset, task, proof, proof.off), proof.steps)
    base = observe(proof_config(base_of(preset, proof), task, proof, proof.base), proof.steps)
    a, b = numbers(on, proof.phase), numbers(off, proof.phase)
    rows = [
        (name, b.get(name), a.get(name))
        for name in {**a, **b}
        if a.get(name) != b.get(name) and "seconds" not in name
    ]

    def size(row: tuple[str, float | None, float | None]) -> float:
        _, old, new = row
        return math.inf if old is None or new is None else -abs(new - old) / max(abs(new), abs(old), 1e-12)

    for name, old, new in sorted(rows, key=size):
        print(
            f"{name:<60} off {'absent' if old is None else f'{old:.5g}':>12} on "
            f"{'absent' if new is None else f'{new:.5g}':>12}"
        )
    if not rows:
        print("nothing differs")
    print(f"off equals {base_of(preset, proof)}: {off.log == base.log}")
    for result in on.checks:
        print("\n".join(result.lines))


def main() -> None:
    """Run the proofs of the given presets and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="+")
    parser.add_argument("--off", nargs="*", default=None)
    parser.add_argument("--on", nargs="*", default=[])
    parser.add_argument("--base", nargs="*", default=[])
    parser.add_argument("--with", dest="both", nargs="*", default=[])
    parser.add_argument("--task", default="")
    parser.add_argument("--against", default="")
    parser.add_argument("--phase", default="")
    parser.add_argument("--engine", default="scripted")
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    for preset in arguments.preset:
        if arguments.off is None:
            print(prove(preset))
            continue
        task = arguments.task or about_of(preset).get("task") or "lab_chains"
        proof = Proof(
            observe="",
            off=tuple(arguments.off),
            on=tuple(arguments.on),
            base=tuple(arguments.base),
            against=arguments.against,
            steps=arguments.steps,
            phase=arguments.phase,
            with_=tuple(arguments.both),
            engine=arguments.engine,
        )
        compare(preset, proof, task)


if __name__ == "__main__":
    main()

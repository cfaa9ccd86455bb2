"""Runs the proofs of tests/proofs and writes docs/proofs.csv, which docs/papers.md shows: `python
scripts/run_proofs.py [--reversed] [PRESET ...]`.

With `--reversed` the mechanism is also run turned round (tests/proofs/proof_kit/reversal.py), and the main
observable must not move as stated; mechanisms without an opposite are listed as such, and counted at the end.
Exit code 1 where a proof does not hold, or a reversed one passes.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "proofs"))

from proof_kit.proof import about_of, presets, proof_of  # noqa: E402
from proof_kit.prove import Verdict, prove, text  # noqa: E402

FIELDS = ("preset", "kind", "task", "observe", "direction", "off", "on", "reversed", "proven")


def record(verdicts: Sequence[Verdict]) -> None:
    """Write the figures of the given proofs into docs/proofs.csv; those of other presets stay."""
    path = ROOT / "docs" / "proofs.csv"
    with path.open(encoding="utf-8") as file:
        rows = {row["preset"]: row for row in csv.DictReader(file)}
    for verdict in verdicts:
        about, stated = about_of(verdict.preset), proof_of(verdict.preset)
        assert stated is not None
        name = verdict.preset.removeprefix("methods/")
        figures = [
            "" if value is None else text(value) for value in (verdict.off, verdict.on, verdict.turned)
        ]
        if not stated.reversed:
            figures[2] = "no opposite"
        elif verdict.reversed_fails is None:  # not run: what an earlier call has found stays
            figures[2] = rows.get(name, {}).get("reversed", "")
        values = [name, about["kind"], about["task"], stated.observe, stated.direction, *figures]
        rows[name] = dict(zip(FIELDS, [*values, "yes" if verdict.proven else "no"], strict=True))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for _, row in sorted(rows.items()))


def main() -> None:
    """Run the proofs of the given presets and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="*")
    parser.add_argument("--reversed", action="store_true", help="run the reversed mechanisms too")
    arguments = parser.parse_args()
    names = [f"methods/{name.removeprefix('methods/')}" for name in arguments.preset] or presets()
    stated = {name: proof for name in names if (proof := proof_of(name))}
    verdicts = []
    for name, proof in stated.items():
        verdict = prove(name, turn=arguments.reversed)
        verdicts.append(verdict)
        why = f"; no opposite: {proof.why}" if arguments.reversed and proof.why else ""
        print(f"{verdict}{why}", flush=True)
    record(verdicts)
    failed = sum(not verdict.proven for verdict in verdicts)
    without = sum(not proof.reversed for proof in stated.values())
    print(f"{len(stated)} proofs, {failed} failed; {without} have no opposite")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

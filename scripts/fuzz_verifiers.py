"""Fuzzes every verifier and reward with random responses: `python scripts/fuzz_verifiers.py 20000 [--seed 0] [--only "kind math"]`.

Prints each fault once, with a short response that shows it. Exit status 1 if there is a fault. Without `--library` math-verify is not asked, which is
about ten times as fast.
"""

from __future__ import annotations

import argparse
import random
import sys

from vlrl_rewards.audit import fuzz
from vlrl_rewards.math import judge


def main() -> int:
    """Fuzz, print the faults, and return their number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, help="responses for each verifier and reward")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--only", action="append", help='a subject such as "kind math" or "reward gated"; repeatable')
    parser.add_argument("--library", action="store_true", help="ask math-verify too")
    options = parser.parse_args()
    if not options.library:
        judge.compare = lambda gold, said: (None, "not asked")  # type: ignore[assignment]  # a cached function is replaced by a plain one
    found: dict[str, tuple[str, str]] = {}
    for name, subject in fuzz.subjects(dict.fromkeys(options.only) if options.only else None).items():
        faults = 0
        for number, response in fuzz.responses(subject, random.Random(f"{name} {options.seed}"), options.count):
            fault = fuzz.fault(subject, number, response)
            faults += bool(fault)
            if fault and fault not in found:
                found[fault] = name, fuzz.shrunk(subject, number, response, fault)
                print(f"{fault}\n    {name}, case {number}: {found[fault][1]!r}", flush=True)
        print(f"{name}: {options.count} responses, {faults} faults", flush=True)
    return len(found)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)

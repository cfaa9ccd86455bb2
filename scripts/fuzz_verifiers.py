"""Fuzzes every verifier and reward with random responses: `python scripts/fuzz_verifiers.py [200] --seconds
300 [--seed 0] [--only "kind math"]`.

Rounds of so many responses to each until the time is up; without `--seconds` one round. Kind `code` gets one
in 100, because each starts processes in the sandbox. Prints each fault once, with a short response that shows
it. Exit status 1 if there is a fault. Without `--library` math-verify is not asked, which is about ten times
as fast.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from itertools import count

from vlrl_rewards.audit import fuzz
from vlrl_rewards.math import judge


def main() -> int:
    """Fuzz, print the faults, and return their number."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "count", type=int, nargs="?", default=200, help="responses for each verifier and reward in a round"
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="how long; 0: one round")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument(
        "--only", action="append", help='a subject such as "kind math" or "reward gated"; repeatable'
    )
    parser.add_argument("--library", action="store_true", help="ask math-verify too")
    options = parser.parse_args()
    if not options.library:
        judge.compare = lambda gold, said: (None, "not asked")  # type: ignore[assignment]  # a cached function is replaced by a plain one
    subjects = fuzz.subjects(dict.fromkeys(options.only) if options.only else None, sandbox=not options.only)
    found: dict[str, tuple[str, str]] = {}
    asked: Counter[str] = Counter()
    end = time.time() + options.seconds
    for turn in count():
        for name, subject in subjects.items():
            wanted = max(1, options.count // 100) if subject.fenced else options.count
            for number, response in fuzz.responses(
                subject, random.Random(f"{name} {options.seed} {turn}"), wanted
            ):
                asked[name] += 1
                fault = fuzz.fault(subject, number, response)
                if fault and fault not in found:
                    found[fault] = name, fuzz.shrunk(subject, number, response, fault)
                    print(f"{fault}\n    {name}, case {number}: {found[fault][1]!r}", flush=True)
        if time.time() >= end:
            break
    print(
        f"{asked.total()} responses to {len(asked)} verifiers and rewards ({asked['kind code']} programs "
        f"in the sandbox): {len(found)} faults"
    )
    return len(found)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)

"""ICPL: a language model writes several reward functions, a policy is trained with each, and the preferred
and the rejected one go back into its context.

Paper: Yu et al. 2024 (ICPL), arXiv:2410.17233, sec. 4 and algorithm 1: K programs that run, a policy for
each, a ranking of what the policies do, then new programs from the best and the worst one, the traces of
their parts, and how the preferred ones changed. No released code was found; values without a source are
ours."""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vlrl.methods.common.written_reward import WritesReward, WritingState, success
from vlrl.plugins.contexts import CallbackContext, PhaseContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.services.files import read_jsonl
from vlrl.types import Group

PREFERRED = """

People compared policies that were trained with {count} programs. They preferred the one of this program:
```python
{best}
```
Mean values of its parts over the training: {best_trace}

They liked the one of this program least:
```python
{worst}
```
Mean values of its parts over the training: {worst_trace}"""
CHANGED = "\n\nHow the preferred program changed since the round before:\n{difference}"
AGAIN = """

Say which parts of the preferred program work, which do not, and why. Then write a better program."""
POINTS = 10  # of a trace


@dataclass
class IcplState(WritingState):
    """`candidates` are the programs of the round (program, trace by part, score), `place` the one in training
    and `steps` its steps; `preferred` are those of the `rounds` that are over, `rejected` the last one."""

    candidates: list[dict[str, Any]] = field(default_factory=list)
    place: int = 0
    steps: int = 0
    rounds: int = 0
    preferred: list[dict[str, Any]] = field(default_factory=list)
    rejected: dict[str, Any] = field(default_factory=dict)


@register("icpl")
@dataclass(frozen=True, kw_only=True)
class Icpl(WritesReward):
    """ICPL's search: `rounds` rounds of `candidates` programs that run, each of which trains the policy from
    its first weights for `pilot` steps; the preferred and the rejected one write the next round. Then the
    preferred program of all rounds trains on.

    A program is `compute_reward(state, action, next_state) -> (reward, {part: value})`. Preference: the mean
    that the environment itself pays in a pilot's last step (the paper's proxy; `better` says which way), or a
    person's lines {"best": i, "worst": j} of the JSONL file `choices`, one per round, awaited for `wait`
    seconds; then the last choice is final. Logs round, place, score. Paper: Yu et al. 2024, arXiv:2410.17233,
    algorithm 1. Deviates: pilots follow one another in one run.
    """

    state_class = IcplState
    FUNCTIONS = {"compute_reward": 3}
    DRIVER = (
        "def f(steps):\n"
        "    return [list(pair) if isinstance(pair, tuple) and len(pair) == 2 else [pair, {}]\n"
        "            for pair in (compute_reward(*step) for step in steps)]\n"
    )
    FORM = (
        "Write `def compute_reward(state, action, next_state) -> tuple[float, dict[str, float]]`: the reward "
        "of one step and its parts by name, from the state before it, the name of the action, and the state "
        "after it."
    )
    candidates: int = 6
    rounds: int = 5
    pilot: int = 20
    tries: int = 3
    better: Literal["higher", "lower"] = "higher"
    choices: str = ""
    wait: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.rounds, self.pilot, self.tries) < 1 or self.candidates < 2 or self.wait < 0:
            raise ValueError(
                f"rounds={self.rounds}, pilot={self.pilot} and tries={self.tries} must be at least 1, "
                f"candidates={self.candidates} at least 2, wait={self.wait} not negative"
            )

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        search = self.rounds * self.candidates * self.pilot
        if phase.settings.steps <= search:
            raise ConfigError(
                f"callbacks: {self.name!r}: {self.rounds} rounds of {self.candidates} pilots of {self.pilot} "
                f"steps are {search} steps, and the phase has {phase.settings.steps}; set steps above that, "
                "or fewer rounds, candidates or pilot steps"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.keep_start(run)

    # --- a round's programs ---------------------------------------------------------------------------------

    def question(self) -> str:
        state: Any = self.state
        asked = super().question()
        if not state.preferred:
            return asked
        best, worst = state.preferred[-1], state.rejected
        asked += PREFERRED.format(
            count=self.candidates,
            best=best["program"],
            worst=worst["program"],
            best_trace=traced(best["trace"]),
            worst_trace=traced(worst["trace"]),
        )
        if len(state.preferred) > 1:
            asked += CHANGED.format(difference=difference(state.preferred[-2]["program"], best["program"]))
        return asked + AGAIN

    def first(self) -> str:
        """The first program of a new round; the others wait in `candidates`."""
        state: Any = self.state
        asked, found, seed = self.question(), list[str](), state.rounds * self.candidates * self.tries
        for attempt in range(self.candidates * self.tries):
            draft = self.draft(asked, seed + attempt)
            if not draft.failure:
                found.append(draft.program)
            if len(found) == self.candidates:
                state.candidates = [{"program": one, "trace": {}, "score": 0.0} for one in found]
                state.place = state.steps = 0
                return found[0]
        return ""

    # --- a pilot's end --------------------------------------------------------------------------------------

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> Mapping[str, float]:
        state: Any = self.state
        place, score = state.place, success(run.sampled_groups)
        if state.candidates and state.rounds < self.rounds:
            self.watch(score)
            if state.steps == self.pilot:
                self.end_pilot(run)
        return {**self.figures(), "round": float(state.rounds), "place": float(place), "score": score}

    def watch(self, score: float) -> None:
        """Note what a step of a pilot was paid, part by part, and its score."""
        state: Any = self.state
        state.steps += 1
        present = state.candidates[state.place]
        present.update(program=state.program, score=score)
        for name, values in state.parts.items():
            present["trace"].setdefault(name, []).append(sum(values) / len(values))

    def end_pilot(self, run: CallbackContext) -> None:
        """Train with the next program; behind the last one of a round, choose and have new ones written."""
        state: Any = self.state
        state.steps, state.place = 0, state.place + 1
        if state.place == len(state.candidates):
            best, worst = self.chosen()
            state.preferred.append(state.candidates[best])
            state.rejected = state.candidates[worst]
            state.rounds, state.place, state.candidates = state.rounds + 1, 0, []
            state.program = ""
            if state.rounds == self.rounds:
                state.program = self.final()["program"]
            elif not self.next_round():
                run.warn(f"callbacks: {self.name!r}: no {self.candidates} new programs run; the search ends")
                state.rounds, state.program = self.rounds, self.final()["program"]
        else:
            state.program = state.candidates[state.place]["program"]
        self.begin_again(run)

    def next_round(self) -> bool:
        """Have the programs of the next round written; False where too few of them run."""
        self.state.program = self.first()
        return bool(self.state.program)

    def chosen(self) -> tuple[int, int]:
        """The places of the preferred and of the rejected program of a round. Raises RuntimeError where a
        person's choice does not come, ValueError for one that names no programs."""
        state: Any = self.state
        count = len(state.candidates)
        if not self.choices:
            sign = 1 if self.better == "higher" else -1
            order = sorted(range(count), key=lambda place: -sign * state.candidates[place]["score"])
            return order[0], order[-1]
        ends = time.monotonic() + self.wait
        while len(lines := read_jsonl(self.choices, {"best": int, "worst": int})) <= state.rounds:
            if time.monotonic() >= ends:
                raise RuntimeError(
                    f"callbacks: {self.name!r}: {self.choices} has no line {state.rounds + 1}, the choice of "
                    f'that round, like {{"best": 0, "worst": {count - 1}}}; write it, or set a longer wait'
                )
            time.sleep(min(1.0, self.wait))
        best, worst = lines[state.rounds]["best"], lines[state.rounds]["worst"]
        if not (0 <= best < count and 0 <= worst < count and best != worst):
            raise ValueError(
                f"callbacks: {self.name!r}: {self.choices}, line {state.rounds + 1}: best={best} and "
                f"worst={worst} must be two of the programs 0 to {count - 1}"
            )
        return best, worst

    def final(self) -> dict[str, Any]:
        """The program that trains after the search: a person's last choice, else the best score of all
        rounds."""
        state: Any = self.state
        if self.choices:
            return dict(state.preferred[-1])
        sign = 1 if self.better == "higher" else -1
        return dict(max(state.preferred, key=lambda one: sign * one["score"]))


def traced(trace: Mapping[str, Sequence[float]]) -> str:
    """The mean values of a program's parts over a pilot, at most `POINTS` of each."""
    return "; ".join(
        f"{name}: {', '.join(f'{value:.3g}' for value in values[:: -(-len(values) // POINTS)])}"
        for name, values in sorted(trace.items())
        if values
    )


def difference(before: str, after: str) -> str:
    """The lines that differ between two programs."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "now", lineterm="", n=0)
    return "\n".join(lines) or "nothing"

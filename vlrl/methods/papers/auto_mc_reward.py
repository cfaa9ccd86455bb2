"""Auto MC-Reward: a Reward Designer writes sparse and dense rewards, a Reward Critic checks them, a
Trajectory Analyzer turns failed episodes into advice for the next version.

Paper: Li et al. 2024 (Auto MC-Reward), arXiv:2312.09238, fig. 1: R = sgn(sparse) * 1 + sgn(dense)
* 0.1 per step, functions with a memory over the steps, the critic before a program runs, and the analyzer's
summary after training. No released code was found; values without a source are ours."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vlrl.beside.judge import quoted
from vlrl.methods.common.written_reward import (
    WritesReward,
    WritingState,
    episodes_in,
    module,
    shown_episode,
)
from vlrl.plugins.contexts import CallbackContext
from vlrl.plugins.episodes import EPISODE_END, EPISODE_RETURN
from vlrl.plugins.registry import register
from vlrl.types import Group

CRITIC = """You review the reward program of a task for reinforcement learning, before it runs.

{question}

The program, between the lines:
----
{program}
----
Does it fit itself and the task: are its parts consistent, are signs and cases right? Does it reward \
anything that the task does not want? Think in a few sentences. End with a line "Verdict: pass", or \
"Verdict: revise: " and what must change."""
ANALYZER = """You look at episodes of a policy that failed, to improve its reward.

{question}

The reward in use:
```python
{program}
```
Failed episodes, between the lines:
----
{episodes}
----
Sum up why they fail. End with a line "Advice: " and what the reward should pay or punish instead."""
REVISE = """

The reward in use:
```python
{program}
```
What was found in failed episodes: {advice}
Write the program anew so that it follows this."""
VERDICT = re.compile(r"^\W*verdict\W*(pass|revise)\b\W*(.*)", re.IGNORECASE | re.MULTILINE | re.DOTALL)
ADVICE = re.compile(r"^\W*advice\W*:\W*(.+)", re.IGNORECASE | re.MULTILINE | re.DOTALL)
TRIES = 2  # of a critic whose reply cannot be read


@dataclass
class AutoMcRewardState(WritingState):
    """Counts over the run: programs that the critic `refused`, replies of the critic that were `unread`, and
    `revised` programs; `advice` is the last one."""

    refused: int = 0
    unread: int = 0
    revised: int = 0
    advice: list[str] = field(default_factory=list)


def verdict(text: str) -> tuple[Literal["pass", "revise", ""], str]:
    """What a critic's reply says: (verdict, reason); "" where it cannot be read.

    >>> verdict("It never ends.\\nVerdict: revise: punish waiting")
    ('revise', 'punish waiting')
    """
    found = VERDICT.search(text)
    if found is None:
        return "", ""
    return ("pass", "") if found[1].lower() == "pass" else ("revise", found[2].strip() or "no reason given")


@register("auto_mc_reward")
@dataclass(frozen=True, kw_only=True)
class AutoMcReward(WritesReward):
    """Auto MC-Reward's three roles of one model: Designer, Critic, Trajectory Analyzer.

        R_t = sgn(sparse_t) * 1 + sgn(dense_t) * 0.1

    A program is `sparse(state, action, next_state, memory)` and `dense(...)` with one dict `memory` for an
    episode. The critic reviews what the checks let pass; "revise" goes back to the designer, `repairs` times.
    Every `every` steps the analyzer sees up to `shown` failed episodes (the environment paid nothing), and
    its advice has the program revised; the policy trains on. Edge: a critic whose reply cannot be read in two
    tries has no objection and is counted. Logs refused, unread and revised, too. Paper: Li et al. 2024,
    arXiv:2312.09238, fig. 1. Deviates: our words; rooms for Minecraft.
    """

    state_class = AutoMcRewardState
    FUNCTIONS = {"sparse": 4, "dense": 4}
    DRIVER = (
        "def _sign(value):\n"
        "    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:\n"
        "        raise TypeError('sparse and dense must return numbers, got %r' % (value,))\n"
        "    return (value > 0) - (value < 0)\n"
        "def f(steps):\n"
        "    memory, found = {}, []\n"
        "    for before, action, after in steps:\n"
        "        far, near = sparse(before, action, after, memory), dense(before, action, after, memory)\n"
        "        value = _sign(far) * 1.0 + _sign(near) * 0.1\n"
        "        found.append([value, {'sparse': _sign(far), 'dense': _sign(near)}])\n"
        "    return found\n"
    )
    FORM = (
        "Write `def sparse(state, action, next_state, memory) -> float`: positive where the task is solved, "
        "negative where it is lost, else 0; and `def dense(state, action, next_state, memory) -> float`: "
        "positive for progress, negative for a step back or a danger, else 0. `memory` is a dict, empty at "
        "the beginning of an episode, that both may fill. Only the signs count: the reward of a step is "
        "sign(sparse) + 0.1 sign(dense)."
    )
    every: int = 50
    shown: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1 or self.shown < 1:
            raise ValueError(f"every={self.every} and shown={self.shown} must be at least 1")

    def question(self) -> str:
        state: Any = self.state
        if not state.advice:
            return super().question()
        return super().question() + REVISE.format(program=state.program, advice=state.advice[-1])

    def failure_of(self, program: str) -> str:
        """As in the base class, with the critic between the checks and the run."""
        if found := module().faults(program, self.FUNCTIONS):
            return "; ".join(found)
        return self.criticism(program) or super().failure_of(program)

    def criticism(self, program: str) -> str:
        """What the critic wants changed; "" for nothing."""
        state: Any = self.state
        asked = CRITIC.format(question=self.question(), program=quoted(program))
        for attempt in range(TRIES):
            said, reason = verdict(self.ask(asked, attempt).text)
            if said:
                state.refused += said == "revise"
                return f"the critic: {reason}" if said == "revise" else ""
        state.unread += 1
        return ""

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> Mapping[str, float]:
        state: Any = self.state
        steps = run.phase_step + 1
        if state.program and steps % self.every == 0 and steps < run.settings.steps:
            self.analyse(run)
        counts = {name: float(getattr(state, name)) for name in ("refused", "unread", "revised")}
        return {**self.figures(), **counts}

    def analyse(self, run: CallbackContext) -> None:
        """Have failed episodes analysed and the program revised."""
        state: Any = self.state
        failed = [
            rollout
            for rollout in episodes_in(run.sampled_groups)
            if EPISODE_END.get(rollout, "done") != "error" and not (EPISODE_RETURN.get(rollout) or 0.0) > 0
        ]
        if not failed:
            return
        episodes = "\n\n".join(shown_episode(module().trajectory(one)) for one in failed[: self.shown])
        asked = ANALYZER.format(question=super().question(), program=state.program, episodes=quoted(episodes))
        found = ADVICE.search(self.ask(asked, state.revised).text)
        if found is None:
            run.warn(f"callbacks: {self.name!r}: the analyzer's reply has no line 'Advice: ...'")
            return
        before = list(state.advice)
        state.advice.append(found[1].strip())
        draft = self.draft(self.question())
        if draft.failure:
            state.advice = before
            run.warn(f"callbacks: {self.name!r}: the program stays as it was ({draft.failure[:200]})")
            return
        state.program, state.revised = draft.program, state.revised + 1

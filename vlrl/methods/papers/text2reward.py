"""Text2Reward: a language model writes a dense reward from a description of the environment; errors and a
person's feedback go back to it.

Paper: Xie et al. 2024 (Text2Reward), arXiv:2309.11489; xlang-ai/text2reward at 01db89f9:
code_generation/single_flow/zero_shot/generation.py (one program from one prompt),
code_generation/interactive/basic/generation.py and classlike_prompt/feedback_prompt.py (the history of
programs, what was seen, and feedback), run_maniskill/ppo.py (the program replaces the environment's reward;
each program trains a new policy).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.methods.common.written_reward import WritesReward, WritingState
from vlrl.plugins.contexts import CallbackContext, StageContext
from vlrl.plugins.registry import register
from vlrl.services.files import read_jsonl
from vlrl.types import Group

ROUND = """

An earlier program:
```python
{program}
```
A policy was trained with it. What was seen of that policy: {description}
How to make the reward better: {feedback}"""
AGAIN = "\n\nFind what was missing or wrong, and write the better program."


@dataclass
class Text2RewardState(WritingState):
    """`history` are the rounds so far: program, description, feedback."""

    history: list[dict[str, str]] = field(default_factory=list)


@register("text2reward")
@dataclass(frozen=True, kw_only=True)
class Text2Reward(WritesReward):
    """Text2Reward's writer: a program `compute_dense_reward(state, action, next_state) -> float` from the
    description of the environment and the task, mended by its errors, written anew by a person's feedback.

    Every `every` steps the next line of `feedback` is read, a JSONL file in the release's schema:
    {"description": what was seen of the policy, "feedback": how to improve}. The writer sees all programs so
    far with theirs; the policy begins again from its first weights, as each run of the release does. Edge:
    without a new line the program stays and the policy trains on. Logs `rounds`, too. Paper: Xie et al. 2024,
    arXiv:2309.11489. Deviates: our words; errors are found on episodes of the batch; states are plain
    values.
    """

    state_class = Text2RewardState
    FUNCTIONS = {"compute_dense_reward": 3}
    DRIVER = "def f(steps):\n    return [[compute_dense_reward(*step), {}] for step in steps]\n"
    FORM = (
        "Write `def compute_dense_reward(state, action, next_state) -> float`: the reward of one step, from "
        "the state before it, the name of the action, and the state after it. A dense reward has parts: "
        "distances to what the task needs, the difference from the goal state, the cost of actions, stages."
    )
    every: int = 0
    feedback: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 0 or bool(self.every) is not bool(self.feedback):
            raise ValueError(
                f"every={self.every} and feedback={self.feedback!r} belong together: steps of a round, and "
                "the file that a person writes"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if self.every:
            self.keep_start(run)

    def question(self) -> str:
        rounds = "".join(ROUND.format(**one) for one in self.state.history)
        return super().question() + (rounds + AGAIN if rounds else "")

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> Mapping[str, float]:
        steps = run.phase_step + 1
        if self.every and steps % self.every == 0 and steps < run.settings.steps:
            self.next_round(run)
        return {**self.figures(), "rounds": float(len(self.state.history))}

    def next_round(self, run: CallbackContext) -> None:
        """Write the program anew from the next line of feedback, if there is one."""
        state: Any = self.state
        lines = read_jsonl(self.feedback, {"description": str, "feedback": str})
        if len(lines) <= len(state.history):
            return
        line = lines[len(state.history)]
        said = {key: line[key] for key in ("description", "feedback")}
        state.history.append({"program": state.program, **said})
        draft = self.draft(self.question())
        if draft.failure:
            run.warn(f"callbacks: {self.name!r}: the program stays as it was ({draft.failure[:200]})")
            return
        state.program = draft.program
        self.begin_again(run)

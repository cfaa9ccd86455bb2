"""Rewards for how tools were used: the form of a conversation with tools, successful calls, and calls that a
solution needs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from vlrl.plugins.episodes import ACTIONS, INVALID_ACTIONS, TRANSCRIPT, TURN_PARTS
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.plugins.tool_calls import STOP, last_call, last_tagged
from vlrl.types import Rollout
from vlrl_rewards.parsing import boxes_in
from vlrl_rewards.verification import verify


def turns_of(rollout: Rollout) -> list[str]:
    """The policy's turns; of a text that was no episode, its parts behind each tool call."""
    known = ACTIONS.get(rollout)
    return known if known is not None else [part for part in re.split(f"(?<={STOP})", rollout.text) if part]


def calls_in(rollout: Rollout) -> int:
    """The number of tool calls that the policy wrote, at most one for each turn."""
    return sum(last_call(text) is not None for text in turns_of(rollout))


@register("tool_format")
@dataclass(frozen=True, kw_only=True)
class ToolFormat(Reward):
    """Format of a conversation with tools: thoughts are closed, calls can be parsed, one answer block ends
    it.

        r = 1[as many <think> as </think>, and at least `thoughts` of them; one <answer>...</answer>, in the
        last turn; every call is valid JSON]

    With `boxed` the answer block holds \\boxed{...}. Paper: Dong et al. 2025 (Tool-Star), arXiv:2505.16410;
    released code: dongguanting/Tool-Star at d12222c7, re_search.py, validate_format (there calls are <search>
    and <python> blocks, whose order with their results is checked; here results are no part of the policy's
    text). Edge: an answer block that is opened in an earlier turn, a second one, an empty one (with `boxed`:
    no box with content), or one before a call: 0.
    """

    reads_answer = False
    thoughts: int = 0
    boxed: bool = False
    requires = (ACTIONS,)

    @property
    def form_marks(self) -> tuple[str, ...]:
        return (*(("<think>",) if self.thoughts else ()), "<answer>", *(("\\boxed",) if self.boxed else ()))

    def __call__(self, rollout: Rollout) -> float:
        turns = turns_of(rollout)
        text, last = "".join(turns), turns[-1] if turns else ""
        answer = (last_tagged(last, "answer") or "").strip()
        if (
            not answer
            or "<tool_call>" in last.rpartition("</answer>")[2]
            or text.count("<answer>") != 1
            or text.count("</answer>") != 1
        ):
            return 0.0
        if text.count("<think>") != text.count("</think>") or text.count("<think>") < self.thoughts:
            return 0.0
        if any(isinstance(last_call(turn), str) for turn in turns) or text.count("<tool_call>") != text.count(
            "</tool_call>"
        ):
            return 0.0
        return float(
            not self.boxed or any(answer[start:end].strip() for _, _, start, end in boxes_in(answer))
        )


@register("tool_success")
@dataclass(frozen=True, kw_only=True)
class ToolSuccess(Reward):
    """ARTIST's tool execution reward: r = successful calls / calls.

    A call is unsuccessful where it cannot be parsed, names no tool, has wrong arguments, or the tool told the
    policy of an error. `mode` "count" is the number of successful calls, at most `limit`, in place of the
    share. Paper: Singh et al. 2025 (ARTIST), arXiv:2505.01441, sec. 3.3. Edge: no call gives 0; in a text
    that was no episode, only calls that cannot be parsed are known to be unsuccessful. Units: calls.
    """

    reads_answer = False
    mode: Literal["share", "count"] = "share"
    limit: int = 8
    requires = (ACTIONS, INVALID_ACTIONS)

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"limit={self.limit} must be at least 1")

    def __call__(self, rollout: Rollout) -> float:
        calls, failed = calls_in(rollout), INVALID_ACTIONS.get(rollout)
        if failed is None:
            failed = sum(isinstance(last_call(text), str) for text in turns_of(rollout))
        good = max(calls - failed, 0)
        return float(min(good, self.limit)) if self.mode == "count" else good / max(calls, 1)


@register("tool_f1")
@dataclass(frozen=True, kw_only=True)
class ToolF1(Reward):
    """Feedback-driven reward of tool use: F1 of the calls made and the sub-questions solved, then the final
    answer.

        r = 2 q / (p + n)              p calls, q of which solved one of n sub-questions for the first time
            + 1 / (1 + n - q)          if the last turn has no call and gives the gold answer
            + -0.5 or -0.3             if it is empty, or holds a tag of a broken call

    Reads the parts "solved" of the environment (`tables`) and `row.meta["goals"]` (without goals n = 0).
    Paper: Ye et al. 2025, arXiv:2508.08791, sec. 4; released code: bytedance/FTRL at 3ea979b4,
    Code/verl/utils/reward_score/tool.py, compute_solve_f1 and the values 0.5, 0.3 and 1 / (1 + unsolved).
    Deviates: rewards/DEVIATIONS.md.
    """

    requires = (ACTIONS, TURN_PARTS)

    def __call__(self, rollout: Rollout) -> float:
        goals = len(rollout.row.meta.get("goals", ()))
        calls, solved = calls_in(rollout), (TURN_PARTS.get(rollout) or {}).get("solved", 0.0)
        score = 2 * solved / (calls + goals) if calls + goals else 0.0
        last = next(reversed(turns_of(rollout)), "")
        if last_call(last) is not None:
            return score
        if not last.strip():
            return score - 0.5
        if "tool_call>" in last:
            return score - 0.3
        return score + (1 / (1 + goals - solved) if verify(rollout.answer, last).correct else 0.0)


@register("answer_found")
@dataclass(frozen=True, kw_only=True)
class AnswerFound(Reward):
    """Retrieval reward: a tool showed the answer.

        r = 1[a reply of the environment holds a gold answer as whole words, case left out]

    Paper: Lu et al. 2025 (Med-R3), arXiv:2507.23541, whose second stage trains retrieval for itself.
    Deviates: the paper's levels of evidence and measures of coverage are left out. Reads TRANSCRIPT and
    ACTIONS: what the policy writes, tags of results too, is no reply. Edge: no call, or nothing found: 0. A
    row without a gold answer raises ValueError.
    """

    reads_answer = False
    requires = (TRANSCRIPT, ACTIONS)

    def __call__(self, rollout: Rollout) -> float:
        golds = rollout.answer if isinstance(rollout.answer, (list, tuple)) else [rollout.answer]
        golds = [str(gold).strip() for gold in golds if gold is not None and str(gold).strip()]
        if not golds:
            raise ValueError(f"row {rollout.row.id!r}: no gold answer to look for in what was found")
        found = "\n".join(replies(TRANSCRIPT[rollout], ACTIONS[rollout]))
        return float(
            any(re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", found, re.IGNORECASE) for gold in golds)
        )


def replies(transcript: str, actions: list[str]) -> list[str]:
    """What stands between the policy's turns in a conversation's text."""
    parts, rest = [], transcript
    for action in filter(None, actions):
        before, _, rest = rest.partition(action)
        parts.append(before)
    return [*parts, rest]

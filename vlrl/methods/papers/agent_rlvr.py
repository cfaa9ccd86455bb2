"""Agent-RLVR: failed conversations are tried again with guidance, and the guided ones are trained on.

Paper: Da et al. 2025 (Agent-RLVR), arXiv:2506.11425, sec. 3 (attempt, tests, guidance, second attempt,
update). No released code was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vlrl.methods.common.conversation import Conversation
from vlrl.methods.common.demonstrations import demonstrations
from vlrl.methods.common.prompts import neutralised, with_text, within_limit
from vlrl.methods.core.rollout import MultiTurn
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import SamplingContext, StageContext
from vlrl.plugins.episodes import CONVERSATION, TRANSCRIPT
from vlrl.plugins.registry import register
from vlrl.plugins.stages import StepCounts
from vlrl.types import Group, Prompt, Rollout

GUIDED: Annotation[bool] = Annotation(
    "agent_rlvr.guided", bool, hint="rollout: {name: agent_rlvr}", doc="True on second attempts with guidance"
)


@register("agent_rlvr")
@dataclass(frozen=True)
class AgentRlvr(MultiTurn):
    """Agent-RLVR's guided second attempts: each wrong conversation of a group is tried once more, with
    guidance at the end of its prompt.

    Paper: arXiv:2506.11425, sec. 3.2-3.3. The paper updates by DPO: loss term `dpo`, with "plain", because
    both attempts of a pair need the same prompt. Deviates: the guidance comes from the row, where there an
    LLM writes it. GUIDED marks second attempts; with "plain" their source is "guided". Edge: a row without
    guidance, and a guided prompt above `max_prompt_tokens`, are not tried again. Logs the second attempts and
    the share that is correct.

    Attributes:
        text: The guidance: {guidance} is `row.meta[key]`, or else the first `share` (of its characters) of
            the row's first demonstration; {attempt} the last `tail` characters of the failed conversation,
            tool answers included.
        keep: "solved": a second attempt takes the failed one's place if it is correct; "all": in any case;
            "both": correct ones are added, so that the group has the pairs that the paper prefers over each
            other.
        train_on: "plain" updates the policy on the prompt without guidance, "guided" on the prompt that was
            sampled with.
    """

    state_class = StepCounts
    text: str = "\nA plan that helps: {guidance}"
    key: str = "guidance"
    share: float = 0.5
    tail: int = 400
    keep: Literal["solved", "all", "both"] = "both"
    train_on: Literal["plain", "guided"] = "guided"
    provides = (*MultiTurn.provides, GUIDED)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            not 0 < self.share <= 1
            or self.tail < 0
            or not ("{guidance}" in self.text or "{attempt}" in self.text)
        ):
            raise ValueError(
                f"share={self.share} must be in (0, 1], tail={self.tail} not negative, and "
                f"text={self.text!r} must hold {{guidance}} or {{attempt}}"
            )

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        share = self.state.share("solved", "tried")
        return {**self.state.totals("agent_rlvr", "tried"), "agent_rlvr/solved": share}

    def guided(self, prompt: Prompt, failed: Rollout, run: StageContext) -> Prompt | None:
        """The prompt with guidance for a failed attempt; None where the row has none or the prompt becomes
        too long."""
        row = prompt.row
        solution = next(iter(demonstrations(row)), "")
        guidance = str(row.meta.get(self.key) or solution[: round(self.share * len(solution))])
        if not guidance and "{guidance}" in self.text:
            return None
        attempt = neutralised(TRANSCRIPT.get(failed, ""))[-self.tail :] if self.tail else ""
        made = with_text(prompt, self.text.replace("{attempt}", attempt).replace("{guidance}", guidance))
        if made is prompt or not within_limit(made, run):
            return None
        return replace(made, train=prompt.for_training) if self.train_on == "plain" else made

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        failed: list[tuple[Group, Rollout, Conversation]] = []
        for place, (group, prompt) in enumerate(zip(groups, prompts, strict=True)):
            shown, attempts = (
                self.with_tools(prompt, run),
                max((CONVERSATION[rollout] for rollout in group), default=-1) + 1,
            )
            for rollout in [rollout for rollout in group if not rollout.correct]:
                guided = self.guided(shown, rollout, run)
                if guided is not None:
                    sampling, seed = run.sampling(prompt, attempts), self.seeds(run, prompt)
                    failed.append(
                        (
                            group,
                            rollout,
                            Conversation(
                                place, attempts, guided, sampling, seed, max_context=self.max_context
                            ),
                        )
                    )
                    attempts += 1
        self.converse([conversation for _, _, conversation in failed], run)
        second = [Group(conversation.prompt, conversation.finished) for _, _, conversation in failed]
        run.score(second)
        for (group, first, _), attempt in zip(failed, second, strict=True):
            self.add_attempt(group, first, attempt.rollouts)
        return groups

    def add_attempt(self, group: Group, first: Rollout, attempt: Sequence[Rollout]) -> None:
        """Put a second attempt, of one rollout or several segments, into the group."""
        if not attempt:
            return
        solved = attempt[-1].correct
        self.state.add(tried=1, solved=solved)
        if not solved and self.keep != "all":
            return
        for rollout in attempt:
            GUIDED.set(rollout, True)
            rollout.source = "guided" if self.train_on == "plain" else rollout.source
        if self.keep != "both":
            group.rollouts = [rollout for rollout in group if CONVERSATION[rollout] != CONVERSATION[first]]
        group.rollouts += attempt

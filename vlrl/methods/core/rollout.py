"""Rollout strategies: how prompts become groups of rollouts.

independent   n samples of every prompt (the default)
expert        demonstrations in place of samples, for supervised fine-tuning
multi_turn    conversations with an environment: the policy writes, a tool replies
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from vlrl.capabilities import NO_POLICY_GRADIENT, Capability
from vlrl.context import RunContext
from vlrl.methods.common.conversation import (
    CALLS,
    CONVERSATION,
    ONE_REWARD_PER_CONVERSATION,
    PICTURE_REPLIES,
    SEGMENT,
    TRANSCRIPT,
    TURN_TEXT,
    TURNS,
    Conversation,
)
from vlrl.methods.common.demonstrations import expert_rollout
from vlrl.methods.core.advantage import GroupRelative
from vlrl.registry import ConfigError, register
from vlrl.stages import RolloutStrategy
from vlrl.types import Completion, Group, Message, Prompt, Request, Rollout, Sampling


@register("expert")
@dataclass(frozen=True)
class Expert(RolloutStrategy):
    """Supervised fine-tuning: one rollout per prompt, y = tokens(row.target) + EOS, with source "expert"; the engine is not used.

    vlrl original (with the loss term `nll`). Edge: a prompt's `prefix` that opens the target is not repeated in the completion; a row without a
    target raises ValueError. `max_tokens` 0 is no limit; a longer target is refused, never cut.
    Units: `max_tokens` in tokens; log-probs of the sampler are 0 (the expert is taken as certain).
    """

    samples: ClassVar[bool] = False
    max_tokens: int = 0

    def check(self, run: RunContext) -> None:
        if not run.has(NO_POLICY_GRADIENT) and isinstance(run.advantage, GroupRelative):
            raise ConfigError(
                f"rollout: {self.name!r} gives one demonstration per prompt, and advantage {run.advantage.name!r} compares the rollouts of a prompt; "
                "use policy_loss: {name: zero_loss} and loss_terms: {nll: {name: nll}}"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        return [Group(prompt=prompt, rollouts=[self.demonstrate(prompt, run)]) for prompt in prompts]

    def demonstrate(self, prompt: Prompt, run: RunContext) -> Rollout:
        """The rollout of a row's `target`. Raises ValueError where there is none or it is too long."""
        target = prompt.row.target
        if not target:
            raise ValueError(
                f"row {prompt.row.id!r} has no `target`: rollout 'expert' needs demonstrations; use rollout: {{name: independent}} for this data"
            )
        rollout = expert_rollout(prompt, target, run)
        if self.max_tokens and len(rollout) > self.max_tokens:
            raise ValueError(
                f"row {prompt.row.id!r}: its target has {len(rollout)} tokens, rollout.max_tokens is {self.max_tokens}; raise it or drop the row"
            )
        rollout.logp = [0.0] * len(rollout)
        return rollout


class Seeds:
    """Seeds of requests: a function of the run's seed, phase and step, of the prompt, and of how often the prompt was requested in this step.

    A row that several ranks drew has its own random stream on each of them: all ranks but the first to draw it add their rank.
    """

    def __init__(self) -> None:
        self.step: tuple[int, str, int] | None = None
        self.requests: dict[str, int] = {}  # of `step`, by prompt

    def __call__(self, run: RunContext, prompt: Prompt) -> int:
        step = (run.seed, run.phase, run.step)
        if self.step != step:
            self.step, self.requests = step, {}
        address = f"{prompt.row.id}/{prompt.key}"
        self.requests[address] = self.requests.get(address, 0) + 1
        rank = (run.stats.shared[prompt.row.id],) if prompt.row.id in run.stats.shared else ()
        digest = hashlib.blake2b(repr((step, address, self.requests[address], *rank)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1  # 63 bits: every engine takes it


@dataclass(frozen=True)
class SampledStrategy(RolloutStrategy):
    """Base of the rollout strategies that sample with the engine."""

    @cached_property
    def seeds(self) -> Seeds:
        """The seeds of this strategy's requests."""
        return Seeds()


@register("independent")
@dataclass(frozen=True)
class Independent(SampledStrategy):
    """GRPO's group: y_1 .. y_n ~ pi(. | x), sampled independently, for every prompt x.

    Paper: Shao et al. 2024, arXiv:2402.03300, section 4.1 (the group of GRPO). Edge: a prompt with count 0 gives an empty group; attempts
    whose `Sampling` is equal share one request (one prefill). Groups are in the order of the prompts, rollouts in that of attempts.
    """

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        drawn = self.draw([(prompt, count, ()) for prompt, count in zip(prompts, counts, strict=True)], run)
        return [Group(prompt=prompt, rollouts=rollouts) for prompt, rollouts in zip(prompts, drawn)]

    def draw(self, wanted: Sequence[tuple[Prompt, int, tuple[int, ...]]], run: RunContext) -> list[list[Rollout]]:
        """`count` rollouts of every (prompt, count, completion tokens to continue), in order; given tokens do not count for `max_tokens`."""
        requests = []
        for place, (prompt, count, given) in enumerate(wanted):
            for sampling, attempts in by_sampling(run, prompt, count):
                if given:
                    sampling = replace(sampling, max_tokens=sampling.max_tokens + len(given))
                requests.append(Request(prompt, sampling, len(attempts), self.seeds(run, prompt), given, (place, attempts)))
        found: dict[tuple[int, int], Rollout] = {}
        for completion in run.engine.generate(requests):
            place, attempts = completion.request.tag
            found[place, attempts[completion.index]] = run.make_rollout(completion)
        return [[found[place, attempt] for attempt in range(count)] for place, (_, count, _) in enumerate(wanted)]


def by_sampling(run: RunContext, prompt: Prompt, count: int) -> list[tuple[Sampling, list[int]]]:
    """The attempts 0 .. count - 1 of a prompt, grouped by the sampling parameters that `run.sampling` gives them."""
    grouped: list[tuple[Sampling, list[int]]] = []
    for attempt in range(count):
        sampling = run.sampling(prompt, attempt)
        members = next((members for known, members in grouped if known == sampling), None)
        if members is None:
            grouped.append((sampling, [attempt]))
        else:
            members.append(attempt)
    return grouped


def score_into_groups(groups: Sequence[Group], new: Sequence[Sequence[Rollout]], run: RunContext) -> list[list[Rollout]]:
    """Score new rollouts, one list per group, and append them to their groups. Returns, per group, those that could be scored."""
    scored = [Group(group.prompt, list(rollouts), group.id) for group, rollouts in zip(groups, new, strict=True)]
    run.score(scored)
    for group, addition in zip(groups, scored):
        group.rollouts += addition.rollouts
    return [addition.rollouts for addition in scored]


@register("multi_turn")
@dataclass(frozen=True)
class MultiTurn(SampledStrategy):
    """Search-R1's interleaved turns: y = (turn_1, reply_1, turn_2, reply_2, ...), turns sampled from the policy, replies from `environment`.

    The loss mask is False on replies. A text reply continues the rollout. A reply with pictures starts a new one, whose prompt is the conversation
    so far (earlier turns stay trainable in the rollouts before it); the reward shaping `last_turn_reward` gives all of them the last one's reward.
    `Rollout.text` holds the policy's turns alone, so that a tool's output can never answer for it; the annotations CONVERSATION, SEGMENT, TURNS,
    CALLS and TRANSCRIPT have the rest.
    Paper: Jin et al. 2025 (Search-R1), arXiv:2503.09516, sec. 3.1 (interleaved turns, retrieved tokens masked).
    Edge: a truncated turn, the last of `max_turns`, or a turn without a reply ends the conversation; longer replies are cut to `max_reply_tokens`,
    control tokens in them are broken up; a conversation whose environment raises is dropped and counted (`reward/errors`).
    Units: `sampling.max_tokens` is per turn.
    """

    max_turns: int = 4
    max_reply_tokens: int = 512
    provides: ClassVar[tuple[Capability, ...]] = (CONVERSATION, SEGMENT, TURNS, CALLS, TURN_TEXT, TRANSCRIPT)

    def __post_init__(self) -> None:
        if self.max_turns < 1 or self.max_reply_tokens < 1:
            raise ValueError(f"max_turns={self.max_turns} and max_reply_tokens={self.max_reply_tokens} must be at least 1")

    def check(self, run: RunContext) -> None:
        if run.environment is None:
            raise ConfigError(
                f"rollout: {self.name!r} needs an environment: set environment: {{name: ...}} (see `vlrl list environment`), "
                "or use rollout: {name: independent}"
            )
        if run.has(PICTURE_REPLIES) and not run.has(ONE_REWARD_PER_CONVERSATION):
            raise ConfigError(
                f"environment: {run.environment.name!r} replies with pictures, which makes several rollouts of a conversation; "
                f"add {ONE_REWARD_PER_CONVERSATION.hint}"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        conversations = [
            Conversation(place, attempt, prompt, run.sampling(prompt, attempt), self.seeds(run, prompt))
            for place, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
            for attempt in range(count)
        ]
        self.converse(conversations, run)
        groups = [Group(prompt, []) for prompt in prompts]
        for conversation in conversations:
            groups[conversation.prompt_index].rollouts += conversation.finished
        return groups

    def converse(self, conversations: Sequence[Conversation], run: RunContext) -> None:
        """Continue conversations to their end, all together: a round of turns is one call of the engine."""
        stops = run.environment.stops if run.environment is not None else ()
        active = list(conversations)
        while active:
            completions = run.engine.generate([conversation.request(stops) for conversation in active])
            active = [completion.request.tag for completion in completions if self.add_turn(completion, run)]
            active.sort(key=lambda conversation: (conversation.prompt_index, conversation.attempt))

    def add_turn(self, completion: Completion, run: RunContext) -> bool:
        """Append a finished turn and its reply. Returns True if the environment replied and it is the policy's turn again."""
        conversation: Conversation = completion.request.tag
        text = conversation.add_turn(completion, run.policy)
        if completion.finish == "stop" and conversation.turns < self.max_turns and run.environment is not None:
            with run.tool_call(conversation.prompt) as call:
                rollout = conversation.rollout(run, completion.finish)
                TURN_TEXT.set(rollout, text)
                reply = run.environment.reply(rollout)
                if reply is not None:
                    conversation.add_tool_reply([self.cut_message(message, run) for message in reply], run)
                    return True
            if call.failed:
                conversation.finished.clear()
                return False
        conversation.finished.append(conversation.rollout(run, completion.finish))
        return False

    def cut_message(self, message: Message, run: RunContext) -> Message:
        """A reply with its texts cut to `max_reply_tokens`."""
        content: Any = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        return {**message, "content": [{**part, "text": self.cut_text(part["text"], run)} if part["type"] == "text" else part for part in parts]}

    def cut_text(self, text: str, run: RunContext) -> str:
        """At most `max_reply_tokens` of a text."""
        text = text.replace("<|", "< |")  # a tool must not end a turn or open one
        ids = run.policy.encode_text(text)
        return text if len(ids) <= self.max_reply_tokens else run.policy.decode(ids[: self.max_reply_tokens]) + " ... (cut)"

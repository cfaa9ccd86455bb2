"""Conversations with an environment: the policy writes, a tool answers, until one of them is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlrl.methods.strategy._talk import Talk
from vlrl.methods.strategy.independent import Seeds
from vlrl.registry import ConfigError, register
from vlrl.stages import Strategy
from vlrl.types import Completion, Group, Message, Prompt

if TYPE_CHECKING:
    from vlrl.run import Run


@register("multi_turn")
@dataclass(frozen=True)
class MultiTurn(Strategy):
    """y = (turn_1, reply_1, turn_2, reply_2, ...): turns sampled from the policy, replies from `env`; the loss mask is False on replies.

    Paper: Jin et al. 2025 (Search-R1), arXiv:2503.09516, sec. 3.1 (interleaved turns, retrieved tokens masked). A text reply goes on in the same
    rollout. A reply with pictures starts a new one, whose prompt is the conversation so far (earlier turns stay trainable in the rollouts before
    it): shape `conversation` gives all of them the last one's reward. Edge: a turn cut by its length, the last of `max_turns`, or one that the
    environment does not answer ends the conversation; longer replies are cut to `max_reply_tokens`, control tokens in them are broken up.
    `Rollout.text` holds the policy's own words alone, so that a tool's output can never answer for it; `info` has conversation, segment, turns,
    calls and the transcript. Units: `decode.max_tokens` is per turn.
    """

    max_turns: int = 4
    max_reply_tokens: int = 512
    seeds: Seeds = field(init=False, default_factory=Seeds, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_turns < 1 or self.max_reply_tokens < 1:
            raise ValueError(f"max_turns={self.max_turns} and max_reply_tokens={self.max_reply_tokens} must be at least 1")

    def check(self, run: Run) -> None:
        if run.env is None:
            raise ConfigError(
                "strategy 'multi_turn' needs an environment: set `env: {name: ...}` (see `vlrl list env`), or use strategy 'independent'"
            )
        if getattr(run.env, "shows", False) and not any(getattr(shape, "joins_turns", False) for shape in run.shape.values()):
            fix = "add `shape: {turns: {name: conversation}}`"
            raise ConfigError(f"env {run.env.name!r} answers in pictures, and a conversation becomes several rollouts: {fix}")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        talks = [
            Talk(place, attempt, prompt, run.decode(prompt, attempt), self.seeds(run, prompt))
            for place, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
            for attempt in range(count)
        ]
        active = talks
        while active:
            still = []
            for completion in run.engine.generate([talk.request(getattr(run.env, "stops", ())) for talk in active]):
                if self.goes_on(run, completion):
                    still.append(completion.request.tag)
            active = sorted(still, key=lambda talk: (talk.place, talk.number))
        return [
            Group(prompt=prompt, rollouts=[r for talk in talks if talk.place == place for r in talk.done], info={"conversations": count})
            for place, (prompt, count) in enumerate(zip(prompts, counts))
        ]

    def goes_on(self, run: Run, completion: Completion) -> bool:
        """Take a finished turn in; True if the environment answered and it is the policy's turn again."""
        talk: Talk = completion.request.tag
        text = talk.heard(completion, run.policy)
        reply = None
        if completion.finish == "stop" and talk.turns < self.max_turns and run.env is not None:
            reply = run.env.reply(talk.rollout(run, completion.finish, turn_text=text))
        if reply is None:
            talk.done.append(talk.rollout(run, completion.finish))
            return False
        talk.answered([self.short(run, message) for message in reply], run)
        return True

    def short(self, run: Run, message: Message) -> Message:
        """A reply with its texts cut to `max_reply_tokens`."""
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        return {**message, "content": [{**part, "text": self.cut(run, part["text"])} if part["type"] == "text" else part for part in parts]}

    def cut(self, run: Run, text: str) -> str:
        """At most `max_reply_tokens` of a text."""
        text = text.replace("<|", "< |")  # no tool may end a turn or open one
        ids = run.policy.tokenizer.encode(text, add_special_tokens=False)
        return text if len(ids) <= self.max_reply_tokens else run.policy.decode(ids[: self.max_reply_tokens]) + " ... (cut)"

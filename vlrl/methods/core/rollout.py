"""Demonstrations in place of samples: the cold start's strategy.

G independent samples of every prompt: the default.

Conversations with an environment: the policy writes, a tool answers, until one of them is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from vlrl.methods.common.conversation import Talk
from vlrl.methods.core.advantage import GroupRelative
from vlrl.registry import ConfigError, register
from vlrl.stages import RolloutStrategy
from vlrl.types import Completion, Group, Message, Prompt, Request, Rollout, Sampling

if TYPE_CHECKING:
    from vlrl.context import RunContext


@register("expert")
@dataclass(frozen=True)
class Expert(RolloutStrategy):
    """y = tokens(row.target) + EOS, one rollout per prompt with source "expert"; no engine is asked.

    vlrl original (supervised fine-tuning as a strategy, with the loss `nll`). Edge: a prompt's `prefix` that opens the target is not repeated
    in the completion; a row without a target raises ValueError. `max_tokens` 0 keeps all; a longer target is refused, never cut.
    Units: `max_tokens` in tokens; log-probs of the sampler are 0 (the expert is taken as certain).
    """

    samples: ClassVar[bool] = False
    max_tokens: int = 0

    def check(self, run: RunContext) -> None:
        if run.objective.policy_loss.name != "zero_loss" and isinstance(run.advantage, GroupRelative):
            raise ConfigError(
                f"strategy {self.name} gives one demonstration per prompt, which advantage {run.advantage.name!r} has nothing to compare with; "
                "use surrogate: {name: none} and terms: {nll: {name: nll}}"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        return [Group(prompt=prompt, rollouts=[self.demonstrate(prompt, run)]) for prompt in prompts]

    def demonstrate(self, prompt: Prompt, run: RunContext) -> Rollout:
        """The rollout of a row's `target`. Raises ValueError where there is none or it is too long."""
        target = prompt.row.target
        if not target:
            raise ValueError(
                f"row {prompt.row.id!r} has no `target`: strategy 'expert' needs demonstrations; use strategy 'independent' for this data"
            )
        rollout = written(prompt, target, run)
        if self.max_tokens and len(rollout) > self.max_tokens:
            raise ValueError(
                f"row {prompt.row.id!r}: its target has {len(rollout)} tokens, strategy.max_tokens is {self.max_tokens}; raise it or drop the row"
            )
        rollout.logp = [0.0] * len(rollout)
        return rollout


def written(prompt: Prompt, text: str, run: RunContext) -> Rollout:
    """A text that somebody else wrote, and EOS, as a rollout of source "expert" without log-probs of its writer."""
    text = text.removeprefix(prompt.prefix)
    tokenizer = run.policy.tokenizer
    return Rollout(
        prompt=prompt, ids=[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id], text=prompt.prefix + text, source="expert",
        spaces=tuple(run.policy.spaces(prompt)), version=getattr(run.policy, "version", 0),
    )  # fmt: skip


@dataclass(frozen=True)
class Seeds:
    """Seeds by address: a function of the run's seed, its phase and step, the prompt, and how often it was asked for in this step.

    A row that several ranks drew has a stream of its own on each: all but the first to draw it add their rank.
    """

    state: dict[str, Any] = field(default_factory=lambda: {"at": None, "asked": {}})

    def __call__(self, run: RunContext, prompt: Prompt) -> int:
        at = (run.seed, getattr(run, "phase", ""), run.step)
        if self.state["at"] != at:
            self.state.update(at=at, asked={})
        asked = self.state["asked"]
        address = f"{prompt.row.id}/{prompt.key}"
        asked[address] = asked.get(address, 0) + 1
        stats = getattr(run, "stats", None)
        rank = (stats.shared[prompt.row.id],) if stats and prompt.row.id in stats.shared else ()
        digest = hashlib.blake2b(repr((at, address, asked[address], *rank)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1  # 63 bits: every engine takes it


@register("independent")
@dataclass(frozen=True)
class Independent(RolloutStrategy):
    """y_1 .. y_n ~ pi(. | x), independently, for every prompt x.

    Paper: Shao et al. 2024, arXiv:2402.03300, section 4.1 (the group of GRPO). Edge: a prompt with count 0 gives an empty group; attempts
    whose `Sampling` is equal share one request (one prefill). Groups come back in the order of the prompts, rollouts in that of attempts.
    """

    seeds: Seeds = field(init=False, default_factory=Seeds, repr=False, compare=False)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        drawn = self.draw([(prompt, count, ()) for prompt, count in zip(prompts, counts, strict=True)], run)
        return [Group(prompt=prompt, rollouts=rollouts) for prompt, rollouts in zip(prompts, drawn)]

    def draw(self, wanted: Sequence[tuple[Prompt, int, tuple[int, ...]]], run: RunContext) -> list[list[Rollout]]:
        """`count` rollouts of every (prompt, count, completion tokens to go on from), in order; given tokens come on top of `max_tokens`."""
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
    """The attempts 0 .. count - 1 of a prompt, gathered by what `run.sampling` wants for them."""
    gathered: list[tuple[Sampling, list[int]]] = []
    for attempt in range(count):
        sampling = run.sampling(prompt, attempt)
        members = next((members for known, members in gathered if known == sampling), None)
        if members is None:
            gathered.append((sampling, [attempt]))
        else:
            members.append(attempt)
    return gathered


@register("multi_turn")
@dataclass(frozen=True)
class MultiTurn(RolloutStrategy):
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

    def check(self, run: RunContext) -> None:
        if run.environment is None:
            raise ConfigError(
                "strategy 'multi_turn' needs an environment: set `env: {name: ...}` (see `vlrl list env`), or use strategy 'independent'"
            )
        if getattr(run.environment, "shows", False) and not any(getattr(shape, "joins_turns", False) for shape in run.reward_shaping.values()):
            fix = "add `shape: {turns: {name: conversation}}`"
            raise ConfigError(f"env {run.environment.name!r} answers in pictures, and a conversation becomes several rollouts: {fix}")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        talks = [
            Talk(place, attempt, prompt, run.sampling(prompt, attempt), self.seeds(run, prompt))
            for place, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
            for attempt in range(count)
        ]
        active = talks
        while active:
            still = []
            for completion in run.engine.generate([talk.request(getattr(run.environment, "stops", ())) for talk in active]):
                if self.goes_on(run, completion):
                    still.append(completion.request.tag)
            active = sorted(still, key=lambda talk: (talk.place, talk.number))
        return [
            Group(prompt=prompt, rollouts=[r for talk in talks if talk.place == place for r in talk.done], info={"conversations": count})
            for place, (prompt, count) in enumerate(zip(prompts, counts))
        ]

    def goes_on(self, run: RunContext, completion: Completion) -> bool:
        """Take a finished turn in; True if the environment answered and it is the policy's turn again."""
        talk: Talk = completion.request.tag
        text = talk.heard(completion, run.policy)
        reply = None
        if completion.finish == "stop" and talk.turns < self.max_turns and run.environment is not None:
            reply = run.environment.reply(talk.rollout(run, completion.finish, turn_text=text))
        if reply is None:
            talk.done.append(talk.rollout(run, completion.finish))
            return False
        talk.answered([self.short(run, message) for message in reply], run)
        return True

    def short(self, run: RunContext, message: Message) -> Message:
        """A reply with its texts cut to `max_reply_tokens`."""
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        return {**message, "content": [{**part, "text": self.cut(run, part["text"])} if part["type"] == "text" else part for part in parts]}

    def cut(self, run: RunContext, text: str) -> str:
        """At most `max_reply_tokens` of a text."""
        text = text.replace("<|", "< |")  # no tool may end a turn or open one
        ids = run.policy.tokenizer.encode(text, add_special_tokens=False)
        return text if len(ids) <= self.max_reply_tokens else run.policy.decode(ids[: self.max_reply_tokens]) + " ... (cut)"

"""Rollout strategies: how prompts become groups of rollouts.

independent   n samples of every prompt (the default)
expert        demonstrations in place of samples, for supervised fine-tuning
multi_turn    conversations with an environment: the policy writes, a tool replies
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

from vlrl.methods.common.conversation import Conversation, NoRoom, tool_reply_ids
from vlrl.methods.common.demonstrations import expert_rollout
from vlrl.methods.core.advantage import GroupRelative
from vlrl.plugins.capabilities import NO_POLICY_GRADIENT, Capability
from vlrl.plugins.contexts import PhaseContext, SamplingContext
from vlrl.plugins.episodes import (
    EPISODE_ANNOTATIONS,
    FORGETS,
    ONE_REWARD_PER_CONVERSATION,
    PICTURE_REPLIES,
    EpisodeEnd,
    Observation,
)
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import RolloutStrategy
from vlrl.types import Completion, Group, Message, Prompt, Request, Rollout, Sampling

SUMMARY_REQUEST = (
    "The conversation is too long to go on. Sum up what you have found out and done so far, and what is "
    "left to do. From now on you see the task, "
    "your summary and the result of your last turn, and nothing else."
)


@register("expert")
@dataclass(frozen=True)
class Expert(RolloutStrategy):
    """Supervised fine-tuning: one rollout per prompt, y = tokens(row.target) + EOS, with source "expert"; the
    engine is not used.

    vlrl original (with the loss term `nll`). Edge: a prompt's `prefix` that opens the target is not repeated
    in the completion; a row without a target raises ValueError. `max_tokens` 0 is no limit; a longer target
    is refused, never cut.
    Units: `max_tokens` in tokens; log-probs of the sampler are 0 (the expert is taken as certain).
    """

    samples: ClassVar[bool] = False
    max_tokens: int = 0

    def check(self, phase: PhaseContext) -> None:
        if not phase.has(NO_POLICY_GRADIENT) and isinstance(phase.advantage, GroupRelative):
            raise ConfigError(
                f"rollout: {self.name!r} gives one demonstration per prompt, and advantage "
                f"{phase.advantage.name!r} compares the rollouts of a prompt; "
                "use policy_loss: {name: zero_loss} and loss_terms: {nll: {name: nll}}"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        return [Group(prompt=prompt, rollouts=[self.demonstrate(prompt, run)]) for prompt in prompts]

    def demonstrate(self, prompt: Prompt, run: SamplingContext) -> Rollout:
        """The rollout of a row's `target`. Raises ValueError where there is none or it is too long."""
        target = prompt.row.target
        if not target:
            raise ValueError(
                f"row {prompt.row.id!r} has no `target`: rollout 'expert' needs demonstrations; use "
                f"rollout: {{name: independent}} for this data"
            )
        rollout = expert_rollout(prompt, target, run)
        if self.max_tokens and len(rollout) > self.max_tokens:
            raise ValueError(
                f"row {prompt.row.id!r}: its target has {len(rollout)} tokens, rollout.max_tokens is "
                f"{self.max_tokens}; raise it or drop the row"
            )
        rollout.logp = [0.0] * len(rollout)
        return rollout


class Seeds:
    """Seeds of requests: a function of the run's seed, phase and step, of the prompt, and of how often the
    prompt was requested in this step.

    A row that several ranks drew has its own random stream on each of them: all ranks but the first to draw
    it add their rank.
    """

    def __init__(self) -> None:
        self.step: tuple[int, str, int] | None = None
        self.requests: dict[str, int] = {}  # of `step`, by prompt

    def __call__(self, run: SamplingContext, prompt: Prompt) -> int:
        step = (run.seed, run.phase, run.step)
        if self.step != step:
            self.step, self.requests = step, {}
        address = f"{prompt.row.id}/{prompt.key}"
        self.requests[address] = self.requests.get(address, 0) + 1
        rank = run.row_copy(prompt.row)
        digest = hashlib.blake2b(
            repr((step, address, self.requests[address], *rank)).encode(), digest_size=8
        ).digest()
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

    Paper: Shao et al. 2024, arXiv:2402.03300, section 4.1 (the group of GRPO). Edge: a prompt with count 0
    gives an empty group; attempts whose `Sampling` is equal share one request (one prefill). Groups are in
    the order of the prompts, rollouts in that of attempts.
    """

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        drawn = self.draw([(prompt, count, ()) for prompt, count in zip(prompts, counts, strict=True)], run)
        return [Group(prompt=prompt, rollouts=rollouts) for prompt, rollouts in zip(prompts, drawn)]

    def draw(
        self, wanted: Sequence[tuple[Prompt, int, tuple[int, ...]]], run: SamplingContext
    ) -> list[list[Rollout]]:
        """`count` rollouts of every (prompt, count, completion tokens to continue), in order; given tokens do
        not count for `max_tokens`."""
        requests = []
        for place, (prompt, count, given) in enumerate(wanted):
            for sampling, attempts in by_sampling(run, prompt, count):
                if given:
                    sampling = replace(sampling, max_tokens=sampling.max_tokens + len(given))
                requests.append(
                    Request(
                        prompt, sampling, len(attempts), self.seeds(run, prompt), given, (place, attempts)
                    )
                )
        found: dict[tuple[int, int], Rollout] = {}
        for completion in run.engine.generate(requests):
            place, attempts = completion.request.tag
            found[place, attempts[completion.index]] = run.make_rollout(completion)
        return [
            [found[place, attempt] for attempt in range(count)] for place, (_, count, _) in enumerate(wanted)
        ]


def by_sampling(run: SamplingContext, prompt: Prompt, count: int) -> list[tuple[Sampling, list[int]]]:
    """The attempts 0 .. count - 1 of a prompt, grouped by the sampling parameters that `run.sampling` gives
    them."""
    grouped: list[tuple[Sampling, list[int]]] = []
    for attempt in range(count):
        sampling = run.sampling(prompt, attempt)
        members = next((members for known, members in grouped if known == sampling), None)
        if members is None:
            grouped.append((sampling, [attempt]))
        else:
            members.append(attempt)
    return grouped


def score_into_groups(
    groups: Sequence[Group], new: Sequence[Sequence[Rollout]], run: SamplingContext
) -> list[list[Rollout]]:
    """Score new rollouts, one list per group, and append them to their groups. Returns, per group, those that
    could be scored."""
    scored = [
        Group(group.prompt, list(rollouts), group.id) for group, rollouts in zip(groups, new, strict=True)
    ]
    run.score(scored)
    for group, addition in zip(groups, scored):
        group.rollouts += addition.rollouts
    return [addition.rollouts for addition in scored]


@register("multi_turn")
@dataclass(frozen=True)
class MultiTurn(SampledStrategy):
    """Search-R1's interleaved turns: y = (turn_1, observation_1, turn_2, ...), turns sampled from the policy,
    observations from `environment`.

    The loss mask is False on observations. A text continues the rollout; one with pictures, or one that makes
    the policy forget, starts a new rollout, whose prompt is the conversation so far. `Rollout.text` holds the
    policy's turns alone. A truncated turn ends the conversation and is not carried out; the last of
    `max_turns` is. A conversation whose environment fails is dropped and counted (`reward/errors`,
    `environment/end/error`). Annotations, summaries, bounds and errors: docs/environments.md. Paper: Jin et
    al. 2025 (Search-R1), arXiv:2503.09516, sec. 3.1 (interleaved turns, retrieved tokens masked); summaries:
    Wu et al. 2025 (ReSum), arXiv:2509.13313, sec. 3; CompactionRL, arXiv:2607.05378. Units:
    `sampling.max_tokens` is per turn.

    Attributes:
        show_tools: The schemas of the environment's tools are in the prompt: by the chat template, or in the
            system text where it drops them.
        patience: Seconds after a round of turns; a conversation whose environment has not answered joins a
            later round.
        max_invalid: More actions than this that could not be carried out end the conversation (-1: no limit).
        max_context: Tokens of prompt and conversation (0: no limit).
        overflow: An observation that leaves no room for a turn of `min_turn_tokens` within `max_context` is
            cut to half of the room ("cut"), replaced by a note that it is too long ("refuse"), ends the
            conversation ("end"; one with pictures always does), or has the policy asked for a summary
            ("summarise": `summary_request`, at most `summary_tokens`).
        summary_loss: The summary is trained, with the conversation's reward.
        max_reply_tokens: Tokens of an observation.
        act_on_cut: A turn cut at `sampling.max_tokens` is carried out, and the conversation goes on.
    """

    max_turns: int = 4
    max_reply_tokens: int = 512
    max_context: int = 0
    min_turn_tokens: int = 8
    overflow: Literal["cut", "refuse", "end", "summarise"] = "cut"
    summary_tokens: int = 256
    summary_request: str = SUMMARY_REQUEST
    summary_loss: bool = True
    max_invalid: int = -1
    patience: float = 1.0
    show_tools: bool = True
    act_on_cut: bool = False
    provides: ClassVar[tuple[Capability, ...]] = EPISODE_ANNOTATIONS

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_reply_tokens", "min_turn_tokens", "summary_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.overflow == "summarise" and not self.max_context:
            raise ValueError(
                "overflow='summarise' needs max_context, the tokens beyond which a conversation is "
                "summarised; it is 0 (no limit)"
            )
        if self.max_context < 0 or self.max_invalid < -1 or self.patience < 0:
            raise ValueError(
                f"max_context={self.max_context} and patience={self.patience} must not be negative, nor "
                f"max_invalid={self.max_invalid} below -1"
            )

    def check(self, phase: PhaseContext) -> None:
        if phase.environment is None:
            raise ConfigError(
                f"rollout: {self.name!r} needs an environment: set environment: {{name: ...}} (see `vlrl "
                "list environment`), "
                "or use rollout: {name: independent}"
            )
        causes = {
            f"environment: {phase.environment.name!r} replies with pictures": phase.has(PICTURE_REPLIES),
            f"environment: {phase.environment.name!r} takes parts out of the context": phase.has(FORGETS),
            "rollout.overflow: 'summarise' begins again behind a summary": self.overflow == "summarise",
        }
        cause = next((cause for cause, holds in causes.items() if holds), "")
        if cause and not phase.has(ONE_REWARD_PER_CONVERSATION):
            raise ConfigError(
                f"{cause}, which makes several rollouts of a conversation; add "
                f"{ONE_REWARD_PER_CONVERSATION.hint}"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        shown = [self.with_tools(prompt, run) for prompt in prompts]
        conversations = [
            Conversation(
                place,
                attempt,
                prompt,
                self.sampling_of(prompt, attempt, run),
                self.seeds(run, prompt),
                max_context=self.max_context,
            )
            for place, (prompt, count) in enumerate(zip(shown, counts, strict=True))
            for attempt in range(count)
        ]
        self.converse(conversations, run)
        groups = [Group(prompt, []) for prompt in shown]
        for conversation in conversations:
            group = groups[conversation.prompt_index]
            group.prompt = conversation.opened or group.prompt
            group.rollouts += conversation.finished
        return groups

    def sampling_of(self, prompt: Prompt, attempt: int, run: SamplingContext) -> Sampling:
        """The sampling parameters of a conversation; a strategy whose prompts have several roles overrides
        it."""
        return run.sampling(prompt, attempt)

    def play(
        self, prompts: Sequence[Prompt], samplings: Sequence[Sampling], run: SamplingContext
    ) -> list[list[Rollout] | str] | None:
        if run.environment is None:
            return None
        shown = [self.with_tools(prompt, run) for prompt in prompts]
        conversations = [
            Conversation(place, 0, prompt, sampling, run.seed, max_context=self.max_context)
            for place, (prompt, sampling) in enumerate(zip(shown, samplings, strict=True))
        ]
        self.converse(conversations, run, counted=False)
        return [conversation.failure or conversation.finished for conversation in conversations]

    def with_tools(self, prompt: Prompt, run: SamplingContext) -> Prompt:
        """The prompt with the schemas of the environment's tools."""
        tools = list(run.environment.tools()) if run.environment is not None and self.show_tools else []
        if not tools:
            return prompt
        train = None if prompt.train is None else self.with_tools(prompt.train, run)
        return replace(prompt, options={**prompt.options, "tools": tools}, train=train)

    def converse(
        self, conversations: Sequence[Conversation], run: SamplingContext, counted: bool = True
    ) -> None:
        """Continue conversations to their end, all together: a round of turns is one call of the engine, made
        while the environment works.

        Without `counted` the run's statistics are left alone (held-out evaluation).
        """
        stops = run.environment.stops if run.environment is not None else ()
        with run.episodes(counted) as pool:
            for conversation in conversations:
                conversation.reserve = (
                    self.reserve_for(conversation.prompt, run) if self.overflow == "summarise" else 0
                )
                pool.start(
                    conversation,
                    conversation.prompt.row,
                    episode_seed(run, conversation.prompt),
                    conversation.past,
                )
            while pool.busy:
                ready = [
                    handle for handle in pool.collect(self.patience) if self.on_observation(handle, pool, run)
                ]
                ready.sort(key=lambda handle: (handle.owner.prompt_index, handle.owner.attempt))
                ready = self.summarise(ready, pool, run)
                self.before_turns(ready, pool, run)
                handles = {id(handle.owner): handle for handle in ready}
                for completion in (
                    self.turns([handle.owner.request(stops, run.policy) for handle in ready], run)
                    if ready
                    else ()
                ):
                    self.on_turn(completion, handles[id(completion.request.tag)], pool, run)
        if run.engine is not None:  # demonstrations need none
            run.engine.release()

    def before_turns(self, ready: Sequence[Any], pool: Any, run: SamplingContext) -> None:
        """Called before each round with the handles of the conversations that go on, in order; a strategy
        that branches starts more in `pool`."""

    def turns(self, requests: Sequence[Request], run: SamplingContext) -> Iterable[Completion]:
        """The policy's next turns; a strategy that samples them from several policies overrides it."""
        return run.engine.generate(requests)

    def on_turn(self, completion: Completion, handle: Any, pool: Any, run: SamplingContext) -> None:
        """Append a finished turn and hand it to the environment; a turn that was cut is not carried out, but
        for `act_on_cut`."""
        conversation: Conversation = handle.owner
        room = conversation.room(run.policy)
        conversation.add_turn(completion, run.policy)
        at_limit = completion.finish == "length" and room >= conversation.sampling.max_tokens
        if completion.finish == "stop" or (self.act_on_cut and at_limit):
            pool.step(handle, conversation.action(run.policy))
            return
        self.end(
            handle,
            pool,
            run,
            "context" if room < conversation.sampling.max_tokens else "length",
            completion.finish,
        )

    def on_observation(self, handle: Any, pool: Any, run: SamplingContext) -> bool:
        """Append what the environment answered. Returns True where it is the policy's turn."""
        conversation: Conversation = handle.owner
        end: EpisodeEnd | None = None
        if handle.error is None:
            with pool.guard(handle):
                end = self.append_answer(conversation, handle.observation, pool, run)
        if handle.error is not None:
            conversation.fail(handle.error)
            return False
        if end is not None:
            self.end(handle, pool, run, end, "length" if end == "context" else "stop")
        return end is None

    def summarise(self, ready: Sequence[Any], pool: Any, run: SamplingContext) -> list[Any]:
        """Sample the summaries that are asked for and append the observations that wait for them. Returns the
        handles that go on."""
        asked = {id(handle.owner): handle for handle in ready if handle.owner.waiting is not None}
        requests = [
            handle.owner.summary_request(self.summary_tokens, run.policy) for handle in asked.values()
        ]
        for completion in run.engine.generate(requests) if requests else ():
            conversation: Conversation = completion.request.tag
            handle, answer = asked[id(conversation)], conversation.waiting
            assert answer is not None
            conversation.add_summary(completion, self.summary_loss, run.policy)
            cut = completion.finish == "length"
            pool.count({"summaries": 1, "summaries_cut": cut, "summary_tokens": len(conversation.summary)})
            fits = False
            with pool.guard(handle):
                fits = self.fits(conversation, answer, pool, run)
            if handle.error is not None:
                conversation.fail(handle.error)
            elif not fits:
                self.end(handle, pool, run, "context", "length")
        return [handle for handle in ready if not handle.closed]

    def reserve_for(self, prompt: Prompt, run: SamplingContext) -> int:
        """Tokens that a summary needs with its request."""
        message: Message = {"role": "user", "content": [{"type": "text", "text": self.summary_request}]}
        return self.summary_tokens + len(
            tool_reply_ids(run.policy, prompt, [message], run.policy.encode_text("x")[-1])
        )

    def append_answer(
        self, conversation: Conversation, answer: Observation, pool: Any, run: SamplingContext
    ) -> EpisodeEnd | None:
        """Append an answer. Returns why the conversation is over, or None."""
        if not conversation.begun:
            conversation.open(answer, run)
            return None
        conversation.note(answer)
        if answer.done:
            return "done"
        if conversation.turns >= self.max_turns:
            return "max_turns"
        if 0 <= self.max_invalid < conversation.invalid:
            return "invalid_action"
        return None if self.fits(conversation, answer, pool, run) else "context"

    def fits(self, conversation: Conversation, answer: Observation, pool: Any, run: SamplingContext) -> bool:
        """Append an observation, cut or replaced where it is too long, or ask for a summary. Returns False
        where nothing fits."""
        shown = replace(answer, text=self.cut_text(answer.text, self.max_reply_tokens, run))
        room = conversation.room(run.policy)
        other, summarised = [shown], bool(conversation.summary)
        if not shown.media and (self.overflow == "cut" or summarised):
            other += [
                replace(shown, text=self.cut_text(answer.text, room // share, run))
                for share in (2, 4, 8)
                if room >= share
            ]
        if not shown.media and self.overflow == "refuse":
            other += [
                replace(shown, text="Error: the result is too long for what is left of the conversation.")
            ]
        for attempt, observation in enumerate(other):
            try:
                conversation.add_observation(observation, run, self.min_turn_tokens)
            except NoRoom:
                continue
            if attempt:
                pool.count({"observations_cut": 1})
            return True
        if self.overflow == "summarise" and not summarised:
            conversation.ask_summary(self.summary_request, answer, run.policy)
            return True
        return False

    def end(self, handle: Any, pool: Any, run: SamplingContext, end: EpisodeEnd, finish: str) -> None:
        """The end of a conversation: its last rollout is made, its episode closed."""
        handle.owner.finish(run, finish, end)
        pool.close(handle, end)

    def cut_text(self, text: str, limit: int, run: SamplingContext) -> str:
        """At most `limit` tokens of a text."""
        text = text[: 64 * limit].replace("<|", "< |") + (
            "" if len(text) <= 64 * limit else " ... (cut)"
        )  # a tool must not end a turn or open one
        ids = run.policy.encode_text(text)
        return text if len(ids) <= limit else run.policy.decode(ids[:limit]) + " ... (cut)"


def episode_seed(run: SamplingContext, prompt: Prompt) -> int:
    """The seed of an episode: a function of the run's seed, phase and step and of the row, so that all
    rollouts of a prompt begin alike."""
    digest = hashlib.blake2b(
        repr((run.seed, run.phase, run.step, prompt.row.id)).encode(), digest_size=8
    ).digest()
    return int.from_bytes(digest, "little") >> 33  # 31 bits: every simulator takes it

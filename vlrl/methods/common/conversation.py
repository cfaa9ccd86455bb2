"""Conversations with an environment: the turns of the policy, the observations, and the rollouts that they
become.

A conversation is one rollout as long as the observations are text. A new rollout (a *segment* of the
conversation) starts after an observation with pictures, whose prompt is the conversation so far; after one
that makes the policy forget (`Observation.forget`), whose prompt leaves that part out; and after a summary,
whose prompt is the first one with the summary as the policy's turn. Each segment is trained with the prompt
that it was sampled from. Token ids are only appended: what was sampled is never tokenised again. An
observation is appended whole (ids, mask, pictures) or not at all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlrl.plugins.contexts import SamplingContext
from vlrl.plugins.episodes import (
    ACTIONS,
    CALLS,
    CONVERSATION,
    END_STATE,
    EPISODE_END,
    EPISODE_RETURN,
    INVALID_ACTIONS,
    SEGMENT,
    TRANSCRIPT,
    TURN_PARTS,
    TURN_REWARDS,
    TURN_SPANS,
    TURN_STATES,
    TURNS,
    Action,
    EpisodeEnd,
    Observation,
    Past,
    stated_return,
)
from vlrl.types import Completion, Message, Prompt, Request, Rollout, Sampling

MARK = "VLRLASSISTANTTURN"  # a text that the chat template writes where the policy's turn stands
LEFT_OUT = "(left out)"  # stands in place of a forgotten observation, so that roles still alternate


class NoRoom(ValueError):
    """An observation does not fit into what is left of the conversation."""


@dataclass
class Segment:
    """The tokens since the last picture was shown. `sampled` is True on the policy's tokens, False on those
    of observations."""

    ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turn_texts: list[str] = field(default_factory=list)  # of the policy's turns
    messages: list[Message] = field(default_factory=list)  # the policy's and the environment's
    spans: list[list[int]] = field(
        default_factory=list
    )  # per turn: its number from 0, its first token, one after its last

    def add(self, ids: Sequence[int], logp: Sequence[float], sampled: bool, versions: Sequence[int]) -> None:
        """Append tokens. Raises ValueError, and appends nothing, where the lengths differ."""
        if not len(ids) == len(logp) == len(versions):
            raise ValueError(
                f"{len(ids)} token ids, {len(logp)} log-probs and {len(versions)} versions; their numbers "
                "must be equal"
            )
        self.ids += ids
        self.logp += logp
        self.sampled += [sampled] * len(ids)
        self.versions += versions


@dataclass(eq=False)
class Conversation:
    """One conversation: the `attempt`-th of the prompt at `prompt_index`. `finished` are the rollouts of its
    segments, the last one at its end.

    `actions`, `rewards` and `states` have one entry per turn of the episode. `max_context` bounds the tokens
    of prompt and conversation (0: none).
    """

    prompt_index: int
    attempt: int
    prompt: Prompt
    sampling: Sampling
    seed: int
    segment: Segment = field(default_factory=Segment)
    turns: int = 0
    calls: int = 0
    finished: list[Rollout] = field(default_factory=list)
    max_context: int = 0
    actions: list[str] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)
    invalid: int = 0
    reserve: int = 0  # tokens of `max_context` that turns and observations leave free for a summary
    waiting: Observation | None = (
        None  # the observation that is shown after the summary of what was said before it
    )
    summary: list[int] = field(default_factory=list)  # its token ids, until the observation is shown
    summaries: int = 0
    past: Past | None = (
        None  # what the environment has to repeat before the next action: of a resumed conversation
    )
    state: str = ""  # key of the state in which the next turn is written
    opened: Prompt | None = None  # the prompt with the opening observation
    begun: bool = False  # whether the environment has begun the episode
    failure: str = ""  # why the environment failed
    demonstrated: str = ""  # the next turn, where an expert writes it

    def room(self, policy: Any) -> int:
        """Tokens that are left for the next turn or observation, or for a summary that was asked for."""
        if not self.max_context:
            return 1 << 30
        if self.waiting is not None and not self.summary:
            return self.max_context - len(policy.encode(self.prompt)) - len(self.segment.ids)
        prompt, ids = (self.begin, self.summary) if self.summary else (self.prompt, self.segment.ids)
        return self.max_context - self.reserve - len(policy.encode(prompt)) - len(ids)

    @property
    def begin(self) -> Prompt:
        """The prompt with the opening observation, without the beginning of a turn."""
        return replace(self.opened or self.prompt, prefix="", train=None)

    def open(self, opening: Observation, run: SamplingContext) -> None:
        """Append the opening observation to the last message of the prompt, unless it is empty or shown
        already (in a resumed conversation).

        Raises NoRoom where the prompt is too long.
        """
        self.begun, self.state = True, opening.state_key
        if self.opened is not None:
            return
        prompt = self.prompt if opening.empty else with_opening(self.prompt, opening)
        if self.max_context and len(run.policy.encode(prompt)) + self.reserve >= self.max_context:
            kept = f", of which {self.reserve} are kept for a summary" if self.reserve else ""
            raise NoRoom(
                f"the prompt has {len(run.policy.encode(prompt))} tokens, rollout.max_context is "
                f"{self.max_context}{kept}"
            )
        self.prompt = self.opened = prompt

    def request(self, stops: Sequence[str], policy: Any) -> Request:
        """The request for the policy's next turn, which ends where the conversation's room does."""
        limit = len(self.segment.ids) + min(self.sampling.max_tokens, max(self.room(policy), 1))
        sampling = replace(self.sampling, stop=(*self.sampling.stop, *stops), max_tokens=limit)
        seed = (self.seed + self.turns) % 2**63
        return Request(
            self.prompt, sampling, seed=seed, prefix_ids=tuple(self.segment.ids), tag=self, score_prefix=False
        )

    def add_turn(self, completion: Completion, policy: Any) -> str:
        """Append the policy's turn. Returns its text. Raises ValueError where the engine did not continue the
        tokens that it was given."""
        segment, start = self.segment, len(self.segment.ids)
        text = self._extend(completion, True, policy)
        segment.turn_texts.append(text)
        segment.messages.append(
            {
                "role": "assistant",
                "content": [{"type": "text", "text": (self.prompt.prefix if start == 0 else "") + text}],
            }
        )
        segment.spans.append([self.turns, start, len(segment.ids)])
        self.turns += 1
        self.actions.append(text)
        self.states.append(self.state)
        return text

    def _extend(self, completion: Completion, trained: bool, policy: Any) -> str:
        """Append what a completion has behind the tokens so far. Returns its text."""
        segment, start = self.segment, len(self.segment.ids)
        if list(completion.ids[:start]) != segment.ids:
            raise ValueError(f"row {self.prompt.row.id!r}: the engine changed the tokens of earlier turns")
        versions = (
            completion.version
            if isinstance(completion.version, list)
            else [completion.version] * len(completion.ids)
        )
        segment.add(completion.ids[start:], completion.logp[start:], trained, versions[start:])
        return policy.decode(completion.ids[start:])

    def ask_summary(self, text: str, observation: Observation, policy: Any) -> None:
        """Append the request for a summary in place of an observation, which waits for it."""
        message: Message = {"role": "user", "content": [{"type": "text", "text": text}]}
        ids = tool_reply_ids(policy, self.prompt, [message], self.segment.ids[-1])
        self.segment.add(ids, [0.0] * len(ids), False, [self.segment.versions[-1]] * len(ids))
        self.segment.messages.append(message)
        self.waiting = observation

    def summary_request(self, limit: int, policy: Any) -> Request:
        """The request for a summary of at most `limit` tokens."""
        sampling = replace(
            self.sampling, max_tokens=len(self.segment.ids) + max(min(limit, self.room(policy)), 1)
        )
        seed = (self.seed + self.turns + (1 << 40)) % 2**63  # a random stream besides those of the turns
        return Request(
            self.prompt, sampling, seed=seed, prefix_ids=tuple(self.segment.ids), tag=self, score_prefix=False
        )

    def add_summary(self, completion: Completion, trained: bool, policy: Any) -> None:
        """Append the summary. `add_observation` of the waiting observation begins the segment that sees the
        summary in place of the history."""
        start = len(self.segment.ids)
        text = self._extend(completion, trained, policy)
        if trained:
            self.segment.spans.append([self.turns, start, len(self.segment.ids)])
        self.segment.messages.append({"role": "assistant", "content": [{"type": "text", "text": text}]})
        self.summary, self.summaries = self.segment.ids[start:], self.summaries + 1

    def action(self, policy: Any) -> Action:
        """The policy's last turn for the environment."""
        return replace(self.view(policy), text=self.actions[-1], turn=self.turns)

    def view(self, policy: Any) -> Action:
        """What the next turn is written on, as an action without text."""
        spaces = tuple(policy.spaces(self.prompt)) if self.prompt.images or self.prompt.videos else ()
        return Action("", self.turns + 1, self.prompt.images, self.prompt.videos, spaces)

    def note(self, answer: Observation) -> None:
        """Keep what the environment says about the last turn."""
        self.rewards.append(answer.reward)
        for name, value in answer.parts.items():
            self.parts[name] = self.parts.get(name, 0.0) + float(value)
        self.invalid += answer.invalid
        self.state = answer.state_key

    def add_observation(self, observation: Observation, run: SamplingContext, least: int = 1) -> None:
        """Append an observation: text continues the segment; pictures, something to forget, and a summary end
        it.

        Raises NoRoom, and appends nothing, where less than `least` tokens are left for the next turn;
        ValueError where the tokens do not show as many pictures as there are; whatever decoding and
        processing of a picture raises.
        """
        policy, media = run.policy, observation.media
        plain: list[Message] = [
            {**m, "content": [{k: v for k, v in part.items() if k != "media"} for part in m["content"]]}
            for m in observation.messages
        ]
        kept = remembered(self.prompt, self.segment, observation.forget, policy)
        if self.summary:
            kept = self.begin, self.summary, self.segment.messages[-1:]
        if not media and kept is None:
            reply_ids = tool_reply_ids(policy, self.prompt, plain, self.segment.ids[-1])
            if self.room(policy) < len(reply_ids) + least:
                raise NoRoom(f"an observation of {len(reply_ids)} tokens, and {self.room(policy)} are left")
            self.segment.add(
                reply_ids, [0.0] * len(reply_ids), False, [self.segment.versions[-1]] * len(reply_ids)
            )
            self.segment.messages += plain
            self.calls += 1
            return
        images, videos = (tuple(m for m in media if m.kind == kind) for kind in ("image", "video"))
        before, since, messages = kept or (self.prompt, self.segment.ids, self.segment.messages)
        prompt = replace(
            before,
            messages=(*before.messages, *messages, *plain),
            images=before.images + images,
            videos=before.videos + videos,
            prefix="",
            train=None,
            continues=(before, tuple(since), tool_reply_text(policy, before, plain, since[-1])),
        )
        length = len(policy.encode(prompt))  # raises here for a picture that cannot be decoded or processed
        if self.max_context and length + least + self.reserve > self.max_context:
            raise NoRoom(
                f"with the observation the conversation has {length} tokens of "
                f"{self.max_context - self.reserve}"
            )
        rollout = self.rollout(run, "stop")
        self.finished.append(rollout)
        self.calls += 1
        self.prompt, self.segment, self.waiting, self.summary = prompt, Segment(), None, []

    def fail(self, error: BaseException) -> None:
        """The environment failed: nothing of the conversation is trained."""
        self.finished.clear()
        self.failure = f"environment: {type(error).__name__}: {error}"

    def rollout(self, run: SamplingContext, finish: Any) -> Rollout:
        """The present segment as a rollout."""
        segment, request = self.segment, Request(prompt=self.prompt, sampling=self.sampling, seed=self.seed)
        versions: Any = segment.versions[0] if len(set(segment.versions)) == 1 else list(segment.versions)
        text = "\n".join(segment.turn_texts)
        rollout = run.make_rollout(
            Completion(request, 0, list(segment.ids), list(segment.logp), text, finish, versions)
        )
        rollout.loss_mask = None if all(segment.sampled) else list(segment.sampled)
        CONVERSATION.set(rollout, self.attempt)
        SEGMENT.set(rollout, len(self.finished))
        TURNS.set(rollout, self.turns)
        CALLS.set(rollout, self.calls)
        TRANSCRIPT.set(rollout, run.policy.decode(segment.ids))
        TURN_SPANS.set(rollout, [list(span) for span in segment.spans])
        return rollout

    def finish(self, run: SamplingContext, finish: Any, end: EpisodeEnd) -> None:
        """The end: the last segment becomes a rollout, and every rollout says what the episode was."""
        self.finished.append(self.rollout(run, finish))
        total = stated_return(self.rewards)
        for rollout in self.finished:
            EPISODE_END.set(rollout, end)
            ACTIONS.set(rollout, list(self.actions))
            TURN_REWARDS.set(
                rollout,
                [float(value or 0.0) for value in self.rewards] + [0.0] * (self.turns - len(self.rewards)),
            )
            TURN_STATES.set(rollout, list(self.states))
            END_STATE.set(rollout, self.state if len(self.rewards) == self.turns else "")
            TURN_PARTS.set(rollout, dict(self.parts))
            INVALID_ACTIONS.set(rollout, self.invalid)
            if total is not None:
                EPISODE_RETURN.set(rollout, total)


def remembered(
    prompt: Prompt, segment: Segment, forget: str, policy: Any
) -> tuple[Prompt, list[int], list[Message]] | None:
    """What later turns see of a conversation that forgets: the prompt, the token ids since, their messages.
    None where there is nothing to forget.

    The ids that stay are those that were sampled. A forgotten observation is replaced by the message
    `LEFT_OUT` of its role; it is the one that the last turn answered, in this segment or at the end of the
    prompt. A forgotten thought is the last turn up to the token that closes its last </think>, and a prefix
    of the prompt that opened it; a turn that is a thought alone stays.
    """
    if not segment.spans or not forget:
        return None
    start, ids, messages = segment.spans[-1][1], segment.ids, segment.messages
    if forget == "thought":
        turn = ids[start:]
        closed = thought_end(turn, policy)
        if not 0 < closed < len(turn):
            return None
        said = {**messages[-1], "content": [{"type": "text", "text": policy.decode(turn[closed:])}]}
        return (
            replace(prompt, prefix="") if start == 0 else prompt,
            [*ids[:start], *turn[closed:]],
            [*messages[:-1], said],
        )
    if start:
        end = segment.spans[-2][2]
        note: Message = {**messages[-2], "content": [{"type": "text", "text": LEFT_OUT}]}
        return (
            prompt,
            [*ids[:end], *tool_reply_ids(policy, prompt, [note], ids[end - 1]), *ids[start:]],
            [*messages[:-2], note, messages[-1]],
        )
    if prompt.continues is None:
        return None
    before, since, _ = prompt.continues
    note = {**prompt.messages[-1], "content": [{"type": "text", "text": LEFT_OUT}]}
    shown = replace(
        prompt,
        messages=(*prompt.messages[:-1], note),
        images=before.images,
        videos=before.videos,
        continues=(before, since, tool_reply_text(policy, before, [note], since[-1])),
    )
    return shown, ids, messages


def thought_end(ids: Sequence[int], policy: Any) -> int:
    """The number of tokens up to the end of the last </think> of a turn; 0 without one."""
    total = policy.decode(ids).count("</think>")
    return (
        bisect_left(range(len(ids) + 1), total, key=lambda n: policy.decode(ids[:n]).count("</think>"))
        if total
        else 0
    )


def with_opening(prompt: Prompt, opening: Observation) -> Prompt:
    """The prompt with an observation at the end of its last message."""
    *before, last = prompt.messages
    content = last["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    more = [{k: v for k, v in part.items() if k != "media"} for part in opening.content]
    if parts and parts[-1]["type"] == "text" and more and more[0]["type"] == "text":
        more[0] = {**more[0], "text": "\n\n" + more[0]["text"]}
    images, videos = (tuple(m for m in opening.media if m.kind == kind) for kind in ("image", "video"))
    return replace(
        prompt,
        messages=(*before, {**last, "content": [*parts, *more]}),
        images=prompt.images + images,
        videos=prompt.videos + videos,
        train=None if prompt.train is None else with_opening(prompt.train, opening),
    )


def tool_reply_ids(policy: Any, prompt: Prompt, reply: Sequence[Message], last_id: int) -> list[int]:
    """The ids of `tool_reply_text`, without those that stand for media."""
    forbidden = set(policy.forbidden_ids)
    return [
        i
        for i in policy.tokenizer.encode(
            tool_reply_text(policy, prompt, reply, last_id), add_special_tokens=False
        )
        if i not in forbidden
    ]


def tool_reply_text(policy: Any, prompt: Prompt, reply: Sequence[Message], last_id: int) -> str:
    """The text that the chat template puts between the end of the policy's turn and its next turn.

    These are the turn's end (unless `last_id` is that already), the reply, and the opening of the next turn.
    Raises ValueError where the chat template does not write an assistant's turn verbatim.
    """
    mark, written = MARK, replace(prompt, messages=(*prompt.messages, *reply)).text.replace("\n", "")
    while mark in written:  # a question or a tool may quote it, also in two parts
        mark += MARK
    turn = {"role": "assistant", "content": [{"type": "text", "text": mark}]}
    marked = replace(prompt, messages=(*prompt.messages, turn, *reply), prefix="")
    text = policy.render(marked)
    if text.count(mark) != 1:
        raise ValueError(
            f"row {prompt.row.id!r}: the chat template does not write an assistant's turn verbatim, which "
            "multi-turn rollouts need; use another "
            "model, or rollout: {name: independent}"
        )
    return text.partition(mark)[2].removeprefix(policy.tokenizer.decode([last_id]))

"""Conversations with an environment: the turns of the policy, the replies of tools, and the rollouts that they become.

A conversation is one rollout as long as the replies are text. A reply with pictures ends the rollout (a *segment* of the conversation) and starts a
new one, whose prompt is the conversation so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlrl.capabilities import Annotation, Capability
from vlrl.context import RunContext
from vlrl.types import Completion, Media, Message, Prompt, Request, Rollout, Sampling

HINT = "rollout: {name: multi_turn}"
CONVERSATION: Annotation[int] = Annotation("conversation", int, hint=HINT, doc="number of the conversation among those of its prompt")
SEGMENT: Annotation[int] = Annotation("segment", int, hint=HINT, doc="place of the rollout among the segments of its conversation, from 0")
TURNS: Annotation[int] = Annotation("turns", int, hint=HINT, doc="turns of the policy so far, over all segments")
CALLS: Annotation[int] = Annotation("calls", int, hint=HINT, doc="replies of the environment so far, over all segments")
TURN_TEXT: Annotation[str] = Annotation("turn_text", str, hint=HINT, doc="the policy's last turn; on the rollout that an environment is given")
TRANSCRIPT: Annotation[str] = Annotation("transcript", str, hint=HINT, doc="the segment's text with the replies")

PICTURE_REPLIES = Capability("picture_replies", hint="environment: {name: zoom}")  # of environments that answer with pictures
ONE_REWARD_PER_CONVERSATION = Capability("one_reward_per_conversation", hint="reward_shaping: {turns: {name: last_turn_reward}}")

MARK = "VLRLASSISTANTTURN"  # a text that the chat template writes where the policy's turn stands


@dataclass
class Segment:
    """The tokens since the last picture was shown. `sampled` is True on the policy's tokens, False on those of replies."""

    ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turn_texts: list[str] = field(default_factory=list)  # of the policy's turns
    messages: list[Message] = field(default_factory=list)  # the policy's and the environment's

    def add(self, ids: Sequence[int], logp: Sequence[float], sampled: bool, versions: Sequence[int]) -> None:
        """Append tokens."""
        self.ids += ids
        self.logp += logp
        self.sampled += [sampled] * len(ids)
        self.versions += versions


@dataclass(eq=False)
class Conversation:
    """One conversation: the `attempt`-th of the prompt at `prompt_index`. `finished` are the rollouts of its earlier segments."""

    prompt_index: int
    attempt: int
    prompt: Prompt
    sampling: Sampling
    seed: int
    segment: Segment = field(default_factory=Segment)
    turns: int = 0
    calls: int = 0
    finished: list[Rollout] = field(default_factory=list)

    def request(self, stops: Sequence[str]) -> Request:
        """The request for the policy's next turn."""
        sampling = replace(self.sampling, stop=(*self.sampling.stop, *stops), max_tokens=len(self.segment.ids) + self.sampling.max_tokens)
        return Request(prompt=self.prompt, sampling=sampling, seed=(self.seed + self.turns) % 2**63, prefix_ids=tuple(self.segment.ids), tag=self)

    def add_turn(self, completion: Completion, policy: Any) -> str:
        """Append the policy's turn. Returns its text."""
        segment, start = self.segment, len(self.segment.ids)
        text = policy.decode(completion.ids[start:])
        versions = completion.version if isinstance(completion.version, list) else [completion.version] * len(completion.ids)
        segment.add(completion.ids[start:], completion.logp[start:], True, versions[start:])
        segment.turn_texts.append(text)
        segment.messages.append({"role": "assistant", "content": [{"type": "text", "text": (self.prompt.prefix if start == 0 else "") + text}]})
        self.turns += 1
        return text

    def add_tool_reply(self, reply: Sequence[Message], run: RunContext) -> None:
        """Append the environment's reply: text continues the segment, pictures end it."""
        self.calls += 1
        media: list[Media] = [part["media"] for message in reply for part in message["content"] if "media" in part]
        plain = [{**m, "content": [{k: v for k, v in part.items() if k != "media"} for part in m["content"]]} for m in reply]
        if not media:
            reply_ids = tool_reply_ids(run.policy, self.prompt, plain, self.segment.ids[-1])
            self.segment.add(reply_ids, [0.0] * len(reply_ids), False, [self.segment.versions[-1]] * len(reply_ids))
            self.segment.messages += plain
            return
        self.finished.append(self.rollout(run, "stop"))
        images, videos = (tuple(m for m in media if m.kind == kind) for kind in ("image", "video"))
        self.prompt = replace(
            self.prompt,
            messages=(*self.prompt.messages, *self.segment.messages, *plain),
            images=self.prompt.images + images,
            videos=self.prompt.videos + videos,
            prefix="",
            train=None,
        )
        self.segment = Segment()
        run.policy.encode(self.prompt)  # raises here for a picture that cannot be decoded or processed

    def rollout(self, run: RunContext, finish: Any) -> Rollout:
        """The present segment as a rollout."""
        segment, request = self.segment, Request(prompt=self.prompt, sampling=self.sampling, seed=self.seed)
        versions: Any = segment.versions[0] if len(set(segment.versions)) == 1 else list(segment.versions)
        text = "\n".join(segment.turn_texts)
        rollout = run.make_rollout(Completion(request, 0, list(segment.ids), list(segment.logp), text, finish, versions))
        rollout.loss_mask = None if all(segment.sampled) else list(segment.sampled)
        CONVERSATION.set(rollout, self.attempt)
        SEGMENT.set(rollout, len(self.finished))
        TURNS.set(rollout, self.turns)
        CALLS.set(rollout, self.calls)
        TRANSCRIPT.set(rollout, run.policy.decode(segment.ids))
        return rollout


def tool_reply_ids(policy: Any, prompt: Prompt, reply: Sequence[Message], last_id: int) -> list[int]:
    """The ids that the chat template puts between the end of the policy's turn and its next turn.

    These are the turn's end (unless `last_id` is that already), the reply, and the opening of the next turn. Raises ValueError where the chat
    template does not write an assistant's turn verbatim.
    """
    mark, written = MARK, replace(prompt, messages=(*prompt.messages, *reply)).text.replace("\n", "")
    while mark in written:  # a question or a tool may quote it, also in two parts
        mark += MARK
    turn = {"role": "assistant", "content": [{"type": "text", "text": mark}]}
    marked = replace(prompt, messages=(*prompt.messages, turn, *reply), prefix="")
    text = policy.render(marked)
    if text.count(mark) != 1:
        raise ValueError(
            f"row {prompt.row.id!r}: the chat template does not write an assistant's turn verbatim, which multi-turn rollouts need; use another "
            "model, or rollout: {name: independent}"
        )
    rest = text.partition(mark)[2].removeprefix(policy.tokenizer.decode([last_id]))
    forbidden = set(policy.forbidden_ids)
    return [i for i in policy.tokenizer.encode(rest, add_special_tokens=False) if i not in forbidden]

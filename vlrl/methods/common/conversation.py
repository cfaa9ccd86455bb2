"""A conversation with an environment on its way: what was written, by whom, and how it becomes rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vlrl.types import Completion, Media, Message, Prompt, Request, Rollout, Sampling

if TYPE_CHECKING:
    from vlrl.context import RunContext

MARK = "VLRLASSISTANTTURN"


@dataclass
class Segment:
    """The tokens since the last picture was shown: the policy's `own`, and those that a tool wrote."""

    ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    own: list[bool] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # the policy's turns
    messages: list[Message] = field(default_factory=list)  # the policy's and the tool's

    def add(self, ids: Sequence[int], logp: Sequence[float], own: bool, versions: Sequence[int]) -> None:
        """Tokens that go on where it ends."""
        self.ids += ids
        self.logp += logp
        self.own += [own] * len(ids)
        self.versions += versions


@dataclass(eq=False)
class Talk:
    """One conversation: `done` are the rollouts of its earlier segments, `now` is the present one."""

    place: int
    number: int
    prompt: Prompt
    sampling: Sampling
    seed: int
    now: Segment = field(default_factory=Segment)
    turns: int = 0
    calls: int = 0
    done: list[Rollout] = field(default_factory=list)

    def request(self, stops: Sequence[str]) -> Request:
        """The policy's next turn."""
        sampling = replace(self.sampling, stop=(*self.sampling.stop, *stops), max_tokens=len(self.now.ids) + self.sampling.max_tokens)
        return Request(prompt=self.prompt, sampling=sampling, seed=(self.seed + self.turns) % 2**63, prefix_ids=tuple(self.now.ids), tag=self)

    def heard(self, completion: Completion, policy: Any) -> str:
        """Take the policy's turn in; its text."""
        now, start = self.now, len(self.now.ids)
        text = policy.decode(completion.ids[start:])
        versions = completion.version if isinstance(completion.version, list) else [completion.version] * len(completion.ids)
        now.add(completion.ids[start:], completion.logp[start:], True, versions[start:])
        now.said.append(text)
        now.messages.append({"role": "assistant", "content": [{"type": "text", "text": (self.prompt.prefix if start == 0 else "") + text}]})
        self.turns += 1
        return text

    def answered(self, reply: Sequence[Message], run: RunContext) -> None:
        """Take a tool's reply in: a text goes on in the same segment, pictures end it."""
        self.calls += 1
        media: list[Media] = [part["media"] for message in reply for part in message["content"] if "media" in part]
        plain = [{**m, "content": [{k: v for k, v in part.items() if k != "media"} for part in m["content"]]} for m in reply]
        if not media:
            bridge = between(run.policy, self.prompt, plain, self.now.ids[-1])
            self.now.add(bridge, [0.0] * len(bridge), False, [self.now.versions[-1]] * len(bridge))
            self.now.messages += plain
            return
        self.done.append(self.rollout(run, "stop"))
        images, videos = (tuple(m for m in media if m.kind == kind) for kind in ("image", "video"))
        self.prompt = replace(
            self.prompt, messages=(*self.prompt.messages, *self.now.messages, *plain), images=self.prompt.images + images,
            videos=self.prompt.videos + videos, prefix="", train=None,
        )  # fmt: skip
        self.now = Segment()

    def rollout(self, run: RunContext, finish: Any, **info: Any) -> Rollout:
        """The present segment as a rollout."""
        now, request = self.now, Request(prompt=self.prompt, sampling=self.sampling, seed=self.seed)
        versions: Any = now.versions[0] if len(set(now.versions)) == 1 else list(now.versions)
        rollout = run.make_rollout(Completion(request, 0, list(now.ids), list(now.logp), "\n".join(now.said), finish, versions))
        rollout.loss_mask = None if all(now.own) else list(now.own)
        rollout.info |= {"conversation": self.number, "segment": len(self.done), "turns": self.turns, "calls": self.calls, **info}
        rollout.info["transcript"] = run.policy.decode(now.ids)
        return rollout


def between(policy: Any, prompt: Prompt, reply: Sequence[Message], last_id: int) -> list[int]:
    """The ids that the chat template puts between the end of the policy's turn and its next one: the turn's end (unless it is there already), the
    reply, the opening of the next turn."""
    marked = replace(prompt, messages=(*prompt.messages, {"role": "assistant", "content": [{"type": "text", "text": MARK}]}, *reply), prefix="")
    text = policy.render(marked)
    if text.count(MARK) != 1:
        raise ValueError(f"row {prompt.row.id!r}: the chat template does not show an assistant's turn as it is; multi-turn rollouts need that")
    rest = text.partition(MARK)[2].removeprefix(policy.tokenizer.decode([last_id]))
    hidden = set(policy.forbidden_ids)
    return [i for i in policy.tokenizer.encode(rest, add_special_tokens=False) if i not in hidden]

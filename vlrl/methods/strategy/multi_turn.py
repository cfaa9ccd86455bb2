"""Conversations with an environment: the policy writes, a tool answers, until one of them is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vlrl.methods.strategy.independent import Seeds
from vlrl.registry import ConfigError, register
from vlrl.stages import Strategy
from vlrl.types import Completion, Group, Media, Message, Prompt, Request, Rollout, Sampling

if TYPE_CHECKING:
    from vlrl.run import Run

MARK = "VLRLASSISTANTTURN"


@dataclass(eq=False)
class Talk:
    """One conversation on its way. The lists hold the tokens of the present segment: what was written since the last picture was shown."""

    place: int
    number: int
    prompt: Prompt
    sampling: Sampling
    seed: int
    ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    own: list[bool] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # the policy's turns of this segment
    messages: list[Message] = field(default_factory=list)  # of this segment, the policy's and the tool's
    turns: int = 0
    calls: int = 0
    done: list[Rollout] = field(default_factory=list)


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
            for completion in run.engine.generate([self._request(run, talk) for talk in active]):
                talk = completion.request.tag
                if self._go_on(run, talk, completion):
                    still.append(talk)
            active = sorted(still, key=lambda talk: (talk.place, talk.number))
        return [
            Group(prompt=prompt, rollouts=[r for talk in talks if talk.place == place for r in talk.done], info={"conversations": count})
            for place, (prompt, count) in enumerate(zip(prompts, counts))
        ]

    def _request(self, run: Run, talk: Talk) -> Request:
        stop = (*talk.sampling.stop, *getattr(run.env, "stops", ()))
        sampling = replace(talk.sampling, stop=stop, max_tokens=len(talk.ids) + talk.sampling.max_tokens)
        return Request(prompt=talk.prompt, sampling=sampling, seed=(talk.seed + talk.turns) % 2**63, prefix_ids=tuple(talk.ids), tag=talk)

    def _go_on(self, run: Run, talk: Talk, completion: Completion) -> bool:
        """Take a finished turn in; True if the environment answered and it is the policy's turn again."""
        start = len(talk.ids)
        new = completion.ids[start:]
        text = run.policy.decode(new)
        versions = completion.version if isinstance(completion.version, list) else [completion.version] * len(completion.ids)
        self._append(talk, new, completion.logp[start:], True, versions[start:])
        talk.said.append(text)
        talk.messages.append({"role": "assistant", "content": [{"type": "text", "text": (talk.prompt.prefix if start == 0 else "") + text}]})
        talk.turns += 1
        reply = None
        if completion.finish == "stop" and talk.turns < self.max_turns and run.env is not None:
            reply = run.env.reply(self._rollout(run, talk, completion.finish, turn_text=text))
        if reply is None:
            talk.done.append(self._rollout(run, talk, completion.finish))
            return False
        talk.calls += 1
        self._answer(run, talk, [self._short(run, message) for message in reply], completion)
        return True

    def _answer(self, run: Run, talk: Talk, reply: list[Message], completion: Completion) -> None:
        media: list[Media] = [part["media"] for message in reply for part in message["content"] if "media" in part]
        plain = [{**m, "content": [{k: v for k, v in part.items() if k != "media"} for part in m["content"]]} for m in reply]
        if media:
            talk.done.append(self._rollout(run, talk, "stop"))
            pictures = tuple(m for m in media if m.kind == "image")
            videos = tuple(m for m in media if m.kind == "video")
            talk.prompt = replace(
                talk.prompt, messages=(*talk.prompt.messages, *talk.messages, *plain), images=talk.prompt.images + pictures,
                videos=talk.prompt.videos + videos, prefix="", train=None,
            )  # fmt: skip
            talk.ids, talk.logp, talk.own, talk.versions, talk.said, talk.messages = [], [], [], [], [], []
            return
        bridge = between(run.policy, talk.prompt, plain, completion.ids[-1])
        self._append(talk, bridge, [0.0] * len(bridge), False, [talk.versions[-1]] * len(bridge))
        talk.messages += plain

    def _append(self, talk: Talk, ids: Sequence[int], logp: Sequence[float], own: bool, versions: Sequence[int]) -> None:
        talk.ids += ids
        talk.logp += logp
        talk.own += [own] * len(ids)
        talk.versions += versions

    def _rollout(self, run: Run, talk: Talk, finish: Any, **info: Any) -> Rollout:
        """The present segment as a rollout."""
        request = Request(prompt=talk.prompt, sampling=talk.sampling, seed=talk.seed)
        versions: Any = talk.versions[0] if len(set(talk.versions)) == 1 else list(talk.versions)
        rollout = run.make_rollout(Completion(request, 0, list(talk.ids), list(talk.logp), "\n".join(talk.said), finish, versions))
        rollout.loss_mask = None if all(talk.own) else list(talk.own)
        rollout.info |= {"conversation": talk.number, "segment": len(talk.done), "turns": talk.turns, "calls": talk.calls, **info}
        rollout.info["transcript"] = run.policy.decode(talk.ids)
        return rollout

    def _short(self, run: Run, message: Message) -> Message:
        """A reply with its texts cut to `max_reply_tokens`."""
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        return {**message, "content": [self._cut(run, part) if part["type"] == "text" else part for part in parts]}

    def _cut(self, run: Run, part: dict[str, Any]) -> dict[str, Any]:
        part = {**part, "text": part["text"].replace("<|", "< |")}  # no tool may end a turn or open one
        ids = run.policy.tokenizer.encode(part["text"], add_special_tokens=False)
        if len(ids) <= self.max_reply_tokens:
            return part
        return {**part, "text": run.policy.decode(ids[: self.max_reply_tokens]) + " ... (cut)"}


def between(policy: Any, prompt: Prompt, reply: Sequence[Message], last_id: int) -> list[int]:
    """The ids that the chat template puts between the end of the policy's turn and its next one: the turn's end (unless it is there already), the
    reply, the opening of the next turn."""
    marked = replace(prompt, messages=(*prompt.messages, {"role": "assistant", "content": [{"type": "text", "text": MARK}]}, *reply), prefix="")
    text = policy.render(marked)
    if text.count(MARK) != 1:
        raise ValueError(f"row {prompt.row.id!r}: the chat template does not show an assistant's turn as it is; multi-turn rollouts need that")
    rest = text.partition(MARK)[2].removeprefix(policy.tokenizer.decode([last_id]))
    ids = policy.tokenizer.encode(rest, add_special_tokens=False)
    hidden = set(policy.forbidden_ids)
    return [i for i in ids if i not in hidden]

"""What is asked of the policy, and what it answered."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from vlrl.types.media import CoordinateSpace, Media
from vlrl.types.plain import media_from_plain, media_to_plain, pack, unpack
from vlrl.types.rows import Message, Row

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Sampling:
    """How one completion is drawn. `temperature` may be a tuple of (from_position, value) steps. 0 means
    greedy.

    `top_k` 0, `top_p` 1 and `min_p` 0 switch the filter off. `stop` strings end a completion (and stay in its
    text).
    """

    temperature: float | tuple[tuple[int, float], ...] = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 64
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    bad_ids: tuple[int, ...] = ()
    top_logprobs: int = 0
    processors: tuple[Any, ...] = ()  # callables (ids so far, logits_V) -> logits_V
    guided: Mapping[str, Any] | None = None  # {"choice": [...]}, {"regex": ...} or {"json": schema}

    def temperature_at(self, position: int) -> float:
        """The temperature of the completion token at `position` (0-based)."""
        if isinstance(self.temperature, (int, float)):
            return float(self.temperature)
        value = self.temperature[0][1]
        for start, step_value in self.temperature:
            if position >= start:
                value = step_value
        return float(value)


@dataclass(frozen=True)
class Prompt:
    """What the policy is asked: chat messages whose media items refer, in order, to `images`, `videos` and
    `audios`.

    `prefix` opens the assistant turn (for instance "<think>\\n"): it is prompt, not completion, yet it is
    part of `Rollout.text`. `train` is the prompt that the rollout is trained on where it differs from the one
    it was sampled with (hints, other pictures). `continues` keeps a conversation's token ids as they are:
    (the prompt it began with, the ids since, the template's text after them).
    """

    row: Row
    messages: tuple[Message, ...]
    images: tuple[Media, ...] = ()
    videos: tuple[Media, ...] = ()
    prefix: str = ""
    train: Prompt | None = None
    continues: tuple[Prompt, tuple[int, ...], str] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # for the chat template (enable_thinking, ...)
    audios: tuple[Media, ...] = ()

    @property
    def media(self) -> tuple[Media, ...]:
        return self.images + self.videos + self.audios

    @property
    def for_training(self) -> Prompt:
        return self.train or self

    @property
    def text(self) -> str:
        """The text of all messages without media, a line break between parts."""
        contents = [message["content"] for message in self.messages]
        return "\n".join(
            text
            for c in contents
            for text in ([c] if isinstance(c, str) else [item.get("text", "") for item in c])
        )

    @cached_property
    def key(self) -> str:
        """Equal prompts (text, media, prefix) have equal keys."""
        parts = [repr(self.messages), self.prefix, repr(sorted(self.options.items()))] + [
            m.key for m in self.media
        ]
        parts += (
            [self.continues[0].key, repr(self.continues[1]), self.continues[2]]
            if self.continues is not None
            else []
        )
        return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:24]


def prompt_to_plain(prompt: Prompt, row: Row) -> dict[str, Any]:
    """A prompt that was made from `row` in the course of an episode. Raises ValueError where it cannot be
    made again: it is of another row, or its messages hold what JSON has not."""
    if prompt.row is not row and prompt.row != row:
        raise ValueError(f"row {row.id!r}: a rollout has a prompt of another row")
    begun = prompt.continues
    values = {
        "messages": [dict(message) for message in prompt.messages],
        "images": [media_to_plain(medium, row) for medium in prompt.images],
        "videos": [media_to_plain(medium, row) for medium in prompt.videos],
        "audios": [media_to_plain(medium, row) for medium in prompt.audios],
        "prefix": prompt.prefix,
        "options": dict(prompt.options),
        "train": prompt.train and prompt_to_plain(prompt.train, row),
        "continues": begun and [prompt_to_plain(begun[0], row), list(begun[1]), begun[2]],
    }
    packed: dict[str, Any] = pack(values)
    if prompt_from_plain(packed, row).key != prompt.key:
        raise ValueError(f"row {row.id!r}: a rollout's prompt cannot be made again from plain values")
    return packed


def prompt_from_plain(packed: Mapping[str, Any], row: Row) -> Prompt:
    """Undo `prompt_to_plain`."""
    values = unpack(packed)
    begun = packed["continues"]
    return Prompt(
        row,
        tuple(values["messages"]),
        tuple(media_from_plain(medium, row) for medium in values["images"]),
        tuple(media_from_plain(medium, row) for medium in values["videos"]),
        values["prefix"],
        packed["train"] and prompt_from_plain(packed["train"], row),
        begun and (prompt_from_plain(begun[0], row), tuple(begun[1]), begun[2]),
        values["options"],
        tuple(media_from_plain(medium, row) for medium in values["audios"]),
    )


@dataclass(frozen=True)
class Request:
    """`n` completions of one prompt. Sample i draws from the random stream (seed, i): independent of batching
    and order."""

    prompt: Prompt
    sampling: Sampling
    n: int = 1
    seed: int = 0
    prefix_ids: tuple[int, ...] = ()  # completion tokens to continue from
    tag: Any = None  # returned untouched
    # whether log-probs of `prefix_ids` are read; without, they are 0, and an engine may take the prefix from
    # its cache
    score_prefix: bool = True


@dataclass
class Completion:
    """One finished sample of a request. `logp` are log-probs under the distribution sampled from (after
    temperature and filters).

    `tokens` is what was billed: (of the prompt, of the reply); (0, 0) where the engine does not say.
    `text_logprobs` are top log-probs by text, of an engine that gives no ids: per token (text, {text: nats}).
    """

    request: Request
    index: int
    ids: list[int]
    logp: list[float]
    text: str
    finish: Literal["stop", "length", "abort"]
    version: int | list[int] = 0  # one per token if the weights changed while it was sampled
    top_logprobs: list[dict[int, float]] | None = None
    seconds: float = 0.0
    tokens: tuple[int, int] = (0, 0)
    text_logprobs: list[tuple[str, dict[str, float]]] | None = None
    routing: np.ndarray | None = None  # (S, M, K): the experts of its tokens (`vlrl/policy/routing.py`)


@dataclass
class Rollout:
    """One completion and everything learned about it.

    `text` is the prompt's prefix plus the decoded completion, special tokens left out.  `logp` are the
    sampler's log-probs (nats). `loss_mask` is False on tokens that are not trained on: those that the policy
    did not sample (a tool, the environment, a hint or the template wrote them), and those that a method
    leaves out. Where it leaves out sampled tokens, `sampled_mask` says which tokens were sampled. `rewards`
    holds every raw score by slot name; `reward` the combined (then shaped) one. `advantages` are per token,
    set by `assign`. `signals` are per-token lists of fields that were needed before the advantages. `spaces`
    converts coordinates, one per picture.
    """

    prompt: Prompt
    ids: list[int]
    text: str = ""
    logp: list[float] = field(default_factory=list)
    finish: Literal["stop", "length", "abort"] = "stop"
    loss_mask: list[bool] | None = None  # None: all tokens
    sampled_mask: list[bool] | None = None  # None: loss_mask
    version: int | list[int] = 0
    source: str = "policy"
    # False: scored and seen by shapes, then set aside in `Group.untrained` (greedy baselines, contrast views)
    trained: bool = True
    spaces: tuple[CoordinateSpace, ...] = ()
    temperature: float | list[float] = 1.0
    rewards: dict[str, float] = field(default_factory=dict)
    reward: float = 0.0
    outcome: float | None = None
    correct: bool = False
    advantage: float = 0.0
    advantages: list[float] = field(default_factory=list)
    signals: dict[str, Any] = field(default_factory=dict)
    top_logprobs: list[dict[int, float]] | None = None
    routing: np.ndarray | None = None
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def row(self) -> Row:
        return self.prompt.row

    @property
    def answer(self) -> Any:
        return self.prompt.row.answer

    @property
    def truncated(self) -> bool:
        return self.finish == "length"

    @property
    def trained_mask(self) -> list[bool]:
        """One bool per token: whether it is trained on."""
        return [True] * len(self.ids) if self.loss_mask is None else self.loss_mask

    @property
    def sampled(self) -> list[bool]:
        """One bool per token: whether the policy sampled it. Tokens of tools, environments, hints and
        templates are no part of a rollout's length."""
        return self.trained_mask if self.sampled_mask is None else self.sampled_mask

    @property
    def trained_tokens(self) -> int:
        """The number of tokens that are trained on."""
        return sum(self.trained_mask)

    @property
    def sampled_tokens(self) -> int:
        """The number of tokens that the policy sampled: the length of its completion."""
        return sum(self.sampled)

    def leave_out(self, keep: Sequence[bool]) -> None:
        """Train only on the tokens of `keep` (of those that are trained on now); what was sampled still
        counts as the rollout's length."""
        self.sampled_mask, self.loss_mask = (
            self.sampled,
            [old and new for old, new in zip(self.trained_mask, keep, strict=True)],
        )

    def to_plain(self) -> dict[str, Any]:
        """Every field but the prompt and its coordinate spaces, as values that JSON has."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.top_logprobs is not None:
            values["top_logprobs"] = [list(map(list, place.items())) for place in self.top_logprobs]
        if self.routing is not None:
            values["routing"] = self.routing.tolist()
        values |= {"info": pack(self.info), "signals": pack(self.signals)}
        return {name: value for name, value in values.items() if name not in ("prompt", "spaces")}

    @classmethod
    def from_plain(
        cls, values: Mapping[str, Any], prompt: Prompt, spaces: tuple[CoordinateSpace, ...] = ()
    ) -> Rollout:
        """Undo `to_plain`, for a prompt that was made again. A field that is missing has its default; raises
        TypeError for an unknown one."""
        known = dict(values)
        if known.get("top_logprobs") is not None:
            known["top_logprobs"] = [dict(map(tuple, place)) for place in known["top_logprobs"]]
        if known.get("routing") is not None:
            import numpy as np

            known["routing"] = np.array(known["routing"], dtype=np.int16)
        known |= {name: unpack(known[name]) for name in ("info", "signals") if name in known}
        return cls(prompt=prompt, spaces=spaces, **known)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class Group:
    """All rollouts of one prompt. Groups may be ragged."""

    prompt: Prompt
    rollouts: list[Rollout]
    id: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    untrained: list[Rollout] = field(default_factory=list)

    def set_untrained_aside(self) -> None:
        """Move rollouts that are not trained on out of the group: filters, advantages and the loss do not see
        them."""
        self.untrained += [rollout for rollout in self.rollouts if not rollout.trained]
        self.rollouts = [rollout for rollout in self.rollouts if rollout.trained]

    @property
    def row(self) -> Row:
        return self.prompt.row

    @property
    def rewards(self) -> list[float]:
        return [rollout.reward for rollout in self.rollouts]

    def raw(self, slot: str) -> list[float]:
        """The raw scores of one reward slot; raises KeyError where a rollout was not scored by it."""
        return [rollout.rewards[slot] for rollout in self.rollouts]

    def to_plain(self) -> dict[str, Any]:
        """The group as values that JSON has; a rollout's own prompt (a turn of an episode) stands in it.
        Raises ValueError where one cannot be made again."""
        return {
            "row": self.row.id,
            "prompt": self.prompt.key,
            "made": prompt_to_plain(self.prompt, self.row),
            "id": self.id,
            "info": pack(self.info),
            "rollouts": [self._rollout_to_plain(rollout) for rollout in self.rollouts],
            "untrained": [self._rollout_to_plain(rollout) for rollout in self.untrained],
        }

    def _rollout_to_plain(self, rollout: Rollout) -> dict[str, Any]:
        own = rollout.prompt.key != self.prompt.key or rollout.prompt.train is not None
        prompt = {"prompt": prompt_to_plain(rollout.prompt, self.row)} if own else {}
        return rollout.to_plain() | prompt

    @classmethod
    def from_plain(
        cls,
        values: Mapping[str, Any],
        prompt: Prompt,
        spaces: Callable[[Prompt], Sequence[CoordinateSpace]] = lambda prompt: (),
    ) -> Group:
        """Undo `to_plain`, for a prompt that was made again. `spaces` gives those of a prompt's pictures."""

        def made(part: str) -> list[Rollout]:
            rollouts = []
            for plain in values.get(part, ()):
                known = dict(plain)
                own = known.pop("prompt", None)
                of = prompt_from_plain(own, prompt.row) if own else prompt
                rollouts.append(Rollout.from_plain(known, of, tuple(spaces(of))))
            return rollouts

        return cls(prompt, made("rollouts"), values["id"], unpack(values["info"]), made("untrained"))

    def __len__(self) -> int:
        return len(self.rollouts)

    def __iter__(self) -> Iterator[Rollout]:
        return iter(self.rollouts)


class FilterDecision(NamedTuple):
    """A group filter's decision about a group."""

    keep: bool
    reason: str = ""

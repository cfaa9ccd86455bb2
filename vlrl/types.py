"""The nouns of vlrl: what flows from a dataset row to an optimizer step. No torch is imported here.

    Row -> Prompt -> Rollout (in a Group) -> TokenBatch -> LossInputs -> PerToken

Shape legend: B rollouts of a micro-batch (whole groups, in order), T the longest completion of the
micro-batch, V the vocabulary.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image as PILImage
    from torch import Tensor


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


class Media(ABC):
    """A picture or a video that is decoded when it is first needed. Two media with equal keys show the same
    pixels."""

    kind: Literal["image", "video"]

    @property
    @abstractmethod
    def key(self) -> str:
        """Identity of the content: a run decodes, processes and encodes each key once per step."""

    @abstractmethod
    def load(self) -> PILImage.Image | Clip:
        """Decode. Raises `MediaError` with the place it came from when it cannot be."""

    def check(self) -> None:
        """A cheap look before training (does the file exist?). Raises `MediaError`."""


@dataclass(frozen=True)
class Edited(Media):
    """`base` with something done to it; a subclass says what, in `key` and `load`."""

    base: Media

    @property
    def kind(self) -> Literal["image", "video"]:  # type: ignore[override]  # a medium's kind is a class attribute; here it is the base's
        return self.base.kind


class MediaError(ValueError):
    """A picture or video that is missing, broken or refused."""


@dataclass(frozen=True)
class Clip:
    """A decoded video. `frames_THWC` is uint8 RGB; `fps` is frames per second *of these frames* (after any
    subsampling)."""

    frames_THWC: np.ndarray
    fps: float

    def __len__(self) -> int:
        return len(self.frames_THWC)


@dataclass(frozen=True)
class CoordinateSpace:
    """What one picture's coordinates mean to the policy, and how to get back to original pixels.

    `original` and `seen` are (width, height) before and after the processor's resize. `units`: "seen" (pixels
    after resizing), "original" (pixels before), "unit" (0-1) or "per_mille" (0-1000).
    """

    original: tuple[int, int]
    seen: tuple[int, int]
    units: Literal["seen", "original", "unit", "per_mille"] = "seen"

    @property
    def scale(self) -> tuple[float, float]:
        """Multiply the policy's (x, y) by this to get original pixels."""
        (width, height), (seen_w, seen_h) = self.original, self.seen
        unit = (float(width), float(height))
        table = {
            "seen": (width / seen_w, height / seen_h),
            "original": (1.0, 1.0),
            "unit": unit,
            "per_mille": (width / 1000, height / 1000),
        }
        return table[self.units]

    def to_original(self, xy: Sequence[float]) -> tuple[float, ...]:
        """(x, y, x, y, ...) in the policy's units -> original pixels."""
        return tuple(value * self.scale[i % 2] for i, value in enumerate(xy))

    def from_original(self, xy: Sequence[float]) -> tuple[float, ...]:
        """(x, y, x, y, ...) in original pixels -> the policy's units."""
        return tuple(value / self.scale[i % 2] for i, value in enumerate(xy))


# key of a row's meta: "original" where its demonstrations hold coordinates in pixels of the original picture
TARGET_UNITS = "target_units"
__all__ = [
    "TARGET_UNITS",
    "Clip",
    "Completion",
    "CoordinateSpace",
    "Edited",
    "FilterDecision",
    "Group",
    "LossInputs",
    "Media",
    "MediaError",
]
__all__ += [
    "Message",
    "PerToken",
    "Prompt",
    "Request",
    "Rollout",
    "Row",
    "RowError",
    "RowView",
    "Sampling",
    "TokenBatch",
]

Message = Mapping[
    str, Any
]  # {"role": "user", "content": [{"type": "text", "text": ...} | {"type": "image"} | {"type": "video"}]}


class RowError(ValueError):
    """A record that makes no usable row: no answer, a wrong type, a medium that is missing."""


@dataclass(frozen=True)
class Row:
    """One training or evaluation example.

    `question` may hold `<image>` / `<video>` markers, in the order of `images` / `videos`; without markers
    the media come first. `answer` is the gold answer in the form its reward reads (boxes are [x1, y1, x2, y2]
    in ORIGINAL pixels of the picture). `target` is a full demonstration (what an expert would write), for
    cold starts and replay; it may be empty.
    `rewards` names the reward slots that score this row; empty means: all that apply to its `task`.
    """

    id: str
    question: str
    answer: Any = None
    images: tuple[Media, ...] = ()
    videos: tuple[Media, ...] = ()
    choices: tuple[str, ...] = ()
    task: str = "default"
    target: str = ""
    system: str = ""
    messages: tuple[Message, ...] = ()  # a whole conversation, for rows that are more than one question
    rewards: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    origin: str = field(default="", compare=False)  # where it is stored, file:line, for messages

    @property
    def media(self) -> tuple[Media, ...]:
        return self.images + self.videos


class RowView(Sequence[Row]):
    """Rows that are made when they are asked for: a subclass says how many (`__len__`) and which (`at`, from
    0)."""

    @abstractmethod
    def at(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self.at(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.at(index % len(self))


@dataclass(frozen=True)
class Prompt:
    """What the policy is asked: chat messages whose media items refer, in order, to `images` and `videos`.

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
            m.key for m in self.images + self.videos
        ]
        parts += (
            [self.continues[0].key, repr(self.continues[1]), self.continues[2]]
            if self.continues is not None
            else []
        )
        return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:24]


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
    temperature and filters)."""

    request: Request
    index: int
    ids: list[int]
    logp: list[float]
    text: str
    finish: Literal["stop", "length", "abort"]
    version: int | list[int] = 0  # one per token if the weights changed while it was sampled
    top_logprobs: list[dict[int, float]] | None = None
    seconds: float = 0.0


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
        """Move rollouts that are not trained on out of the group: gates, advantages and the loss do not see
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

    def __len__(self) -> int:
        return len(self.rollouts)

    def __iter__(self) -> Iterator[Rollout]:
        return iter(self.rollouts)


class FilterDecision(NamedTuple):
    """A gate's decision about a group."""

    keep: bool
    reason: str = ""


@dataclass
class TokenBatch:
    """Completions of whole groups as one rectangle; prompts are kept once per group.

    `prompt_B[b]` indexes `prompts`. `mask_BT` marks real tokens, `loss_mask_BT` those that are trained on.
    """

    groups: list[Group]
    prompts: list[Prompt]
    prompt_B: Tensor
    ids_BT: Tensor
    mask_BT: Tensor
    loss_mask_BT: Tensor
    temperature_BT: Tensor

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for group in self.groups for rollout in group.rollouts]


@dataclass(frozen=True)
class Denominators:
    """Counts over one optimizer step, all its micro-batches and all ranks: tokens that carry loss; sequences
    and groups with at least one of them."""

    tokens: float
    sequences: float
    groups: float


@dataclass
class LossInputs:
    """What a loss stage may read. Auxiliary tensors are read as `x["ref_logp"]`, and only if declared in
    `needs`."""

    batch: TokenBatch
    logp_BT: Tensor  # with gradient
    old_logp_BT: Tensor  # of the policy that the step started from; equals logp_BT.detach() on-policy
    sampled_logp_BT: Tensor  # of the engine that sampled
    advantage_BT: Tensor
    reward_B: Tensor
    mask_BT: Tensor  # the loss mask, as float
    group_B: Tensor  # 0 .. number of groups - 1
    aux_tensors: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def from_tensors(
        cls,
        logp_BT: Tensor,
        advantages: Tensor,
        mask_BT: Tensor | None = None,
        *,
        old_logp_BT: Tensor | None = None,
        sampled_logp_BT: Tensor | None = None,
        reward_B: Tensor | None = None,
        group_B: Tensor | None = None,
        aux_tensors: Mapping[str, Tensor] | None = None,
        groups: Sequence[Group] | None = None,
    ) -> LossInputs:
        """Loss inputs from tensors alone, to write, call or test a loss plug-in outside a run.

        Args:
            logp_BT: (B, T) log-probs of the trained policy, with gradient.
            advantages: (B, T), or (B,) for one number per rollout.
            mask_BT: (B, T) 1 or True on trained tokens; None for all.
            old_logp_BT: (B, T) log-probs of the policy that the step started from; None is on-policy.
            sampled_logp_BT: (B, T) log-probs of the engine that sampled; None takes `old_logp_BT`.
            reward_B: (B,) rewards; None for zeros.
            group_B: (B,) group numbers, rising from 0 without gaps; None is one group.
            aux_tensors: tensors that the loss reads by name, for instance {"ref_logp": ref_logp_BT}.
            groups: the groups themselves, for a loss that reads rollouts; None makes placeholders with token
                ids of 0.

        Raises:
            ValueError: for shapes that differ, or group numbers that do not rise from 0 without gaps.
        """
        import torch

        if logp_BT.dim() != 2:
            raise ValueError(f"logp_BT has shape {tuple(logp_BT.shape)}; it must be (B, T)")
        rows, length = logp_BT.shape
        mask_BT = torch.ones_like(logp_BT).detach() if mask_BT is None else (mask_BT > 0).to(logp_BT.dtype)
        advantage_BT = advantages[:, None].expand(-1, length) if advantages.dim() == 1 else advantages
        old_logp_BT = logp_BT.detach() if old_logp_BT is None else old_logp_BT.detach()
        sampled_logp_BT = old_logp_BT if sampled_logp_BT is None else sampled_logp_BT.detach()
        reward_B = logp_BT.new_zeros(rows) if reward_B is None else reward_B
        group_B = torch.zeros(rows, dtype=torch.long, device=logp_BT.device) if group_B is None else group_B
        per_token = {
            "mask_BT": mask_BT,
            "advantages": advantage_BT,
            "old_logp_BT": old_logp_BT,
            "sampled_logp_BT": sampled_logp_BT,
        }
        _check_shapes(per_token, (rows, length), "(B, T)")
        _check_shapes({"reward_B": reward_B, "group_B": group_B}, (rows,), "(B,)")
        numbers = group_B.tolist()
        if any(after - before not in (0, 1) for before, after in zip([0, *numbers], numbers)):
            raise ValueError(
                f"group_B={numbers} must rise from 0 without gaps: the rows of a group stand together"
            )
        made = (
            list(groups)
            if groups is not None
            else _placeholder_groups(mask_BT.tolist(), reward_B.tolist(), numbers)
        )
        if [number for number, group in enumerate(made) for _ in group] != numbers:
            raise ValueError(
                f"groups has {[len(group) for group in made]} rollouts per group, which group_B={numbers} "
                "does not say"
            )
        ids_BT = torch.zeros(rows, length, dtype=torch.long, device=logp_BT.device)
        batch = TokenBatch(
            made,
            [group.prompt for group in made],
            group_B,
            ids_BT,
            mask_BT > 0,
            mask_BT > 0,
            torch.ones_like(mask_BT),
        )
        advantage_BT = torch.where(mask_BT > 0, advantage_BT.detach(), 0.0)
        return cls(
            batch,
            logp_BT,
            old_logp_BT,
            sampled_logp_BT,
            advantage_BT,
            reward_B,
            mask_BT,
            group_B,
            dict(aux_tensors or {}),
        )

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.aux_tensors:
            raise KeyError(
                f"tensor {name!r} was not computed: declare it in `needs` (here: "
                f"{sorted(self.aux_tensors) or 'none'})"
            )
        return self.aux_tensors[name]

    @property
    def length_B(self) -> Tensor:
        """Trained tokens of each rollout, at least 1."""
        return self.mask_BT.sum(-1).clamp(min=1)

    @property
    def log_ratio_BT(self) -> Tensor:
        """log pi_theta - log pi_old, zero outside the mask."""
        return (self.logp_BT - self.old_logp_BT) * self.mask_BT


def _check_shapes(tensors: Mapping[str, Tensor], shape: tuple[int, ...], legend: str) -> None:
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; it must be {legend} = {shape}, as logp_BT is (B, T)"
            )


def _placeholder_groups(
    mask: Sequence[Sequence[float]], rewards: Sequence[float], numbers: Sequence[int]
) -> list[Group]:
    """Groups of rollouts with token ids and log-probs of 0, as long as the last trained token says, for
    `LossInputs.from_tensors`."""
    groups: list[Group] = []
    for kept, reward, number in zip(mask, rewards, numbers, strict=True):
        if number == len(groups):
            prompt = Prompt(Row(id=f"row{number}", question=""), messages=())
            groups.append(Group(prompt, [], id=f"row{number}"))
        length = max((place + 1 for place, value in enumerate(kept) if value), default=0)
        rollout = Rollout(
            groups[-1].prompt,
            ids=[0] * length,
            logp=[0.0] * length,
            loss_mask=[value > 0 for value in kept[:length]],
            reward=reward,
        )
        groups[-1].rollouts.append(rollout)
    return groups


class PerToken(NamedTuple):
    """An unreduced loss, `(B, T)`, or `(B,)` for a loss per sequence, and numbers for the log (`(B, T)`
    tensors or scalars)."""

    loss: Tensor
    metrics: dict[str, Tensor]

"""Episodes: what the policy and an environment exchange over several turns, and what is known of an episode
afterwards. No torch is imported here.

    environment.episode() -> Episode          one per rollout; holds its state
    episode.reset(row, seed) -> Observation   what the policy sees besides the prompt; "" and no media for
                                              nothing
    episode.step(action) -> Observation       the answer to the policy's turn, its reward, and whether the
                                              episode is over
    episode.close()                           called once, whatever happened

- `reset` and `step` run in threads, one at a time for each episode. `close` may be called while one of them
  hangs: it must end what they wait for.
- What the policy writes is answered (`invalid` if it could not be carried out). An exception, or a call
  beyond `turn_seconds`, is the environment's fault: the rollout leaves its group without a reward.
  `TryAgain`: no effect, may be repeated.
- `reward` None states nothing; `parts` holds named parts.
- `reset` with the same row and seed gives the same observation: a group shares its prompt.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from vlrl.plugins.capabilities import Annotation, Capability
from vlrl.services.media_files import open_picture
from vlrl.types import Clip, CoordinateSpace, Media, MediaError, Message, Row

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image as PILImage

EpisodeEnd = Literal["done", "max_turns", "length", "context", "invalid_action", "error"]
ENDS: tuple[EpisodeEnd, ...] = ("done", "max_turns", "length", "context", "invalid_action", "error")
"""Why an episode ended.

done            the environment said so, or the policy wrote no further action
max_turns       the last turn that is allowed was played
length          a turn was cut at `sampling.max_tokens`; it is not carried out
context         the conversation has no room for another turn
invalid_action  more invalid actions than are allowed
error           the environment raised or did not answer in time: such a rollout is not trained on
"""

HINT = "rollout: {name: multi_turn}"
EPISODE_END: Annotation[str] = Annotation(
    "episode_end", str, hint=HINT, doc="why the episode ended, one of `vlrl.plugins.episodes.ENDS`"
)
EPISODE_RETURN: Annotation[float] = Annotation(
    "episode_return", float, hint=HINT, doc="sum of the rewards that the environment stated, if it did"
)
TURN_REWARDS: Annotation[list] = Annotation(
    "turn_rewards", list, hint=HINT, doc="per turn of the episode: the environment's reward, 0.0 for none"
)
TURN_PARTS: Annotation[dict] = Annotation(
    "turn_parts", dict, hint=HINT, doc="named reward parts of the environment, summed over turns"
)
TURN_SPANS: Annotation[list] = Annotation(
    "turn_spans",
    list,
    hint=HINT,
    doc=(
        "per turn in this rollout: [turn from 0, first token, one after the last]; a summary counts to the "
        "turn that follows it"
    ),
)
TURN_STATES: Annotation[list] = Annotation(
    "turn_states", list, hint=HINT, doc="per turn of the episode: key of the state that it was written in"
)
END_STATE: Annotation[str] = Annotation(
    "end_state",
    str,
    hint=HINT,
    doc='key of the state after the last turn; "" where that turn was not carried out',
)
ACTIONS: Annotation[list] = Annotation(
    "actions", list, hint=HINT, doc="per turn of the episode: the policy's text"
)
INVALID_ACTIONS: Annotation[int] = Annotation(
    "invalid_actions", int, hint=HINT, doc="actions that could not be carried out"
)

CONVERSATION: Annotation[int] = Annotation(
    "conversation", int, hint=HINT, doc="number of the conversation among those of its prompt"
)
SEGMENT: Annotation[int] = Annotation(
    "segment", int, hint=HINT, doc="place of the rollout among the segments of its conversation, from 0"
)
TURNS: Annotation[int] = Annotation(
    "turns", int, hint=HINT, doc="turns of the policy so far, over all segments"
)
CALLS: Annotation[int] = Annotation(
    "calls", int, hint=HINT, doc="replies of the environment so far, over all segments"
)
TRANSCRIPT: Annotation[str] = Annotation(
    "transcript", str, hint=HINT, doc="the segment's text with the replies"
)

# of environments that answer with pictures, whose states are plain values with a description, and that take
# something out of the context of later turns
PICTURE_REPLIES = Capability("picture_replies", hint="environment: {name: zoom}")
DESCRIBED_STATES = Capability("described_states", hint="environment: {name: minigrid}")
FORGETS = Capability("forgets", hint="environment: {name: reseek.search}")
ONE_REWARD_PER_CONVERSATION = Capability(
    "one_reward_per_conversation", hint="reward_shaping: {turns: {name: last_turn_reward}}"
)
EPISODE_ANNOTATIONS: tuple[Capability, ...] = (
    *(CONVERSATION, SEGMENT, TURNS, CALLS, TRANSCRIPT, ACTIONS, EPISODE_END, EPISODE_RETURN),
    *(INVALID_ACTIONS, TURN_PARTS, TURN_REWARDS, TURN_SPANS, TURN_STATES, END_STATE),
)

E = TypeVar("E", bound="Episode")

MAX_PIXELS = 4096 * 4096  # of a picture in an observation
MAX_TEXT = 1 << 20  # characters of an observation


class TryAgain(RuntimeError):
    """A call had no effect (a busy server, a lost connection before sending) and may be repeated."""


class EnvironmentFailure(RuntimeError):
    """An environment is at fault: dead, hanging, or broken. Never raised for what the policy wrote."""


class ReplayDiverged(EnvironmentFailure):
    """A repeated reset or action was answered otherwise than the first time, so that the episode is not where
    it should go on from."""


@dataclass(frozen=True)
class Picture(Media):
    """An encoded picture (PNG, JPEG, WebP). `of` makes one from pixels, `from_bytes` checks bytes of others
    before they are decoded."""

    data: bytes = field(repr=False)
    kind: Literal["image", "video"] = "image"

    @cached_property
    def key(self) -> str:
        return f"picture/{hashlib.sha256(self.data).hexdigest()[:24]}"

    def load(self) -> PILImage.Image:
        with open_picture(self.data) as image:
            return image.convert("RGB")

    @classmethod
    def of(cls, image: PILImage.Image | np.ndarray) -> Picture:
        """From a PIL image or an array (H, W, 3) or (H, W), uint8. Raises MediaError beyond `MAX_PIXELS`."""
        from PIL import Image

        made: Any = image if isinstance(image, Image.Image) else Image.fromarray(image)
        if made.width * made.height > MAX_PIXELS:
            raise MediaError(
                f"a picture of {made.width} x {made.height} pixels; at most {MAX_PIXELS} are allowed"
            )
        out = io.BytesIO()
        made.convert("RGB").save(out, "PNG")
        return cls(out.getvalue())

    @classmethod
    def from_bytes(cls, data: bytes) -> Picture:
        """From an encoded picture of unknown origin. Raises MediaError if it is none, or has more than
        `MAX_PIXELS`."""
        from PIL import Image, UnidentifiedImageError

        try:
            with open_picture(data) as image:  # reads the header alone
                width, height = image.size
        except (
            UnidentifiedImageError,
            OSError,
            ValueError,
            SyntaxError,
            Image.DecompressionBombError,
        ) as error:
            raise MediaError(f"no picture that can be read: {error}") from error
        if width * height > MAX_PIXELS:
            raise MediaError(f"a picture of {width} x {height} pixels; at most {MAX_PIXELS} are allowed")
        made = cls(data)
        try:
            made.load()
        except (OSError, ValueError, SyntaxError) as error:
            raise MediaError(f"a broken picture: {error}") from error
        return made


@dataclass(frozen=True)
class FrameSequence(Media):
    """A video clip of encoded frames. `fps` is frames per second of these frames."""

    frames: tuple[Picture, ...]
    fps: float = 1.0
    kind: Literal["image", "video"] = "video"

    @cached_property
    def key(self) -> str:
        frames = "/".join(frame.key for frame in self.frames)
        return f"frames/{self.fps:g}/{hashlib.sha256(frames.encode()).hexdigest()[:24]}"

    def load(self) -> Clip:
        import numpy as np

        return Clip(np.stack([np.asarray(frame.load()) for frame in self.frames]), self.fps)


@dataclass(frozen=True)
class Observation:
    """What an environment says after a reset or an action.

    Attributes:
        text: What the policy reads; "" for nothing.
        media: Pictures and videos that are shown before the text.
        reward: Of the action that led here; None states nothing.
        parts: Named parts of that reward.
        done: Whether the episode is over; text and media of a last observation are recorded and not shown.
        invalid: Whether the action could not be carried out.
        calls: Tool calls that were carried out.
        state: Equal states of a row have equal keys, for credit per step; "" takes text and media.
        forget: What later turns do not see: "observation" (the one that the last turn answered) or "thought"
            (the last turn up to its last </think>).
        role: "tool" for the result of a call, "user" for anything else.
    """

    text: str = ""
    media: tuple[Media, ...] = ()
    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    done: bool = False
    invalid: bool = False
    calls: int = 0
    state: str = ""
    role: Literal["user", "tool"] = "user"
    forget: Literal["", "observation", "thought"] = ""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.text and not self.media

    @property
    def content(self) -> list[dict[str, Any]]:
        """The parts of a chat message, media first; a media part holds its medium under "media"."""
        shown: list[dict[str, Any]] = [{"type": medium.kind, "media": medium} for medium in self.media]
        return [*shown, {"type": "text", "text": self.text}] if self.text or not shown else shown

    @property
    def messages(self) -> list[Message]:
        """The observation as chat messages."""
        return [{"role": self.role, "content": self.content}]

    @cached_property
    def state_key(self) -> str:
        """`state`, or a digest of text and media."""
        return (
            self.state
            or hashlib.sha256(
                "\x00".join([self.text, *(m.key for m in self.media)]).encode("utf-8", "replace")
            ).hexdigest()[:16]
        )

    def equals(self, other: Observation | str) -> bool:
        """Whether it is the same as another one, pictures by their keys; a string is the other's `state_key`,
        which is all that is compared."""
        if isinstance(other, str):
            return self.state_key == other
        keys, others = [medium.key for medium in self.media], [medium.key for medium in other.media]
        return keys == others and replace(self, media=()) == replace(other, media=())

    def check(self) -> None:
        """Raise EnvironmentFailure for what an environment must not return."""
        rewards = [value for value in (self.reward, *self.parts.values()) if value is not None]
        if not isinstance(self.text, str) or not all(isinstance(medium, Media) for medium in self.media):
            raise EnvironmentFailure(
                f"an observation has a text and media, got {type(self.text).__name__} and {self.media!r:.80}"
            )
        if not all(isinstance(value, (int, float)) and abs(value) < float("inf") for value in rewards):
            raise EnvironmentFailure(f"rewards must be finite numbers, got {rewards}")

    def plain(self) -> dict[str, Any]:
        """The observation as JSON: pictures as base64 of their encoded form."""
        own = {part.name: getattr(self, part.name) for part in fields(self)}
        return {**own, "media": list(map(_plain_medium, self.media)), "parts": dict(self.parts)}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Observation:
        """Undo `plain`."""
        return cls(**{**values, "media": tuple(map(_medium, values.get("media", ())))})


def _plain_medium(medium: Media) -> dict[str, Any]:
    if medium.kind == "image":
        image = medium if isinstance(medium, Picture) else Picture.of(medium.load())  # type: ignore[arg-type]  # an image loads as a PIL image
        return {"kind": "image", "data": base64.b64encode(image.data).decode()}
    clip: Any = medium.load()
    frames = (
        medium.frames
        if isinstance(medium, FrameSequence)
        else tuple(Picture.of(frame) for frame in clip.frames_THWC)
    )
    return {
        "kind": "video",
        "fps": clip.fps,
        "frames": [base64.b64encode(frame.data).decode() for frame in frames],
    }


def _medium(values: Mapping[str, Any]) -> Media:
    if values["kind"] == "image":
        return Picture(base64.b64decode(values["data"]))
    return FrameSequence(tuple(Picture(base64.b64decode(frame)) for frame in values["frames"]), values["fps"])


@dataclass(frozen=True)
class Action:
    """The policy's turn, as an environment sees it.

    Attributes:
        text: What it wrote, special tokens left out; a stop string that ended the turn is part of it.
        turn: Number of the turn, from 1.
        images: All pictures shown so far, those of the prompt first. `videos` likewise.
        spaces: Per picture, what the policy's coordinates mean.
        seconds: Time for this turn.
    """

    text: str
    turn: int = 1
    images: tuple[Media, ...] = ()
    videos: tuple[Media, ...] = ()
    spaces: tuple[CoordinateSpace, ...] = ()
    seconds: float = 60.0


class Episode(ABC):
    """The state of one conversation with an environment. Made by `Environment.episode`, used once."""

    def reset(self, row: Row, seed: int) -> Observation:
        """The beginning. Rollouts of one row get the same `seed` and must see the same."""
        return Observation()

    @abstractmethod
    def step(self, action: Action) -> Observation:
        """The answer to the policy's turn."""

    def expert(self, view: Action) -> str | None:
        """What an expert writes next in this state, for a warm-up (rollout `expert_turns`); None where there
        is no expert.

        `view` is the turn that is to be written: its number, the pictures shown so far and what coordinates
        in them mean. Called between two turns in the trainer's thread, like `copy`; changes nothing."""
        return None

    def close(self) -> None:
        """Free everything. Called once, also after an exception; perhaps from another thread while `step`
        hangs."""

    @property
    def stateless(self) -> bool:
        """Whether an answer depends on the row and the action alone, so that an episode that goes on
        elsewhere need not repeat earlier actions."""
        return False

    def copy(self) -> Episode | None:
        """A second episode in the same state, for a branch. Called between two turns in the trainer's thread:
        quick, and without processes or connections. None where that is not possible: a branch then repeats
        the actions, and fails where an answer is not the trunk's."""
        return None


def copied(episode: E, *fields: str) -> E:
    """An episode with the same attributes, of which `fields` (lists, dicts: what `step` changes in place) are
    copied."""
    made = copy.copy(episode)
    for name in fields:
        setattr(made, name, copy.copy(getattr(episode, name)))
    return made


@dataclass(frozen=True)
class Past:
    """What an episode that goes on elsewhere (a branch, a resumed conversation) has seen: the opening, and
    each action with its answer.

    An answer that is no longer known whole is given by its `state_key`.
    """

    opening: Observation | str
    steps: tuple[tuple[Action, Observation | str], ...] = ()


@dataclass
class Trajectory:
    """The record of an episode: what was said, in order. It replays without the environment (`environment:
    {name: recorded}`)."""

    row: str
    seed: int
    environment: str = ""
    opening: Observation = field(default_factory=Observation)
    steps: list[tuple[str, Observation]] = field(default_factory=list)  # (the policy's turn, the answer)
    end: str = ""

    def plain(self) -> dict[str, Any]:
        """The trajectory as JSON."""
        steps = [{"action": text, "observation": observation.plain()} for text, observation in self.steps]
        head = {"row": self.row, "seed": self.seed, "environment": self.environment}
        return {**head, "opening": self.opening.plain(), "steps": steps, "end": self.end}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Trajectory:
        """Undo `plain`."""
        steps = [(step["action"], Observation.from_plain(step["observation"])) for step in values["steps"]]
        return cls(
            values["row"],
            values["seed"],
            values["environment"],
            Observation.from_plain(values["opening"]),
            steps,
            values["end"],
        )


def stated_return(rewards: Sequence[float | None]) -> float | None:
    """The sum of the rewards that were stated; None where none was."""
    stated = [value for value in rewards if value is not None]
    return float(sum(stated)) if stated else None

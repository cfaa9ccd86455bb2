"""A tool that shows frames of the row's video when the policy asks for them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.environments.tools import Tool, ToolEnvironment, ToolEpisode
from vlrl.plugins.episodes import PICTURE_REPLIES, Observation, Picture
from vlrl.plugins.registry import register
from vlrl.plugins.stages import State, transient
from vlrl.types import Clip, Media, MediaError, Row, RowError

KEPT = 8  # decoded videos that are kept for the other rollouts of their rows


@dataclass
class VideoFramesState(State):
    """The videos that were decoded last (the rollouts of a row share one), by key, and their lock."""

    lock: Any = transient(factory=threading.Lock)
    clips: Any = transient(factory=dict)


@register("video_frames")
@dataclass(frozen=True, kw_only=True)
class VideoFrames(ToolEnvironment):
    """Frames on demand: answers {"name": "frames", "arguments": {"seconds": [2.5, 7], "video": 0}} with the
    frames that are nearest to these times.

    vlrl original, after agents that look at a video in several rounds (for instance Conan, arXiv:2510.20470,
    whose own form is `conan.video_clips`). The first observation tells how long each of the row's videos is.
    A prompt template that leaves the video out (`conan.template`) makes the policy depend on the tool. Edge:
    times outside the video, no times, and more than `most` are told to the policy; frames come in the order
    of the times, each once; a row without a video is a RowError. Units: seconds from the beginning.

    Attributes:
        most: Frames shown per call.
        side: Longer side of a frame in pixels.
    """

    state_class = VideoFramesState
    most: int = 4
    side: int = 448
    provides = (PICTURE_REPLIES,)

    def __post_init__(self) -> None:
        if self.most < 1 or self.side < 28:
            raise ValueError(f"most={self.most} must be at least 1, side={self.side} at least 28")

    def clip(self, video: Media) -> Clip:
        """A video's frames. Raises RowError where it cannot be decoded."""
        with self.state.lock:
            found = self.state.clips.pop(video.key, None)
        try:
            clip: Any = video.load() if found is None else found
        except MediaError as error:
            raise RowError(f"a video that cannot be read: {error}") from error
        with self.state.lock:
            self.state.clips[video.key] = clip
            while len(self.state.clips) > KEPT:
                self.state.clips.pop(next(iter(self.state.clips)))
        return clip

    def toolbox(self) -> Sequence[Tool]:
        return list(VideoFramesEpisode(self).tools.values())

    def episode(self) -> ToolEpisode:
        return VideoFramesEpisode(self)


class VideoFramesEpisode(ToolEpisode):
    """The videos of one row, decoded once."""

    def __init__(self, settings: VideoFrames) -> None:
        self.settings = settings
        self.clips: list[Clip] = []
        super().__init__([Tool.of(self.frames)])

    def reset(self, row: Row, seed: int) -> Observation:
        if not row.videos:
            raise RowError(f"row {row.id!r}: environment 'video_frames' needs a row with a video")
        self.clips = [self.settings.clip(video) for video in row.videos]
        lengths = [f"{len(clip) / clip.fps:.1f} seconds" for clip in self.clips]
        told = "The video has" if len(lengths) == 1 else "The videos have"
        return Observation(f"{told} {', '.join(lengths)}. Look at frames of it by the tool.")

    def frames(self, seconds: list, video: int = 0) -> Any:
        """Shows frames of a video. seconds: times from its beginning, [2.5, 7]; video: its number, from 0."""
        if not 0 <= video < len(self.clips):
            raise ValueError(f"video must be between 0 and {len(self.clips) - 1}")
        times = [
            value for value in seconds if isinstance(value, (int, float)) and not isinstance(value, bool)
        ]
        clip, most = self.clips[video], self.settings.most
        length = len(clip) / clip.fps
        if (
            not times
            or len(times) != len(seconds)
            or len(times) > most
            or not all(0 <= value <= length for value in times)
        ):
            raise ValueError(f"seconds must be a list of 1 to {most} times from 0 to {length:.1f}")
        wanted = dict.fromkeys(min(int(value * clip.fps + 0.5), len(clip) - 1) for value in times)
        shown = ", ".join(f"{number / clip.fps:.1f}" for number in wanted)
        return [f"Frames at {shown} seconds.", *(self.picture(clip, number) for number in wanted)]

    def picture(self, clip: Clip, number: int) -> Picture:
        """One frame, made smaller where it is larger than `side`."""
        from PIL import Image

        image = Image.fromarray(clip.frames_THWC[number])
        image.thumbnail((self.settings.side, self.settings.side))
        return Picture.of(image)

    def close(self) -> None:
        self.clips = []

"""An exported task as an environment of the package verifiers, in its 0.1 and its 0.4 interface.
`vlrl.interop.verifiers_export` writes such tasks.

A task is a folder with `task.json` (rewards, environment, turns) and rows as JSON lines. Here they are
played: the conversation goes to the task's `Environment`, if it has one, and its rewards score the whole. No
torch is imported.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vlrl.plugins.episodes import (
    EPISODE_END,
    EPISODE_RETURN,
    TURN_PARTS,
    Action,
    Episode,
    Observation,
    Picture,
    stated_return,
)
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Environment, Reward
from vlrl.plugins.text_scoring import group_of
from vlrl.types import CoordinateSpace, Media, Row

FILE = "task.json"
KEPT = (
    "id",
    "question",
    "answer",
    "choices",
    "task",
    "target",
    "system",
    "rewards",
    "meta",
)  # fields of a row that are written


def data_url(medium: Media) -> str:
    """A picture as an address that holds it."""
    image: Any = medium.load()
    out = io.BytesIO()
    image.convert("RGB").save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def wire(observation: Observation) -> list[dict[str, Any]]:
    """An observation as a user message in OpenAI's form. Raises ConfigError for a video."""
    if any(medium.kind == "video" for medium in observation.media):
        raise ConfigError("an observation with a video cannot be sent as a chat message")
    pictures = [{"type": "image_url", "image_url": {"url": data_url(medium)}} for medium in observation.media]
    text = observation.text or ("" if pictures else "(nothing)")
    return [{"role": "user", "content": [*pictures, {"type": "text", "text": text}] if pictures else text}]


@dataclass(frozen=True)
class ExportedTask:
    """A task's folder. Raises ConfigError where it holds none, or names a plug-in that is not there."""

    folder: Path

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """What `task.json` says."""
        try:
            return json.loads((self.folder / FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.folder / FILE}: no exported task: {error}") from None

    @cached_property
    def rewards(self) -> dict[str, Reward]:
        """The reward slots."""
        return {
            slot: build(Reward, spec, f"rewards.{slot}") for slot, spec in self.settings["rewards"].items()
        }

    @cached_property
    def environment(self) -> Environment | None:
        """The environment of its episodes; None for tasks of one turn."""
        spec = self.settings.get("environment")
        return build(Environment, spec, "environment") if spec else None

    def rows(self, split: str) -> list[dict[str, Any]]:
        """The rows of a split: {"messages", "row"}. Raises ConfigError for a split without rows."""
        path = self.folder / f"{split}.jsonl"
        if not path.is_file():
            raise ConfigError(f"the task {self.settings['name']!r} has no rows for split {split!r}")
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Play:
    """One episode of an exported task: `begin`, `step` for each turn, `scores` at its end, `close`. Its calls
    block."""

    def __init__(self, task: ExportedTask, kept: Mapping[str, Any]) -> None:
        fields = dict(kept["row"])
        images = tuple(Picture.from_bytes(base64.b64decode(data)) for data in fields.pop("images", ()))
        self.row = Row(
            **{**fields, "choices": tuple(fields["choices"]), "rewards": tuple(fields["rewards"])},
            images=images,
        )
        self.task = task
        self.images: list[Media] = list(images)
        self.turns: list[str] = []
        self.paid: list[float | None] = []
        self.parts: dict[str, float] = {}
        self.end = ""
        self.episode: Episode | None = None

    def begin(self) -> None:
        """Start the episode; its first observation stands in the exported prompt."""
        if self.task.environment is not None:
            self.episode = self.task.environment.episode()
            self.images += self.episode.reset(self.row, int(self.row.meta.get("seed", 0))).media

    def step(self, text: str) -> list[dict[str, Any]] | None:
        """The messages that answer a turn; None at the end of the episode."""
        self.turns.append(text)
        if self.episode is None:
            self.end = "done"
            return None
        pictures: list[Any] = [image.load() for image in self.images]
        spaces = tuple(CoordinateSpace(picture.size, picture.size, "original") for picture in pictures)
        observation = self.episode.step(Action(text, len(self.turns), tuple(self.images), spaces=spaces))
        observation.check()
        self.paid.append(observation.reward)
        for name, value in observation.parts.items():
            self.parts[name] = self.parts.get(name, 0.0) + value
        self.end = (
            "done"
            if observation.done
            else "max_turns"
            if len(self.turns) >= self.task.settings["max_turns"]
            else ""
        )
        if self.end:
            return None
        self.images += [medium for medium in observation.media if medium.kind == "image"]
        return wire(observation)

    def close(self) -> None:
        """End the episode. A second call does nothing."""
        episode, self.episode = self.episode, None
        if episode is not None:
            episode.close()

    async def scores(self) -> dict[str, tuple[float, float]]:
        """(score, weight) of each reward slot that scores this row."""
        columns = {
            "question": self.row.question,
            "choices": self.row.choices,
            "images": self.row.images,
            "task": self.row.task,
        }
        rest = {
            "target": self.row.target,
            "system": self.row.system,
            "id": self.row.id,
            "meta": dict(self.row.meta),
        }
        (rollout,) = group_of(["\n".join(self.turns)], self.row.answer, {**columns, **rest})
        EPISODE_END.set(rollout, self.end or "length")
        TURN_PARTS.set(rollout, self.parts)
        total = stated_return(self.paid)
        if total is not None:
            EPISODE_RETURN.set(rollout, total)
        found = {}
        for slot, reward in self.task.rewards.items():
            if (
                slot in self.row.rewards
                if self.row.rewards
                else not reward.tasks or self.row.task in reward.tasks
            ):
                value: Any = reward(rollout)
                found[slot] = (float(await value if inspect.isawaitable(value) else value), reward.weight)
        return found


def environment_01(folder: str | Path, split: str = "train", **options: Any) -> Any:
    """The task for verifiers 0.1: a `MultiTurnEnv` whose rubric has the task's rewards. What
    `load_environment` of an exported package returns."""
    import verifiers
    from datasets import Dataset
    from verifiers.utils.message_utils import normalize_messages

    task = ExportedTask(Path(folder))

    class VlrlEnvironment(verifiers.MultiTurnEnv):
        """Plays the task's episodes."""

        async def setup_state(self, state: Any) -> None:
            kept = state["info"]
            state["prompt"] = normalize_messages(
                kept["messages"], field_name="prompt"
            )  # a table would mix up parts of texts and of pictures
            state["play"] = Play(task, kept)
            await asyncio.to_thread(state["play"].begin)

        async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
            answer = await asyncio.to_thread(state["play"].step, text_of(messages[-1].content))
            if answer is None:
                state["final_env_response"] = [{"role": "user", "content": "(the episode is over)"}]
            return answer or state["final_env_response"]

        @verifiers.cleanup
        async def end_episode(self, state: Any) -> None:
            if "play" in state:
                await asyncio.to_thread(state["play"].close)
                state["scores"] = await state["play"].scores()

    def slot_reward(slot: str) -> Any:
        async def score(state: Any) -> float:
            return state["scores"].get(slot, (0.0, 0.0))[0]

        score.__name__ = slot
        return score

    def table(rows: Sequence[Mapping[str, Any]]) -> Any:
        plain = [{"role": "user", "content": "-"}]
        return Dataset.from_list([{"prompt": plain, "answer": "", "info": json.dumps(kept)} for kept in rows])

    rubric = verifiers.Rubric(
        funcs=[slot_reward(slot) for slot in task.rewards],
        weights=[reward.weight for reward in task.rewards.values()],
    )
    heldout = table(task.rows("heldout")) if (task.folder / "heldout.jsonl").is_file() else None
    return VlrlEnvironment(dataset=table(task.rows(split)), eval_dataset=heldout, rubric=rubric, **options)


def taskset_04(folder: str | Path) -> tuple[type, type]:
    """The task for verifiers 0.4: (its `Taskset`, its `Env`). What an exported package exports by
    `__all__`."""
    import verifiers.v1 as vf

    task = ExportedTask(Path(folder))

    class VlrlData(vf.TaskData):
        """A row."""

        kept: dict = {}

    class VlrlTask(vf.Task[VlrlData]):
        """A row; the environment records its rewards."""

    class VlrlTasksetConfig(vf.TasksetConfig):
        """Which rows."""

        split: str = "train"

    class VlrlTaskset(vf.Taskset[VlrlTask, VlrlTasksetConfig]):
        """The rows of the task."""

        def load(self) -> Any:
            for kept in task.rows(self.config.split):
                yield VlrlTask(
                    VlrlData(prompt=kept["messages"], name=kept["row"]["id"], kept=kept), self.config.task
                )

    class VlrlEnvConfig(vf.EnvConfig):
        """One agent, which only chats."""

        agent: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})

    class VlrlEnv(vf.Env[VlrlEnvConfig]):
        """Plays the task's episodes as the user of the agent."""

        async def run(self, row: Any, agents: Any) -> None:
            play = Play(task, row.data.kept)
            try:
                await asyncio.to_thread(play.begin)
                async with agents.agent.interaction(row) as interaction:
                    segment = await interaction.turn()
                    while not segment.terminated:
                        answer = await asyncio.to_thread(play.step, segment.last_reply)
                        if answer is None:
                            break
                        segment = await interaction.turn([{**message} for message in answer])
                for slot, (score, weight) in (await play.scores()).items():
                    interaction.trace.record_reward(slot, score, weight)
            finally:
                await asyncio.to_thread(play.close)

    return VlrlTaskset, VlrlEnv


def text_of(content: Any) -> str:
    """The text of a message's content."""
    if isinstance(content, list):
        return "".join(
            part["text"] if isinstance(part, Mapping) else getattr(part, "text", "") for part in content
        )
    return str(content or "")

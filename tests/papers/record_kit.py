"""A paper's own records through source, template, units and rewards, as a run would take them.

`<id>/case.yaml` holds what the release says and what its reward code pays:

    released: repository, commit, and the lines of schema and rewards
    config: names of configs, the last wins; `words`: overrides
    source: the name under data.train; `file`: how its records are stored (name.json, .jsonl or .parquet);
        `setting`: the source's setting that names the file (path); `phase`: the phase that has the source
    families: what reads them, by the tiny models of `FAMILIES`
    pictures: {path: [width, height]}; clips: {path: [width, height, seconds]}
    knowledge: {title: passages}, the SQLite file of `select.passages.knowledge`
    holder: a mapping around the records of a .json file, which stand where it has null
    scores: [[pattern, score], ...], in place of a scalar reward model: the first pattern that question and
        response have (`WordScores`)
    cases: record; row (fields of the row that must come out); answers: text and what each reward pays. An
        answer of several `turns` is what the policy wrote in each turn of an episode; `end` is how it ended
        (done), `invalid` the actions that could not be carried out. `notes`: what its rollout strategy adds
        (`NOTES`); `others`: the other answers of its group
    plays: whether the turns are played in the config's environment, whose reward parts they then have
    needs: a program without which the case is left out (bwrap)
    shaping: slots of reward_shaping whose total is the total, in order
    shift: what the release adds to every total alike, which no advantage of a group sees: wrong answers at -1

In a text, `{box 1 2 3 4}` and `{point 1 2}` are in pixels of the original picture, and stand as the family
writes them; `{at 1 2}` is a point without brackets. The values of all records are ours; their fields, nesting
and units are the release's.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image
from task_kit import judge_opened
from vlrl_rewards.combine.reward_model import ByRewardModel
from vlrl_rewards.text.faithful import PROXY_ANSWER
from vlrl_rewards.text.group import PARAPHRASED

from vlrl.beside.knowledge import SEPARATOR
from vlrl.config import at, load
from vlrl.plugins.episodes import ACTIONS, EPISODE_END, INVALID_ACTIONS, TURN_PARTS, Action
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward
from vlrl.policy import Family, Policy
from vlrl.trainer.data.rows import to_model_coordinates
from vlrl.trainer.plan import Plan
from vlrl.trainer.step.scoring import score
from vlrl.trainer.step.step import ScoreCounts
from vlrl.types import CoordinateSpace, Group, Prompt, Rollout, Row

HERE = Path(__file__).parent
SIZES = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 64}
VISION = {**SIZES, "vision_hidden": 32, "vision_layers": 1}
FAMILIES = {
    "text": SIZES,
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl"), VISION),
}
NOTES = {note.name: note for note in (PROXY_ANSWER, PARAPHRASED)}
KNOWLEDGE = "knowledge_base.db"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # by libyaml, where PyYAML was built with it
PLACE = re.compile(r"\{(box|point|at) ([-\d. ]+)\}")


class WordScores:
    """Stands in for a scalar reward model: the score of the first pattern found in what it reads."""

    def __init__(self, table: Sequence[tuple[str, float]]) -> None:
        self.table = table

    def scores(self, responses: Sequence[tuple[Prompt, str]]) -> list[float]:
        """One score per (prompt, response)."""
        return [self.score(f"{prompt.text}\n\n{text}") for prompt, text in responses]

    def score(self, text: str) -> float:
        """The score of a text."""
        return next(score for pattern, score in self.table if re.search(pattern, text))


def cases() -> dict[str, dict[str, Any]]:
    """The files by id."""
    return {
        path.parent.name: yaml.load(path.read_text(), Loader=LOADER)
        for path in sorted(HERE.glob("*/case.yaml"))
    }


@cache
def policy_of(family: str) -> Policy:
    """A tiny random model of a family."""
    return Policy(build(Family, {"name": family, "tiny": FAMILIES[family]}))


def write(case: Mapping[str, Any], folder: Path) -> None:
    """The records and their media, as files."""
    for name, size in case.get("pictures", {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(len(name)).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    for name, (width, height, seconds) in case.get("clips", {}).items():
        write_clip(folder / name, width, height, seconds)
    if "knowledge" in case:
        with sqlite3.connect(folder / KNOWLEDGE) as database:
            database.execute("CREATE TABLE documents (title PRIMARY KEY, text)")
            rows = [(title, SEPARATOR.join(parts)) for title, parts in case["knowledge"].items()]
            database.executemany("INSERT INTO documents VALUES (?, ?)", rows)
        database.close()
    records, path = [one["record"] for one in case["cases"]], folder / case["file"]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist([with_bytes(record, folder) for record in records]), path)
    else:
        holder = {key: records if value is None else value for key, value in case.get("holder", {}).items()}
        path.write_text(json.dumps(holder or records))


def with_bytes(value: Any, folder: Path) -> Any:
    """The value with {file: path} as the bytes of that file."""
    if isinstance(value, dict):
        if set(value) == {"file"}:
            return (folder / value["file"]).read_bytes()
        return {key: with_bytes(item, folder) for key, item in value.items()}
    return [with_bytes(item, folder) for item in value] if isinstance(value, list) else value


def write_clip(path: Path, width: int, height: int, seconds: float) -> None:
    """A grey clip of 4 frames a second."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=4)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for i in range(int(seconds * 4)):
            frame = np.full((height, width, 3), 20 * i % 255, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def on_disk(case: Mapping[str, Any], where: str) -> list[str]:
    """Words that make a source of the hub one of files, with its other fields."""
    source = at(load(case["config"]).tree, where)
    if source["name"] != "hub":
        return []
    hub = ("name", "path", "config", "split", "revision", "stream", "token")
    kept = {key: value for key, value in source.items() if key not in hub}
    return [f"{where}=null", f"{where}={json.dumps({'name': 'files', 'path': case['file'], **kept})}"]


class Read:
    """The case as a run of one family reads it: `prompts` by record."""

    def __init__(self, case: Mapping[str, Any], family: str, folder: Path) -> None:
        write(case, folder)
        where = {case.get("setting", "path"): str(folder / case["file"])}
        if "path" in where and ("pictures" in case or "clips" in case):
            where["media_root"] = str(folder)
        phase = f"phases.{case['phase']}." if "phase" in case else ""
        place = f"{phase}data.train"
        source = f"{place}.{case['source']}"
        words = [
            "policy=null",
            f"policy={{name: {family}, tiny: {FAMILIES[family]}}}",
            "engine={name: fake}",
            *(
                f"{place}.{other}=null"
                for other in at(load(case["config"]).tree, place)
                if other != case["source"]
            ),
            *on_disk(case, source),
            *(f"{source}.{key}={value}" for key, value in where.items()),
            *([f"select.passages.knowledge={folder / KNOWLEDGE}"] if "knowledge" in case else ()),
            *case.get("words", ()),
        ]
        config = load(case["config"], words)
        self.plays = bool(case.get("plays"))
        self.shift, self.shaping = float(case.get("shift", 0.0)), case.get("shaping", ())
        self.policy, self.phase = policy_of(family), Plan.of(config).phases[-1]
        for reward in self.phase.rewards.values():
            judge_opened(reward)
            if "scores" in case and isinstance(reward, ByRewardModel):
                reward.state.model = WordScores(case["scores"])
            if type(reward).setup is Reward.setup:  # it reads the phase's settings alone
                reward.setup(self.phase)  # type: ignore[arg-type]
        rows = list(self.phase.rows("train")[case["source"]])
        self.rows = [to_model_coordinates(self.policy, row) for row in rows]
        self.prompts = [self.phase.prompt_template(row) for row in self.rows]

    def pays(self, prompt: Prompt, answer: Mapping[str, Any]) -> dict[str, float]:
        """What each reward pays for an answer, with its total."""
        answers = [answer, *answer.get("others", ())]
        rollout, *others = [self.rollout(prompt, one) for one in answers]
        group = Group(prompt, [rollout, *others], id="record")
        warnings: list[str] = []
        score([group], self.phase, ScoreCounts(), warnings.append, "a record")
        assert group.rollouts and not warnings, warnings
        for slot in self.shaping:
            self.phase.reward_shaping[slot].setup(self.phase)  # type: ignore[arg-type]  # it reads `rewards`
            rollout.reward = self.phase.reward_shaping[slot](group)[0]
        return {**rollout.rewards, "total": rollout.reward + self.shift}

    def rollout(self, prompt: Prompt, answer: Mapping[str, Any]) -> Rollout:
        """An answer as a rollout of one token."""
        spaces = tuple(self.policy.spaces(prompt))
        turns = [in_units(turn, spaces) for turn in answer.get("turns", [answer.get("text")])]
        rollout = Rollout(prompt, [1], text=prompt.prefix + "".join(turns), logp=[0.0], spaces=spaces)
        if "turns" in answer:
            ACTIONS.set(rollout, [prompt.prefix + turns[0], *turns[1:]])
            EPISODE_END.set(rollout, answer.get("end", "done"))
            INVALID_ACTIONS.set(rollout, answer.get("invalid", 0))
            if self.plays:
                TURN_PARTS.set(rollout, self.played(prompt.row, turns))
        for name, value in answer.get("notes", {}).items():
            NOTES[name].set(rollout, value)
        return rollout

    def played(self, row: Row, turns: Sequence[str]) -> dict[str, float]:
        """The sums of the reward parts of the turns, in the environment."""
        assert self.phase.environment is not None
        episode, parts = self.phase.environment.episode(), Counter[str]()
        episode.reset(row, 0)
        for number, turn in enumerate(turns, 1):
            seen = episode.step(Action(turn, number))
            parts.update(seen.parts)
            assert seen.done == (number == len(turns)), turn
        episode.close()
        return dict(parts)


def in_units(text: str, spaces: Sequence[CoordinateSpace]) -> str:
    """The text with its places in the units of the first picture."""

    def written(match: re.Match[str]) -> str:
        place = [float(word) for word in match[2].split()]
        digits = 2 if spaces and spaces[0].units == "unit" else None
        listed = json.dumps([round(value, digits) for value in spaces[0].from_original(place)])
        return listed.strip("[]") if match[1] == "at" else listed

    return PLACE.sub(written, text)


def fields(row: Row, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The row's values of the wanted fields, tuples as lists; `meta.x` is a value of meta."""
    found = {key: row.meta.get(key[5:]) if key.startswith("meta.") else getattr(row, key) for key in wanted}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}

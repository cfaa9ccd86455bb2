"""Rollouts as a table: one row each, every raw reward in a column of its own, with the pictures.

Columns: step, phase, group, index, id, task, prompt and turns (JSON [[role, text], ...]), completion, finish,
source, length (tokens), reward/<slot> (null: did not score), part/<name> (of a combined reward), reward
(total), outcome, correct, verdict (JSON: what a reward read), advantage, answer (JSON), entropy and logp
(means in nats), gold_marks and marks (JSON, original pixels), media (kind, bytes, width, height, times).
spans: JSON [[text, advantage, shift, sampled], ...] where tokens differ; shift is log p - log p_ref in half
nats, null without a reference; sampled is false for replies of tools.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlrl.logging.boxes import gold_marks, predicted_marks
from vlrl.services.files import write_whole
from vlrl.types import Group, Prompt, Rollout

if TYPE_CHECKING:
    import pyarrow as pa

Record = dict[str, Any]
Decode = Callable[[Sequence[int]], str]
REWARD = "reward/"
PART = "part/"
SHIFTED = 64  # rollouts of a step whose tokens are compared with the reference model's
TEXTS = (
    *("phase", "group", "id", "task", "prompt", "completion", "finish", "source", "answer", "spans", "turns"),
    *("verdict", "gold_marks", "marks"),
)


def prompt_turns(prompt: Prompt) -> list[tuple[str, str]]:
    """(role, text) of the conversation, media shown as <image> or <video>, ending with the assistant's
    prefix."""
    turns = []
    for message in prompt.messages:
        content = message.get("content", "")
        if not isinstance(content, str):
            content = "".join(
                item["text"] if item.get("type") == "text" else f"<{item.get('type')}>" for item in content
            )
        calls = [to_json(call) for call in message.get("tool_calls") or ()]
        turns.append(
            (str(message.get("role", "")), plain("\n".join([content, *calls] if calls else [content])))
        )
    return [*turns, ("assistant", plain(prompt.prefix))] if prompt.prefix else turns


def prompt_text(prompt: Prompt) -> str:
    """The conversation as plain text."""
    return "\n".join(f"{role}: {text}" for role, text in prompt_turns(prompt))


def records(step: int, phase: str, groups: Iterable[Group], decode: Decode | None = None) -> list[Record]:
    """Plain values of every rollout; `media` still holds the media objects. `decode` (ids -> text) allows
    advantages per token."""
    out: list[Record] = []
    for group_index, group in enumerate(groups):
        shared = {
            "step": step, "phase": phase, "group": group.id or str(group_index), "id": group.row.id,
            "task": group.row.task,
            "prompt": prompt_text(group.prompt), "turns": to_json(prompt_turns(group.prompt)),
            "answer": to_json(group.row.answer),
            "media": group.prompt.images + group.prompt.videos + group.prompt.audios,
        }  # fmt: skip
        gold = gold_marks(group.row.answer) if group.prompt.images else []
        for index, rollout in enumerate(group):
            marks = predicted_marks(rollout, gold) if gold else []
            out.append(
                {
                    **shared,
                    "index": index,
                    "gold_marks": to_json(gold),
                    "marks": to_json(marks),
                    **_own(rollout, decode, len(out) < SHIFTED),
                }
            )
    return out


def _own(rollout: Rollout, decode: Decode | None, shifted: bool) -> Record:
    known = rollout.outcome is not None
    return {
        "completion": plain(rollout.text), "finish": rollout.finish, "source": rollout.source,
        "length": len(rollout),
        "reward": float(rollout.reward), "advantage": float(rollout.advantage),
        "outcome": float(rollout.outcome or 0) if known else None,
        "correct": bool(rollout.correct) if known else None,
        "verdict": to_json(rollout.info["verdict"]) if rollout.info.get("verdict") else "",
        "entropy": _mean(rollout.signals.get("entropy")), "logp": _mean(rollout.logp),
        "spans": to_json(_spans(rollout, decode, shifted)),
        **{REWARD + slot: float(value) for slot, value in rollout.rewards.items()},
        **{PART + slot: float(value) for slot, value in rollout.info.get("parts", {}).items()},
    }  # fmt: skip


def _mean(values: Any) -> float | None:
    values = [float(value) for value in values] if values is not None else []
    return sum(values) / len(values) if values else None


def _spans(
    rollout: Rollout, decode: Decode | None, shifted: bool
) -> list[tuple[str, float, float | None, bool]]:
    """Runs of tokens that are alike: (text, advantage, shift of the log-probability against the reference in
    half nats, whether the policy sampled them); empty if all are alike."""
    count = len(rollout.ids)
    advantages: Sequence[float] = rollout.advantages
    if len(advantages) != count:
        advantages = [rollout.advantage] * count
    shifts = _shifts(rollout, count) if shifted else [None] * count
    keys = [*zip(advantages, shifts, rollout.sampled)]
    if decode is None or len(set(keys)) < 2 or len(keys) != count:
        return []
    runs = itertools.groupby(zip(rollout.ids, keys), key=lambda pair: pair[1])
    return [
        (decode([token for token, _ in run]), round(float(advantage), 6), shift, bool(sampled))
        for (advantage, shift, sampled), run in runs
    ]


def _shifts(rollout: Rollout, count: int) -> Sequence[float | None]:
    """log p - log p_ref of every token, to half a nat; None where the run knows no reference."""
    own, reference = (rollout.signals.get(name) for name in ("old_logp", "ref_logp"))
    own = rollout.logp if own is None else own
    if reference is None or len(own) != count or len(reference) != count:
        return [None] * count
    return [round(2 * float(a - b)) / 2 + 0.0 for a, b in zip(own, reference)]


def plain(text: str) -> str:
    """Text that UTF-8 can hold: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def to_json(value: Any) -> str:
    """JSON with sorted keys; what JSON does not know is written as its repr."""
    return plain(json.dumps(value, ensure_ascii=False, sort_keys=True, default=repr))


def write(rows: Sequence[Record], path: Path, picture: Callable[[Any], Record]) -> None:
    """Write a parquet file, atomically. `picture` turns a medium into {kind, bytes, width, height}."""
    import pyarrow.parquet as pq

    table = _table([{**row, "media": [picture(medium) for medium in row["media"]]} for row in rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    # The pictures of a group repeat in each of its rows: a dictionary page large enough keeps one copy.
    pq.write_table(table, content, compression="zstd", dictionary_pagesize_limit=64 * 2**20)
    write_whole(path, content.getvalue())


def _table(rows: Sequence[Record]) -> pa.Table:
    import pyarrow as pa

    schema = {
        "step": pa.int64(),
        "index": pa.int64(),
        "length": pa.int64(),
        "correct": pa.bool_(),
        **{name: pa.string() for name in TEXTS},
    }
    slots = sorted({name for row in rows for name in row if name.startswith((REWARD, PART))})
    schema |= {name: pa.float64() for name in ("reward", *slots, "outcome", "advantage", "entropy", "logp")}
    schema["media"] = pa.list_(
        pa.struct(
            {
                "kind": pa.string(), "bytes": pa.binary(), "width": pa.int32(), "height": pa.int32(),
                "times": pa.list_(pa.float64()),
            }
        )
    )  # fmt: skip
    return pa.table({name: pa.array([row.get(name) for row in rows], kind) for name, kind in schema.items()})


def read(path: Path, pictures_of: Callable[[list[Record]], Iterable[int]] | None = None) -> list[Record]:
    """The rows of a rollout file. `pictures_of` chooses, from rows without media, the positions of those
    whose media are read too (default: all)."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    if pictures_of is None:
        return table.to_pylist()
    rows = table.drop_columns("media").to_pylist()
    chosen = list(pictures_of(rows))
    for place, media in zip(chosen, table["media"].take(chosen).to_pylist()):
        rows[place]["media"] = media
    return rows

"""A batch that was collected ahead of its step, and its plain form in checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from vlrl.trainer.session import Session
from vlrl.trainer.step.step import Step
from vlrl.types import Group, Prompt, Row
from vlrl.types.rollouts import prompt_from_plain


@dataclass
class CollectedBatch:
    """A step whose groups are collected: what `collect` counted, how many rollouts were scored and could not
    be,
    and the seconds it took."""

    step: Step
    scored: int = 0
    errors: int = 0
    seconds: float = 0.0

    def begin(self, phase_step: int) -> Step:
        """The step that trains on it: its groups and counters, with seconds of its own."""
        done = self.step
        return Step(done.number, phase_step, done.sampled, done.groups, done.counts)

    def to_plain(self) -> dict[str, Any]:
        """Plain values. Raises TypeError or ValueError for a rollout that has none (`Rollout.to_plain`)."""
        trained = {id(group) for group in self.step.groups}
        everything = [*self.step.groups, *(g for g in self.step.sampled if id(g) not in trained)]
        # `sampled` and `groups` share groups: each is written once, and both lists are places in it
        place = {id(group): index for index, group in enumerate(everything)}
        values = {
            "step": self.step.number,
            "scored": self.scored,
            "errors": self.errors,
            "counts": self.step.counts,
            "trained": len(self.step.groups),
            "sampled": [place[id(group)] for group in self.step.sampled],
            "groups": [group.to_plain() for group in everything],
        }
        # through JSON at once: what it cannot hold fails here, where a warning can still be given
        plain: dict[str, Any] = json.loads(json.dumps(values))
        return plain


def batches_of(session: Session, saved: Mapping[str, Any] | None) -> list[CollectedBatch]:
    """The saved batches for the steps that follow."""
    if not saved or saved["phase"] != session.phase or not saved["batches"]:
        return []
    rows = {row.id: row for source in session.rows.values() for row in source}
    prompts: dict[str, Prompt] = {}
    out = []
    for values in saved["batches"]:
        groups = []
        for plain in values["groups"]:
            row = rows[plain["row"]]
            prompt = prompts.get(plain["prompt"]) or session.prompt_template(row)
            if prompt.key != plain["prompt"]:  # an environment added to it
                prompt = prompt_from_plain(plain["made"], row)
            prompts[plain["prompt"]] = prompt
            groups.append(Group.from_plain(plain, prompt, session.policy.spaces))
        step = Step(values["step"], session.phase_step)
        step.groups = groups[: values["trained"]]
        step.sampled = [groups[place] for place in values["sampled"]]
        step.count(values["counts"])
        out.append(CollectedBatch(step, values["scored"], values["errors"]))
    return out


def rows_again(session: Session, saved: Mapping[str, Any] | None) -> list[Row]:
    """The rows of batches that were collected ahead and could not be saved: they are drawn first."""
    if not saved or saved["phase"] != session.phase or not saved.get("redraw"):
        return []
    rows = {row.id: row for source in session.rows.values() for row in source}
    return [rows[name] for name in saved["redraw"] if name in rows]


def share_of(parts: Sequence[Mapping[str, Any]], rank: int, ranks: int) -> Mapping[str, Any]:
    """This rank's batches of those that all ranks saved. Where a rank could not save its own, all rows are
    drawn again, in their order."""
    if any("redraw" in part for part in parts):
        own = [part.get("redraw") or _rows_of(part) for part in parts]
        turns = [name for turn in zip_longest(*own) for name in turn if name is not None]
        return {"phase": parts[0]["phase"], "batches": [], "redraw": turns}
    return parts[rank] if len(parts) == ranks else redistribute(parts, rank, ranks)


def _rows_of(part: Mapping[str, Any]) -> list[str]:
    return [batch["groups"][place]["row"] for batch in part["batches"] for place in batch["sampled"]]


def redistribute(parts: Sequence[Mapping[str, Any]], rank: int, ranks: int) -> dict[str, Any]:
    """This rank's share of batches that another number of ranks collected ahead: every group goes to one
    rank,
    counters to the first."""
    batches = []
    for same_step in zip(*(part["batches"] for part in parts)):
        trained = [group for batch in same_step for group in batch["groups"][: batch["trained"]]][rank::ranks]
        dropped = [group for batch in same_step for group in batch["groups"][batch["trained"] :]][rank::ranks]
        counts: dict[str, float] = {}
        for batch in same_step if rank == 0 else ():
            for name, value in batch["counts"].items():
                counts[name] = counts.get(name, 0.0) + value
        groups = [*trained, *dropped]
        numbers = {
            name: sum(batch[name] for batch in same_step) if rank == 0 else 0 for name in ("scored", "errors")
        }
        shared = {
            "step": same_step[0]["step"],
            "counts": counts,
            "trained": len(trained),
            "sampled": list(range(len(groups))),
            "groups": groups,
        }
        batches.append({**numbers, **shared})
    return {"phase": parts[0]["phase"], "batches": batches}

"""Collected batches as plain values and back, so that a checkpoint can hold them (in the run's history, under a key that no row has)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vlrl.types import Group, Prompt, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext

KEY = "__collected_ahead__"
PLAIN = ("ids", "text", "logp", "finish", "loss_mask", "version", "source", "temperature", "rewards", "reward", "signals", "info")


def keep(run: RunContext, batches: Sequence[Any]) -> None:
    """Write batches into `run.history`. Raises ValueError or TypeError for rollouts that are more than plain values and their group's prompt."""
    run.history.pop(KEY, None)
    run.history[KEY] = {"phase": run.phase, "batches": [_batch(batch) for batch in batches]}


def _batch(batch: Any) -> dict[str, Any]:
    trained = {id(group): index for index, group in enumerate(batch.groups)}
    everything = [*batch.groups, *(group for group in batch.sampled if id(group) not in trained)]
    place = {id(group): index for index, group in enumerate(everything)}
    values = {
        "step": batch.step, "scored": batch.scored, "errors": batch.errors, "counts": batch.counts, "trained": len(batch.groups),
        "sampled": [place[id(group)] for group in batch.sampled], "groups": [_group(group) for group in everything],
    }  # fmt: skip
    return json.loads(json.dumps(values))


def _group(group: Group) -> dict[str, Any]:
    for rollout in group:
        if rollout.prompt.key != group.prompt.key or rollout.prompt.train is not None or rollout.top_logprobs:
            raise ValueError(f"row {group.row.id!r}: a rollout has a prompt of its own, or top log-probs")
    rollouts = [{name: getattr(rollout, name) for name in PLAIN} for rollout in group]
    return {"row": group.row.id, "prompt": group.prompt.key, "id": group.id, "info": group.info, "rollouts": rollouts}


def restore(run: RunContext, make: Any) -> list[Any]:
    """The batches kept for the steps that follow, made by `make(step, groups, ...)`; what cannot be rebuilt is sampled anew, with a warning."""
    kept = run.history.pop(KEY, None)
    if not kept or kept["phase"] != run.phase or not kept["batches"]:
        return []
    rows = {row.id: row for source in run.rows.values() for row in source}
    prompts: dict[str, Prompt] = {}
    out = []
    for values in kept["batches"]:
        groups = []
        for saved in values["groups"]:
            prompt = prompts.get(saved["row"]) or run.prompt_template(rows[saved["row"]])
            if prompt.key != saved["prompt"]:
                run.warn(f"resume: the prompt of row {saved['row']!r} is not what it was; {len(kept['batches'])} batches are sampled anew")
                return []
            prompts[saved["row"]] = prompt
            spaces = tuple(run.policy.spaces(prompt))
            rollouts = [Rollout(prompt=prompt, spaces=spaces, **rollout) for rollout in saved["rollouts"]]
            groups.append(Group(prompt=prompt, rollouts=rollouts, id=saved["id"], info=saved["info"]))
        sampled = [groups[place] for place in values["sampled"]]
        out.append(make(values["step"], groups[: values["trained"]], sampled, values["counts"], values["scored"], values["errors"]))
    return out

"""Groups without contrast make room for older ones that had some."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vlrl.registry import ConfigError, register
from vlrl.stages import ReplayBuffer
from vlrl.types import Group, Rollout, Row

if TYPE_CHECKING:
    from vlrl.context import RunContext

_KEPT = ("ids", "text", "logp", "finish", "loss_mask", "version", "source", "temperature", "rewards", "reward")


def mean_size(group: Group) -> float:
    """mean_i |A_i| with A = (r - mean) / std, in [0, 1]; 0 where all rewards are equal."""
    mean = sum(group.rewards) / len(group) if len(group) else 0.0
    std = (sum((r - mean) ** 2 for r in group.rewards) / len(group)) ** 0.5 if len(group) else 0.0
    return sum(abs(r - mean) for r in group.rewards) / len(group) / std if std > 1e-9 else 0.0


@register("skywork_r1v2")
@dataclass(frozen=True)
class SkyworkR1v2(ReplayBuffer):
    """Fresh groups with |A| > 0 are kept and stored; each other one is replaced by a stored group, drawn without replacement with p ~ mean |A|.

    Paper: Skywork R1V2, arXiv:2504.16656 (selective sample buffer: past samples of non-zero advantage, drawn by |advantage|).
    Deviates: whole groups are drawn, and their rewards normalised again; a group is used `uses` times at most and forgotten after `size` newer
    ones (both ours). Stored rollouts keep the log-probs that they were sampled with: weight `tis` corrects for their age, and the log's `engine/*`
    counts them too. Edge: an empty buffer leaves a group without contrast as it is. Each rank has a buffer of its own.
    State: the stored rollouts by row and the number of draws, of the first rank; rows that are no longer in the data are forgotten.
    """

    size: int = 256
    uses: int = 2
    stored: list[dict[str, Any]] = field(init=False, default_factory=list, repr=False, compare=False)
    memory: dict[str, Any] = field(init=False, default_factory=lambda: {"draws": 0, "waiting": []}, repr=False, compare=False)
    run: Any = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.size < 1 or self.uses < 1:
            raise ValueError(f"size={self.size} and uses={self.uses} must be at least 1")

    def check(self, run: RunContext) -> None:
        if not any(weight.name in ("tis", "icepop") for weight in run.objective.token_weights.values()):
            raise ConfigError("replay selective_buffer trains on old samples: add weights: {age: {name: tis}}, which corrects for their age")

    def setup(self, run: RunContext) -> None:
        object.__setattr__(self, "run", run)

    def wake(self) -> None:
        """Make the prompts of a checkpoint's groups again, from the rows."""
        wanted = {item["row"] for item in self.memory["waiting"]}
        if wanted:
            rows = {row.id: row for source in self.run.rows.values() for row in source if row.id in wanted}
            self.stored[:] = [self.unpacked(item, rows, self.run) for item in self.memory["waiting"] if item["row"] in rows]
            self.memory["waiting"] = []

    def unpacked(self, item: Mapping[str, Any], rows: Mapping[str, Row], run: RunContext) -> dict[str, Any]:
        """A stored group of a checkpoint, with its prompt."""
        prompt = run.prompt_template(rows[item["row"]])
        spaces = tuple(run.policy.spaces(prompt))
        rollouts = [Rollout(prompt, spaces=spaces, **deepcopy(values)) for values in item["rollouts"]]
        return {"group": Group(prompt, rollouts, item["id"]), "weight": item["weight"], "left": item["left"]}

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        self.wake()
        out, fresh = [], [(group, mean_size(group)) for group in groups]
        taken: set[int] = set()
        for group, size in fresh:
            out.append(group if size > 0 else self.draw(taken) or group)
        self.stored[:] = [item for item in self.stored if item["left"] > 0]
        self.stored.extend({"group": group, "weight": size, "left": self.uses} for group, size in fresh if size > 0)
        del self.stored[: -self.size]
        return out

    def draw(self, taken: set[int]) -> Group | None:
        """A stored group that this step has not used yet, as a new one; None if there is none."""
        open_items = [i for i, item in enumerate(self.stored) if i not in taken and item["left"] > 0]
        if not open_items:
            return None
        rng = random.Random(f"{self.run.seed if self.run else 0}/selective_buffer/{self.memory['draws']}")
        self.memory["draws"] += 1
        index = rng.choices(open_items, [self.stored[i]["weight"] for i in open_items])[0]
        taken.add(index)
        item = self.stored[index]
        item["left"] -= 1
        group: Group = item["group"]
        rollouts = [replace(r, advantage=0.0, advantages=[], signals={}, info=dict(r.info)) for r in group]
        return Group(group.prompt, rollouts, f"{group.id}/again{self.uses - item['left']}", dict(group.info))

    def state_dict(self) -> dict[str, Any]:
        packed = [
            {
                "row": item["group"].row.id, "id": item["group"].id, "weight": item["weight"], "left": item["left"],
                "rollouts": [{name: deepcopy(getattr(r, name)) for name in _KEPT} for r in item["group"]],
            }
            for item in self.stored
        ]  # fmt: skip
        return {"stored": [*self.memory["waiting"], *packed], "draws": self.memory["draws"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stored.clear()
        self.memory.update(draws=state["draws"], waiting=deepcopy(state["stored"]))

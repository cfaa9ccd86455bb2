"""The path of the weights during a run: how straight it is, and where it would lead.

Paper: On the Linearity of LLMs' RLVR Training, arXiv:2601.04537; formulas and filters as in its released code (weight_linearity.py,
weight_extrapolation.py). Tensors are read one at a time, so the memory needed is that of the largest, once per checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from vlrl.registry import ConfigError
from vlrl.trainer import checkpoint

LEAST_CHANGE = 1e-4  # weights that move less over all checkpoints are left out, as in the released code
LEAST_VALUES = 4  # as are those that take fewer values: a step in bfloat16 is no line


@dataclass(frozen=True)
class Checkpoint:
    """A model folder at a step: which file holds which tensor."""

    folder: Path
    step: int
    files: dict[str, Path]

    def tensor(self, name: str) -> torch.Tensor:
        with safe_open(self.files[name], framework="pt") as file:
            return file.get_tensor(name)


def checkpoints(places: Sequence[Path]) -> list[Checkpoint]:
    """Those of runs (all that a run has kept) and of folders, by step. Raises ConfigError for what is neither, and for one step twice."""
    found = [_open(folder) for place in places for folder in (checkpoint.saved(place) or [place])]
    found.sort(key=lambda c: c.step)
    for one, two in zip(found, found[1:]):
        if one.step == two.step:
            raise ConfigError(f"token_weights: {str(one.folder)!r} and {str(two.folder)!r} are both of step {one.step}; give checkpoints of one run")
        if one.files.keys() != two.files.keys():
            odd = sorted(one.files.keys() ^ two.files.keys())[0]
            raise ConfigError(f"token_weights: only one of {str(one.folder)!r} and {str(two.folder)!r} has {odd!r}; give checkpoints of one model")
    return found


def _open(folder: Path) -> Checkpoint:
    files = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            files.update(dict.fromkeys(file.keys(), path))
    if not files:
        raise ConfigError(f"token_weights: no *.safetensors in {str(folder)!r}; give the folder of a run, or of one of its checkpoints")
    if not (folder / "trainer" / "state.json").is_file():  # a model as it was before training
        return Checkpoint(folder, 0, files)
    return Checkpoint(folder, checkpoint.read_state(folder)["step"], files)


def linearity(path: Sequence[Checkpoint], least_change: float = LEAST_CHANGE) -> dict[str, tuple[float, int]]:
    """(mean R^2, weights) of every tensor with weights that moved: per weight the squared correlation of its value with the step.

    Weights whose range over `path` is at most `least_change`, or that take fewer than four values, are left out. Raises ConfigError for
    fewer than four checkpoints.
    """
    if len(path) < LEAST_VALUES:
        kept = "; keep more with watch.checkpoint_every and watch.keep"
        raise ConfigError(f"token_weights: {len(path)} checkpoints, a line is judged by {LEAST_VALUES} or more{kept}")
    steps = torch.tensor([c.step for c in path], dtype=torch.float64)
    steps = (steps - steps.mean()) / (steps - steps.mean()).norm()
    out = {}
    for name in path[0].files:
        squares = torch.cat([_squared_correlation(steps, part, least_change) for part in _parts(path, name)])
        if len(squares):
            out[name] = (squares.mean().item(), len(squares))
    return out


def _parts(path: Sequence[Checkpoint], name: str, size: int = 1 << 22) -> list[torch.Tensor]:
    """(checkpoints, weights) pieces of a tensor. Integers and the like do not train."""
    values = [c.tensor(name) for c in path]
    if not values[0].is_floating_point():
        return [torch.empty(len(path), 0)]
    return list(torch.stack([v.flatten() for v in values]).split(size, dim=1))


def _squared_correlation(steps: torch.Tensor, values: torch.Tensor, least_change: float) -> torch.Tensor:
    """Of each column with `steps` (centred, of norm 1)."""
    several = (values.sort(dim=0).values.diff(dim=0) != 0).sum(dim=0) + 1 >= LEAST_VALUES
    moved = values.double()[:, several & ((values.amax(0) - values.amin(0)).double() > least_change)]
    moved = moved - moved.mean(dim=0)
    return (steps @ moved).square() / moved.square().sum(dim=0)


def extrapolate(old: Checkpoint, new: Checkpoint, step: int, target: Path) -> int:
    """Write to `target` the model that a straight path would reach at `step`: W = W_old + (step - old) / (new - old) * (W_new - W_old).

    Norms stay those of `new`, as in the released code; types are kept. The trainer's state is not copied: this is a model, not a run to go on
    with. Returns how many tensors were moved. Raises ConfigError unless old < new and the folder is new.
    """
    if target.exists():
        raise ConfigError(f"token_weights: {str(target)!r} exists; name another folder")
    factor = (step - old.step) / (new.step - old.step)
    shutil.copytree(new.folder, target, ignore=shutil.ignore_patterns("*.safetensors", "trainer"))
    moved, by_file = 0, defaultdict(list)
    for name, path in new.files.items():
        by_file[path].append(name)
    for path, names in by_file.items():
        tensors = {}
        for name in names:
            here, start = new.tensor(name), old.tensor(name)
            if here.is_floating_point() and "norm" not in name.lower() and not torch.equal(here, start):
                here, moved = (start.float() + factor * (here.float() - start.float())).to(here.dtype), moved + 1
            tensors[name] = here.contiguous()
        save_file(tensors, target / path.name, metadata={"format": "pt"})
    (target / "extrapolated.json").write_text(
        json.dumps({"old": str(old.folder), "new": str(new.folder), "old_step": old.step, "new_step": new.step, "step": step}), encoding="utf-8"
    )
    return moved

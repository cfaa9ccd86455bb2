"""The path of the weights over a run's checkpoints: its linearity, and extrapolation to later steps.

Paper: On the Linearity of LLMs' RLVR Training, arXiv:2601.04537; formulas and filters as in its released code
(weight_linearity.py, weight_extrapolation.py). Tensors are read one at a time, so memory holds the largest
tensor once per checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlrl.plugins.registry import ConfigError
from vlrl.services.lazy import torch
from vlrl.trainer.checkpoints import checkpoint

MIN_CHANGE = 1e-4  # weights with a smaller range over all checkpoints are left out, as in the released code
# weights with fewer distinct values are left out: single steps in bfloat16 are not linear; also the fewest
# checkpoints
MIN_VALUES = 4


@dataclass(frozen=True)
class Checkpoint:
    """A model folder at a step; `files` gives the file of each tensor."""

    folder: Path
    step: int
    files: dict[str, Path]

    def tensor(self, name: str) -> torch.Tensor:
        """Reads one tensor."""
        from safetensors import safe_open

        with safe_open(self.files[name], framework="pt") as file:
            return file.get_tensor(name)


def checkpoints(places: Sequence[Path]) -> list[Checkpoint]:
    """The checkpoints of runs (all that are kept) and of model folders, sorted by step.

    Raises ConfigError for a folder that is neither, for two checkpoints of one step, and for checkpoints of
    different models.
    """
    found = [_open(folder) for place in places for folder in (checkpoint.saved(place) or [place])]
    found.sort(key=lambda c: c.step)
    for one, two in zip(found, found[1:]):
        if one.step == two.step:
            raise ConfigError(
                f"weights: {str(one.folder)!r} and {str(two.folder)!r} are both of step {one.step}; give "
                "checkpoints of one run"
            )
        if one.files.keys() != two.files.keys():
            extra = sorted(one.files.keys() ^ two.files.keys())[0]
            raise ConfigError(
                f"weights: only one of {str(one.folder)!r} and {str(two.folder)!r} has {extra!r}; give "
                "checkpoints of one model"
            )
    return found


def _open(folder: Path) -> Checkpoint:
    from safetensors import safe_open

    files = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            files.update(dict.fromkeys(file.keys(), path))
    if not files:
        raise ConfigError(
            f"weights: no *.safetensors in {str(folder)!r}; give the folder of a run, or of one of its "
            "checkpoints"
        )
    if not (folder / "trainer" / "state.json").is_file():  # a model before training
        return Checkpoint(folder, 0, files)
    return Checkpoint(folder, checkpoint.read_state(folder)["step"], files)


def linearity(path: Sequence[Checkpoint], min_change: float = MIN_CHANGE) -> dict[str, tuple[float, int]]:
    """(mean R^2, number of weights) per tensor: R^2 is a weight's squared correlation with the step.

    Weights whose range over `path` is at most `min_change`, or that take fewer than four values, are left
    out, and so are tensors without other weights. Raises ConfigError for fewer than four checkpoints.
    """
    if len(path) < MIN_VALUES:
        fix = "keep more with watch.checkpoint_every and watch.keep"
        raise ConfigError(f"weights: {len(path)} checkpoints; linearity needs at least {MIN_VALUES}; {fix}")
    steps = torch.tensor([c.step for c in path], dtype=torch.float64)
    steps = (steps - steps.mean()) / (steps - steps.mean()).norm()
    out = {}
    for name in path[0].files:
        squares = torch.cat([_squared_correlation(steps, part, min_change) for part in _parts(path, name)])
        if len(squares):
            out[name] = (squares.mean().item(), len(squares))
    return out


def _parts(path: Sequence[Checkpoint], name: str, size: int = 1 << 22) -> list[torch.Tensor]:
    """A tensor in pieces of shape (checkpoints, weights); an empty piece for a tensor of integers, which is
    not trained."""
    values = [c.tensor(name) for c in path]
    if not values[0].is_floating_point():
        return [torch.empty(len(path), 0)]
    return list(torch.stack([v.flatten() for v in values]).split(size, dim=1))


def _squared_correlation(steps: torch.Tensor, values: torch.Tensor, min_change: float) -> torch.Tensor:
    """The squared correlation of each remaining column of `values` with `steps`, which is centred and has
    norm 1."""
    enough_values = (values.sort(dim=0).values.diff(dim=0) != 0).sum(dim=0) + 1 >= MIN_VALUES
    moved = values.double()[:, enough_values & ((values.amax(0) - values.amin(0)).double() > min_change)]
    moved = moved - moved.mean(dim=0)
    return (steps @ moved).square() / moved.square().sum(dim=0)


def extrapolate(old: Checkpoint, new: Checkpoint, step: int, target: Path) -> int:
    """Writes the linear extrapolation of two checkpoints to `step`: W = W_old + (step - old) / (new - old) *
    (W_new - W_old).

    Norm weights stay those of `new`, as in the released code; data types are kept. The trainer's state is not
    copied: the result is a model that can be evaluated, not a run that can be resumed. Returns the number of
    tensors that changed. Raises ConfigError if `target` exists.
    """
    if target.exists():
        raise ConfigError(f"weights: {str(target)!r} exists; name another folder")
    from safetensors.torch import save_file

    factor = (step - old.step) / (new.step - old.step)
    shutil.copytree(new.folder, target, ignore=shutil.ignore_patterns("*.safetensors", "trainer"))
    moved = 0
    by_file: dict[Path, list[str]] = defaultdict(list)
    for name, path in new.files.items():
        by_file[path].append(name)
    for path, names in by_file.items():
        tensors = {}
        for name in names:
            end, start = new.tensor(name), old.tensor(name)
            if end.is_floating_point() and "norm" not in name.lower() and not torch.equal(end, start):
                end, moved = (start.float() + factor * (end.float() - start.float())).to(end.dtype), moved + 1
            tensors[name] = end.contiguous()
        save_file(tensors, target / path.name, metadata={"format": "pt"})
    (target / "extrapolated.json").write_text(
        json.dumps(
            {
                "old": str(old.folder),
                "new": str(new.folder),
                "old_step": old.step,
                "new_step": new.step,
                "step": step,
            }
        ),
        encoding="utf-8",
    )
    return moved

"""Argument checks that the modules of this folder share: shapes, modes and masks. Every failure is a
ValueError that names the argument.

Shape legend: B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from vlrl.services.lazy import Tensor, torch

Value = TypeVar("Value")


def choose(argument: str, value: str, table: Mapping[str, Value]) -> Value:
    """The entry of `table` under `value`. Raises ValueError with the known names."""
    if value not in table:
        raise ValueError(f"{argument}={value!r} is not known; choose one of {', '.join(map(repr, table))}")
    return table[value]


def check_choice(argument: str, value: str, known: Iterable[str]) -> None:
    """Raise ValueError unless `value` is one of `known`."""
    choose(argument, value, dict.fromkeys(known))


def check_shapes(dims: str, **tensors: Tensor) -> None:
    """Raise ValueError unless all tensors have one common shape with as many dimensions as `dims` has
    letters."""
    (first, reference), *others = tensors.items()
    if reference.dim() != len(dims):
        raise ValueError(f"{first} has shape {tuple(reference.shape)}; it must be {shape_name(dims)}")
    for name, tensor in others:
        if tensor.shape != reference.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, {first} {tuple(reference.shape)}; both must be "
                f"{shape_name(dims)}"
            )


def shape_name(dims: str) -> str:
    """ "BT" as "(B, T)"."""
    return f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"


def check_groups(group_B: Tensor) -> None:
    """Raise ValueError unless `group_B` is a vector of integers."""
    check_shapes("B", group_B=group_B)
    if group_B.is_floating_point() or group_B.dtype == torch.bool:
        raise ValueError(
            f"group_B has dtype {group_B.dtype}; it must hold integer group ids, for instance "
            "torch.tensor([0, 0, 1, 1])"
        )


def kept_tokens(mask_BT: Tensor | None, like_BT: Tensor, name: str) -> Tensor:
    """(B, T) bool: where the mask is above 0; everywhere without a mask. `name` is that of `like_BT`, for the
    error message."""
    if mask_BT is None:
        return torch.ones_like(like_BT, dtype=torch.bool)
    check_shapes("BT", **{name: like_BT, "mask_BT": mask_BT})
    return mask_BT > 0


def per_token(values: Tensor, like_BT: Tensor, argument: str) -> Tensor:
    """(B, T) from (B, T), or from (B,) with one number per sequence."""
    wide = (
        values[:, None].expand(-1, like_BT.shape[1])
        if values.dim() == 1 and len(values) == like_BT.shape[0]
        else values
    )
    if wide.shape != like_BT.shape:
        raise ValueError(
            f"{argument} has shape {tuple(values.shape)}; it must be (B, T) = {tuple(like_BT.shape)}, or "
            "(B,): one number per sequence"
        )
    return wide


def lengths(kept_BT: Tensor, dtype: torch.dtype) -> Tensor:
    """(B,): tokens of each sequence that the mask keeps, at least 1."""
    return kept_BT.to(dtype).sum(-1).clamp(min=1)

"""The optimizer's state as whole tensors by name of weight: the same on disk whatever engine wrote it, and
however many ranks.

Every function here is a collective where states are spread: all ranks call it, or none does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vlrl.plugins.registry import ConfigError
from vlrl.policy.sharding import is_main, is_zero3
from vlrl.services.lazy import Tensor, nn, torch

if TYPE_CHECKING:
    from vlrl.trainer.session import Session

State = dict[
    str, dict[str, Any]
]  # name of the weight -> {"exp_avg": tensor of its shape, ..., "step": tensor of one number}


def read(session: Session) -> State:
    """The state of every trained weight, on the CPU of the main process (elsewhere nothing). Empty before the
    first update."""
    zero = _zero_optimizer(session)
    named = {name: p for name, p in session.policy.params.net.named_parameters() if p.requires_grad}
    if zero is not None:
        return _read_zero(zero, named)
    states, out = session.optimizer.state, {}
    for name, parameter in named.items():
        whole = {key: _whole(value) for key, value in states.get(parameter, {}).items()}
        if is_main() and whole:
            out[name] = whole
    return out


def write(session: Session, state: Mapping[str, Mapping[str, Any]]) -> None:
    """Undo `read`, on all ranks. Raises ConfigError if the state is of other weights than those that are
    trained."""
    named = {name: p for name, p in session.policy.params.net.named_parameters() if p.requires_grad}
    _check(named, state)
    zero = _zero_optimizer(session)
    if zero is not None:
        _write_zero(zero, named, state, is_zero3(session.policy.params.wrapped))
        return
    place = {
        id(p): i for i, p in enumerate(p for group in session.optimizer.param_groups for p in group["params"])
    }
    plain = {
        place[id(named[name])]: {key: _spread(value, named[name]) for key, value in values.items()}
        for name, values in state.items()
    }
    optimizer = getattr(session.optimizer, "optimizer", session.optimizer)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": plain})


def _check(named: Mapping[str, nn.Parameter], state: Mapping[str, Mapping[str, Any]]) -> None:
    advice = "resume with the run's own config.yaml"
    odd = sorted(set(state) ^ set(named)) if state else []
    if odd:
        raise ConfigError(
            "resume: the checkpoint's optimizer trained other weights than `tune` does now, for instance "
            f"{odd[0]!r}; {advice}"
        )
    for name, values in state.items():
        shape = tuple(
            getattr(named[name], "ds_shape", named[name].shape)
        )  # under ZeRO-3 the weight itself is empty
        if "exp_avg" in values and tuple(values["exp_avg"].shape) != shape:
            raise ConfigError(
                f"resume: {name!r} has the shape {shape}, in the checkpoint "
                f"{tuple(values['exp_avg'].shape)}; {advice}"
            )


def _zero_optimizer(session: Session) -> Any:
    """DeepSpeed's optimizer, where it spreads states."""
    wrapped: Any = session.policy.params.wrapped
    return wrapped.optimizer if hasattr(wrapped, "zero_optimization_partition_weights") else None


def _whole(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().cpu()


def _spread(value: Any, like: Any) -> Any:
    """A whole tensor as `like` is laid out (FSDP2's DTensor); others as they are."""
    if not hasattr(like, "device_mesh") or not isinstance(value, Tensor) or value.shape != like.shape:
        return value.clone() if isinstance(value, Tensor) else value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)


# --- DeepSpeed: one flat tensor per rank (and group of weights), of which each weight has a fragment --------


def _flats(zero: Any) -> list[Tensor]:
    return (
        zero.fp32_partitioned_groups_flat
        if hasattr(zero, "fp32_partitioned_groups_flat")
        else zero.single_partition_of_fp32_groups
    )


def _read_zero(zero: Any, named: Mapping[str, nn.Parameter]) -> State:
    from deepspeed.utils import safe_get_full_optimizer_state

    first = zero.optimizer.state.get(_flats(zero)[0], {})
    _link(zero)
    keys = [key for key, value in first.items() if isinstance(value, Tensor) and value.dim()]
    out: State = {}
    for name, parameter in named.items() if first else ():
        whole = {key: safe_get_full_optimizer_state(parameter, key) for key in keys}
        if is_main():
            out[name] = {key: value.cpu().clone() for key, value in whole.items()} | {
                "step": torch.as_tensor(float(first["step"]))
            }
    return out


def _write_zero(
    zero: Any, named: Mapping[str, Any], state: Mapping[str, Mapping[str, Any]], spread_weights: bool
) -> None:
    from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

    if not state:
        return
    example = next(iter(state.values()))
    keys = [key for key, value in example.items() if value.dim()]
    for flat in _flats(zero):
        zero.optimizer.state[flat] = {key: torch.zeros_like(flat) for key in keys} | {
            "step": example["step"].clone()
        }
    _link(zero)
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    for name, parameter in named.items():
        for key in keys:
            value = state[name][key]
            if spread_weights:  # padded to a multiple of the ranks; the setter for whole tensors does not pad
                share = parameter.ds_tensor.numel()
                padded = torch.nn.functional.pad(value.flatten(), (0, share * ranks - value.numel()))
                safe_set_local_optimizer_state(parameter, padded.narrow(0, rank * share, share), key)
            else:
                safe_set_full_optimizer_state(parameter, value, key)


def _link(zero: Any) -> None:
    """ZeRO-1 and 2 hold each weight's fragments of the states as views, made once at the first step: make
    them of the states that are there now."""
    if hasattr(zero, "_lazy_init_hp_params_optimizer_state") and zero.optimizer.state:
        zero._hp_optimizer_states_linked = False
        zero._lazy_init_hp_params_optimizer_state()

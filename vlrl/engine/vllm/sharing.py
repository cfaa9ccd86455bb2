"""One copy of the weights: the trainer's parameters become views of vLLM's tensors, where both are in one
process.

vLLM fuses layers (q, k and v; gate and up) and pads the embedding. Where each of the policy's weights lies is
not computed from names: vLLM loads the model from the policy's own tensors, and the copies that its loaders
make are recorded. A fused tensor holds its parts as blocks of rows, so that a view of a block is an ordinary
weight to the trainer, and an optimizer step in place is at once a step of vLLM's weights.

The idea is Unsloth's (unslothai/unsloth-zoo, `get_vllm_state_dict`, which slices fused tensors by
model-specific rules).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from vlrl.plugins.registry import ConfigError
from vlrl.policy.checkpoint_names import checkpoint_name
from vlrl.services.lazy import Tensor, nn, torch

LOAD_FORMAT = "vlrl_policy"


class SharedWeights:
    """The policy's weights by checkpoint name, and the address of those that are vLLM's own tensors.

    `refused` counts bytes of the others by reason.
    """

    def __init__(self, model: nn.Module) -> None:
        self.weights = dict(base_weights(model))
        self.address: dict[str, int] = {}
        self.refused: Counter[str] = Counter()
        self.copies: dict[str, list[Tensor]] = {}

    def load_into(self, vllm_model: Any) -> None:
        """Load the policy's weights into a vLLM model that was just built, and record where they went."""
        from vlrl.engine.vllm.copy_recorder import CopyRecorder

        with torch.no_grad(), CopyRecorder(self.weights) as recorder:
            vllm_model.load_weights((name, weight.data) for name, weight in self.weights.items())
        self.copies = recorder.copies
        if next(vllm_model.parameters()).device.type == "cpu":
            for module in (
                vllm_model.modules()
            ):  # vLLM would compute from copies in oneDNN's order, and drop the weights
                module.__dict__["_cpu_skip_gemm_dispatch"] = True

    def share(self, vllm_model: Any) -> None:
        """Let the policy's parameters be views of the vLLM model's, which is ready to run. Raises ConfigError
        if none can be."""
        for module in vllm_model.modules():
            if hasattr(module, "cpu_linear"):  # an output layer, packed all the same
                module.cpu_linear = torch.nn.functional.linear
        owned = {p.untyped_storage().data_ptr() for p in vllm_model.parameters()}
        for name, weight in self.weights.items():
            reason = refusal(weight, self.copies.get(name, []), owned)
            if reason:
                self.refused[reason] += weight.nbytes
                continue
            weight.data = self.copies[name][0].view(weight.shape)
            self.address[name] = weight.data_ptr()
        self.copies = {}
        if not self.address:
            raise ConfigError(
                f"engine.share_weights: vLLM can share none of the policy's weights ({self.reasons()}); "
                "set it to false"
            )

    def unshared(self) -> dict[str, Tensor]:
        """The weights that vLLM does not share, or no longer does because the trainer has moved them: they
        must be sent."""
        return {
            name: weight.data
            for name, weight in self.weights.items()
            if self.address.get(name) != weight.data_ptr()  # moved: the trainer gave it new memory
        }

    def reasons(self) -> str:
        """The reasons of `refused`, with MiB."""
        return "; ".join(f"{reason}: {size / 2**20:.1f} MiB" for reason, size in self.refused.most_common())

    @property
    def shared_bytes(self) -> int:
        """Bytes that are held once in place of twice."""
        return sum(
            weight.nbytes
            for name, weight in self.weights.items()
            if self.address.get(name) == weight.data_ptr()
        )


def base_weights(model: nn.Module) -> Any:
    """(checkpoint name, parameter) of a model without tied heads, and without the parameters of adapters."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    released = checkpoint_name(model)
    for name, parameter in model.named_parameters():
        plain = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
        if "lora_" not in name and plain not in tied:
            yield released(plain), parameter


def refusal(weight: Tensor, copies: list[Tensor], owned: set[int]) -> str:
    """Why a weight that was copied into `copies` cannot be a view of it; "" if it can. `owned` are the
    addresses of vLLM's storages."""
    if weight.untyped_storage().nbytes() != weight.nbytes:
        return "the trainer keeps it in a larger buffer"
    if len(copies) != 1 or copies[0].numel() != weight.numel():
        return "vLLM holds it in several pieces, or not at all"
    (copy,) = copies
    if copy.dtype != weight.dtype or copy.device != weight.device:
        return (
            f"the trainer holds {weight.dtype} on {weight.device.type}, vLLM {copy.dtype} on "
            f"{copy.device.type}"
        )
    if copy.untyped_storage().data_ptr() not in owned or copy.is_inference():
        return "vLLM computes from a tensor made of it"
    if (copy.shape != weight.shape and not copy.is_contiguous()) or not torch.equal(
        copy.reshape(weight.shape), weight
    ):
        return "vLLM holds it in another layout"
    return ""


def register_loader(shared: SharedWeights) -> None:
    """Register the load format `LOAD_FORMAT` with vLLM: weights come from the policy's memory, and stay where
    they are loaded."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    class PolicyLoader(BaseModelLoader):
        """Loads from the policy's memory."""

        def download_model(self, model_config: Any) -> None:
            """Nothing to download."""

        def load_weights(self, model: nn.Module, model_config: Any) -> None:
            """Copy the policy's weights into the model."""
            shared.load_into(model)

    register_model_loader(LOAD_FORMAT)(PolicyLoader)

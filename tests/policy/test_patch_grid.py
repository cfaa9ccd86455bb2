"""Places of patches in a learned grid: by hand, as transformers finds them in float32, and the same in the
trainer's and in vLLM's tower."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from samples import groups_of
from torch import Tensor, nn

from benchmarks.true_shapes import picture_prompt
from vlrl.engine.vllm.weights import WeightLoader
from vlrl.methods.core.trainable import Parts
from vlrl.policy import Policy
from vlrl.policy.families.smolvlm import SmolVLM, places
from vlrl.policy.tiny import Tiny
from vlrl.trainer.step.loss_inputs import make_batch


@dataclass(frozen=True, kw_only=True)
class SmolVLM27(SmolVLM):
    """A tiny model with SmolVLM2 2.2B's grid."""

    tiny_grid: ClassVar[tuple[int, int]] = (27, 3)


def policy27(**fields: Any) -> Policy:
    return Policy(SmolVLM27(tiny=Tiny(hidden=128, layers=1, vision_layers=1), **fields))


def mask(height: int, width: int, side: int) -> Tensor:
    present_HW = torch.zeros(side, side, dtype=torch.bool)
    present_HW[:height, :width] = True
    return present_HW


def test_places_by_hand() -> None:
    both = places(torch.stack([mask(2, 3, 4), mask(4, 4, 4)]), 4)
    assert both[0].tolist() == [0, 1, 2, 0, 8, 9, 10, 0, *[0] * 8]
    assert both[1].tolist() == list(range(16))


@pytest.mark.parametrize("side", [26, 27, 32, 70])  # Idefics3, SmolVLM2 2.2B, its smaller sizes, Idefics2
def test_they_are_those_of_transformers_in_float32(side: int) -> None:
    from transformers import SmolVLMVisionConfig
    from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionEmbeddings

    seen: list[Tensor] = []
    embeddings = SmolVLMVisionEmbeddings(
        SmolVLMVisionConfig(hidden_size=4, num_attention_heads=1, image_size=side, patch_size=1)
    )
    embeddings.position_embedding.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    present_BHW = torch.stack([mask(side, side, side), mask(side - 5, 7, side), mask(1, 1, side)])
    embeddings(torch.zeros(3, 3, side, side), present_BHW)
    assert torch.equal(seen[0], places(present_BHW, side))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_trainers_tower_looks_them_up_in_every_type(dtype: str) -> None:
    policy = policy27(dtype=dtype)
    Parts(freeze=("vision", "projector"))(policy)
    seen: list[Tensor] = []
    embeddings = policy.model.model.vision_model.embeddings
    embeddings.position_embedding.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    policy.forward(make_batch(groups_of([picture_prompt((60, 40))]), policy.pad_id))
    assert all(torch.equal(ids, torch.arange(27 * 27).expand(len(ids), -1)) for ids in seen) and seen


class Rounding(nn.Module):
    """Patch embeddings with vLLM's interface whose own positions are wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.num_patches_per_side = 3
        self.position_embedding = nn.Embedding(9, 2)

    def get_position_ids(self, patch_attention_mask: Tensor, tgt_sizes: Tensor | None = None) -> Tensor:
        return torch.full((len(patch_attention_mask), 9), 7)


def test_vllms_worker_looks_them_up() -> None:
    embeddings = Rounding()
    model = nn.Sequential(embeddings)
    worker = WeightLoader()
    worker.model_runner = SimpleNamespace(get_model=lambda: model)
    present_BHW = torch.ones(1, 3, 3, dtype=torch.bool)
    worker.vlrl_prepare([], SmolVLM.engine_patch)
    assert embeddings.get_position_ids(present_BHW).tolist() == [list(range(9))]
    assert embeddings.get_position_ids(present_BHW.flatten(1), torch.tensor([[3, 3]])).tolist() == [
        [7] * 9
    ]  # sizes: left to vLLM


@pytest.mark.vllm
@pytest.mark.slow
def test_vllm_and_the_trainer_agree_on_pictures() -> None:
    pytest.importorskip("vllm")
    from benchmarks.vllm_shapes import check_policy

    done = check_policy(policy27(), "smolvlm")
    assert done.unmoved == {} and done.worst < 1e-4

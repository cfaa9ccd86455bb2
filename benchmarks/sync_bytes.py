"""How much a sync sends to vLLM: every weight, and those that can have changed, at the shapes of releases,
without their memory: `python -m benchmarks.sync_bytes [MODEL ...]`.

A model is a config of `configs/models`. Bytes are those of the tensors that `named_weights` yields, in the
types in which the trainer holds them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
import typer

from benchmarks import cli
from benchmarks.true_shapes import family_of
from vlrl.engine.vllm.changes import SentWeights
from vlrl.engine.vllm.weights import named_weights
from vlrl.methods.core.trainable import LoRA, Parts
from vlrl.plan.releases import meta_model
from vlrl.plan.shape import MetaPolicy, model_config
from vlrl.policy import adapters
from vlrl.policy.params import Params

MODELS = ("qwen2_5_vl_3b", "qwen3_vl_30b_a3b", "qwen3_5_35b_a3b")
TRAINED: dict[str, Any] = {
    "all but the tower": Parts(freeze=("vision", "projector")),
    "LoRA on every linear layer of the language model": LoRA(r=16),
    "LoRA on attention": LoRA(r=16, targets="q_proj|k_proj|v_proj|o_proj|out_proj|in_proj_.*"),
    "LoRA on q and v": LoRA(r=16, targets="q_proj|v_proj"),
}


def sizes(model: str, trainable: Any) -> tuple[float, float]:
    """GiB of a whole sync and of one after an update."""
    family = replace(family_of(model), dtype="bfloat16")
    made = meta_model(model_config(family))
    adapters.cast_weights(made, family.compute_dtype)
    policy = MetaPolicy(Params(made, family, torch.device("meta"), None))
    trainable(policy)
    policy.params.upcast_trainable()
    has = SentWeights()
    has.sent(policy.model)
    due = has.due(policy.model)
    whole, part = (
        sum(weight.nbytes for _, weight in named_weights(policy.model, only)) for only in (None, due)
    )
    return whole / 2**30, part / 2**30


def main(
    models: Annotated[list[str] | None, typer.Argument(help="Configs of configs/models.")] = None,
) -> None:
    """Print a table."""
    cli.known("model", models or (), cli.configs("models"))
    print("| model | trained | all, GiB | sent, GiB | share |\n| --- | --- | --- | --- | --- |")
    for model in models or MODELS:
        for name, trainable in TRAINED.items():
            whole, part = sizes(model, trainable)
            print(f"| `{model}` | {name} | {whole:.2f} | {part:.2f} | {part / whole:.0%} |", flush=True)


if __name__ == "__main__":
    cli.run(main, __doc__)

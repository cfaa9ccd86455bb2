"""vLLM at the true shape of a release with few layers: whether it loads the model, and whether new weights of the policy reach all of its tensors."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vlrl.bench.true_shapes import family_of, picture_prompt, random_release
from vlrl.policy import Policy
from vlrl.types import Group, Request, Rollout, Sampling

SHIFT = 0.01  # standard deviation of what is added to every weight between the two comparisons


@dataclass(frozen=True)
class VLLMChecked:
    """The result of one model. `tensors` are vLLM's parameters, `unmoved` those of which a row is as it was after new weights were sent (name and
    share of rows); `loaded` and `updated` are the largest differences of the log-probs of vLLM's samples to the packed training forward, before and
    after."""

    model: str
    parameters: int
    tensors: int
    unmoved: dict[str, float]
    loaded: float
    updated: float
    seconds: float


def check_vllm(model: str, pixels: tuple[int, int] = (224, 168), layers: int = 2) -> VLLMChecked:
    """Start vLLM with a random release's shape and sample; add noise to every weight of the policy, send them, and sample again."""
    from vlrl.engine.vllm.inprocess import VLLM

    begun = time.process_time()
    policy = random_release(family_of(model), layers, layers)
    engine = VLLM(max_model_len=4096, options={"max_num_seqs": 4, "max_num_batched_tokens": 4096}).attach(policy)
    try:
        loaded = difference(policy, engine, pixels)
        before = fingerprints(engine)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.add_((SHIFT * torch.randn(parameter.shape, generator=generator)).to(parameter.dtype))
        policy.version += 1
        engine.sync(policy)
        after = fingerprints(engine)
        unmoved = {name: float((row == after[name]).double().mean()) for name, row in before.items() if bool((row == after[name]).any())}
        updated = difference(policy, engine, pixels)
    finally:
        engine.close()
    return VLLMChecked(
        model=model,
        parameters=sum(p.numel() for p in policy.model.parameters()),
        tensors=len(before),
        unmoved=unmoved,
        loaded=loaded,
        updated=updated,
        seconds=time.process_time() - begun,
    )


def difference(policy: Policy, engine: Any, pixels: tuple[int, int]) -> float:
    """The largest difference of log-probs: vLLM's samples of a prompt with text alone and of one with a picture, and the packed forward on them."""
    from vlrl.trainer.loss_inputs import make_batch

    shown = [None, pixels] if policy.family.is_multimodal else [None]
    requests = [Request(picture_prompt(size, f"v{policy.version}"), Sampling(max_tokens=6), n=2, seed=i) for i, size in enumerate(shown)]
    groups: dict[int, Group] = {}
    for completion in engine.generate(requests):
        request = completion.request
        rollout = Rollout(request.prompt, list(completion.ids), logp=list(completion.logp))
        groups.setdefault(requests.index(request), Group(request.prompt, [])).rollouts.append(rollout)
    worst = 0.0
    for group in groups.values():
        with torch.no_grad():
            logp_BT = policy.forward(make_batch([group], policy.pad_id))["logp"]
        worst = max(worst, *(float((row[: len(r)] - torch.tensor(r.logp)).abs().max()) for row, r in zip(logp_BT, group, strict=True)))
    return worst


def fingerprints(engine: Any) -> dict[str, Tensor]:
    """The sums of the rows of each of vLLM's parameters; vectors as they are."""
    (rows,) = engine.core.collective_rpc(row_sums)
    return rows


def row_sums(worker: Any) -> dict[str, Tensor]:
    """`fingerprints`, in vLLM's worker."""
    found = {name: p.detach() for name, p in worker.model_runner.get_model().named_parameters()}
    return {name: p.flatten(1).sum(-1, dtype=torch.float64) if p.dim() > 1 else p.double() for name, p in found.items()}

"""vLLM at the true shape of a release with few layers: whether it loads the model, and whether new weights of
the policy reach all of its tensors."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.true_shapes import family_of, picture_prompt, random_release, variant
from vlrl.policy import Policy
from vlrl.types import Group, Request, Rollout, Sampling

SHIFT = 0.01  # standard deviation of what is added to every weight between the two comparisons
# of a weight at a time, because noise and sums in float64 take as much memory as the rows, or twice
ROWS = 16_384
Sizes = tuple[tuple[int, int], ...]  # width and height of each picture of a prompt
PICTURES: tuple[Sizes, ...] = ((), ((224, 168),), ((150, 450),), ((40, 30), (224, 168)))


@dataclass(frozen=True)
class VLLMChecked:
    """The result of one model. `tensors` are vLLM's parameters, `unmoved` those of which a row is as it was
    after new weights were sent (name and share of rows); `loaded` and `updated` are the largest differences
    of the log-probs of vLLM's samples to the packed training forward, before and after, by the pictures of
    the prompt."""

    model: str
    parameters: int
    tensors: int
    unmoved: dict[str, float]
    loaded: dict[str, float]
    updated: dict[str, float]
    seconds: float

    @property
    def worst(self) -> float:
        """The largest difference."""
        return max(*self.loaded.values(), *self.updated.values())


def check_vllm(model: str, layers: int = 2) -> VLLMChecked:
    """Start vLLM with a random release's shape and sample; add noise to every weight of the policy, send
    them, and sample again.

    On a CPU, images of Gemma 3 are attended to causally on both sides, as vLLM's CPU build does (its engine
    refuses them otherwise).
    """
    family = family_of(model)
    if family.bidirectional_images and not torch.cuda.is_available():
        family = variant(family, bidirectional_images=False)
    return check_policy(random_release(family, layers, layers), model)


def check_policy(policy: Policy, name: str) -> VLLMChecked:
    """`check_vllm` of a policy, whose weights change."""
    from vlrl.engine.vllm.inprocess import VLLM

    begun = time.process_time()
    table = policy.model.get_input_embeddings()
    scale = float(
        getattr(table, "scalar_embed_scale", 1.0)
    )  # Gemma's: with random tied embeddings times 50, the last token gets all the mass
    with torch.no_grad():
        table.weight.div_(scale)
    options = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 8192,
        "skip_mm_profiling": True,
    }  # no trial run with the largest picture: gigabytes
    engine = VLLM(max_model_len=8192, options=options).attach(policy)
    try:
        loaded = differences(policy, engine)
        before = fingerprints(engine)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in policy.model.parameters():
                for part in parameter.split(ROWS):
                    part.add_(
                        torch.randn(part.shape, generator=generator),
                        alpha=SHIFT / scale if parameter is table.weight else SHIFT,
                    )
        policy.version += 1
        engine.sync(policy)
        after = fingerprints(engine)
        unmoved = {
            name: float((row == after[name]).double().mean())
            for name, row in before.items()
            if bool((row == after[name]).any())
        }
        updated = differences(policy, engine)
    finally:
        engine.close()
    return VLLMChecked(
        model=name,
        parameters=sum(p.numel() for p in policy.model.parameters()),
        tensors=len(before),
        unmoved=unmoved,
        loaded=loaded,
        updated=updated,
        seconds=time.process_time() - begun,
    )


def differences(policy: Policy, engine: Any) -> dict[str, float]:
    """The largest difference of log-probs between vLLM's samples and the packed forward on them, by the
    pictures of the prompt (`PICTURES`).

    Raises RuntimeError if vLLM's prompts have more or fewer tokens than ours, and if one token has all the
    mass everywhere: nothing is compared then.
    """
    from vlrl.trainer.step.loss_inputs import make_batch

    most = (
        0 if not policy.family.is_multimodal else 1 if policy.family.multi_image_sensitive else 2
    )  # vLLM shows such a family's pairs differently
    shown = [sizes for sizes in PICTURES if len(sizes) <= most]
    prompts = [picture_prompt(*sizes, name=f"v{policy.version}") for sizes in shown]
    requests = [Request(prompt, Sampling(max_tokens=6), n=2, seed=i) for i, prompt in enumerate(prompts)]
    counted = engine.counters["prompt_tokens"]
    groups = [Group(prompt, []) for prompt in prompts]
    for completion in engine.generate(requests):
        request = completion.request
        groups[requests.index(request)].rollouts.append(
            Rollout(request.prompt, list(completion.ids), logp=list(completion.logp))
        )
    theirs, ours = (
        engine.counters["prompt_tokens"] - counted,
        sum(len(policy.encode(prompt)) for prompt in prompts),
    )
    if theirs != ours:
        raise RuntimeError(
            f"vLLM's prompts have {theirs} tokens, the trainer's {ours}: they expand pictures into other "
            "tokens"
        )
    if max(-logp for group in groups for rollout in group for logp in rollout.logp) < 0.01:
        raise RuntimeError(
            "every sampled token has a probability above 0.99: differences of log-probs would say nothing"
        )
    found: dict[str, float] = {}
    for sizes, group in zip(shown, groups, strict=True):
        with torch.no_grad():
            logp_BT = policy.forward(make_batch([group], policy.pad_id))["logp"]
        apart = max(
            float((row[: len(r)] - torch.tensor(r.logp)).abs().max())
            for row, r in zip(logp_BT, group, strict=True)
        )
        found[" and ".join(f"{width} x {height}" for width, height in sizes) or "text"] = apart
    return found


def fingerprints(engine: Any) -> dict[str, Tensor]:
    """The sums of the rows of each of vLLM's parameters; vectors as they are."""
    (rows,) = engine.core.collective_rpc(row_sums)
    return rows


def row_sums(worker: Any) -> dict[str, Tensor]:
    """`fingerprints`, in vLLM's worker. Rows that vLLM adds to the vocabulary, up to a multiple of 64, hold
    no weights and are left out."""
    model = worker.model_runner.get_model()
    found = {}
    for name, p in model.named_parameters():
        rows = getattr(model.get_submodule(name.rpartition(".")[0]), "org_vocab_size", None)
        weight = p.detach()[:rows]
        parts = weight.split(ROWS) if weight.dim() > 1 else ()
        found[name] = (
            torch.cat([part.flatten(1).sum(-1, dtype=torch.float64) for part in parts])
            if parts
            else weight.double()
        )
    return found

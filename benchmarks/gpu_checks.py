"""What must hold on a CUDA device, each as a figure with a bound: packed against plain, FlexAttention,
bfloat16, vLLM's sleep, CUDA graphs and NCCL weight transfer, QLoRA. Models are random; nothing is downloaded.
`python -m benchmarks.gpu` runs them all, `pytest -m gpu` one test each.

The checks of packing and bfloat16 run on any device, so that their code is tested without a GPU.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.cases import Case, make_groups
from benchmarks.true_shapes import picture_prompt, plain_logp
from vlrl.engine.vllm.inprocess import VLLM
from vlrl.plugins.registry import build, names
from vlrl.policy import Family, Policy
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import Group, Prompt, Request, Rollout, Sampling

SIZES = {
    "hidden": 256,
    "layers": 4,
    "heads": 4,
    "kv_heads": 2,
    "intermediate": 704,
    "rows": 4096,
    "std": 0.08,
}


@dataclass(frozen=True)
class Found:
    """The result of a check: it holds if `figure` is at most `bound`; `text` says what the figure is."""

    figure: float
    bound: float
    text: str

    @property
    def holds(self) -> bool:
        """Whether the figure is within its bound (NaN is not)."""
        return self.figure <= self.bound


class Missing(Exception):
    """What a check needs and this machine lacks."""


def random_policy(name: str = "text", device: str = "cuda", **fields: Any) -> Policy:
    """A random policy of `SIZES`; equal names give equal weights."""
    return Policy(build(Family, {"name": name, "tiny": SIZES} | fields), device=device)


def group_of(prompt: Prompt, lengths: Sequence[int], seed: int = 0) -> Group:
    """Completions of random byte tokens."""
    generator = torch.Generator().manual_seed(seed)
    return Group(
        prompt, [Rollout(prompt, torch.randint(5, 200, (n,), generator=generator).tolist()) for n in lengths]
    )


def largest_difference(policy: Policy, group: Group) -> float:
    """Largest difference of a log-prob between the packed forward pass and plain transformers, one completion
    at a time."""
    with torch.no_grad():
        packed = policy.forward(make_batch([group], policy.pad_id))["logp"]
        rows = [plain_logp(policy, rollout) for rollout in group]
    return max(float((packed[b, : len(row)] - row).abs().max()) for b, row in enumerate(rows))


# --- the policy ---------------------------------------------------------------------------------------------


def packed(device: str = "cuda") -> Found:
    """Packed log-probs of every family against plain transformers, in float32 without TF32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    worst = {}
    for name in names(Family):
        policy = Policy(build(Family, {"name": name, "tiny": {}}), device=device)
        worst[name] = largest_difference(
            policy, group_of(picture_prompt(*[(90, 60)] if policy.family.is_multimodal else ()), (3, 5, 1))
        )
    name = max(worst, key=lambda n: worst[n])
    return Found(worst[name], 1e-4, f"largest difference of a log-prob over {len(worst)} families ({name})")


def bfloat16(device: str = "cuda") -> Found:
    """Error of packed log-probs in bfloat16, relative to that of plain transformers in bfloat16; both against
    float32."""
    exact, half = (random_policy("qwen2_5_vl", device, dtype=dtype) for dtype in ("float32", "bfloat16"))
    group = group_of(picture_prompt((224, 168)), (40, 60, 20))
    with torch.no_grad():
        true = [plain_logp(exact, rollout) for rollout in group]
        ours = half.forward(make_batch([group], half.pad_id))["logp"]
        with half.family.autocast(half.device):
            theirs = [plain_logp(half, rollout) for rollout in group]
    errors = [
        max(float((row[: len(t)].float() - t).abs().max()) for row, t in zip(side, true))
        for side in (ours, theirs)
    ]
    return Found(
        errors[0] / errors[1], 2.0, f"packed error {errors[0]:.1e} / plain error {errors[1]:.1e} in bfloat16"
    )


def flex_attention(device: str = "cuda") -> Found:
    """Log-probs and gradients of compiled FlexAttention against dense masks, on rows of about 4,000
    tokens."""
    if not torch.cuda.is_available():
        raise Missing("a CUDA device: torch has no backward pass of FlexAttention on a CPU")
    group = make_groups(Case(text=1500, mean=200, longest=400, prompts=1), 200)[0]
    results = {}
    for attn in ("sdpa", "flex"):
        policy = random_policy("text", device, attn=attn)
        torch.cuda.reset_peak_memory_stats()
        logp = policy.forward(make_batch([group], policy.pad_id))["logp"]
        logp.sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
        results[attn] = logp.detach(), gradient, torch.cuda.max_memory_allocated() / 2**20
    (dense, dense_gradient, dense_mb), (blocks, gradient, mb) = results["sdpa"], results["flex"]
    relative = float((gradient - dense_gradient).norm() / dense_gradient.norm())
    worst = max(float((blocks - dense).abs().max()), relative)
    return Found(
        worst,
        1e-3,
        (
            f"largest of log-probs' difference and gradients' relative difference; {mb:.0f} MB instead of "
            f"{dense_mb:.0f}"
        ),
    )


def qlora(device: str = "cuda") -> Found:
    """Log-probs over 4-bit weights against a plain model with the same weights dequantised; a step moves the
    adapter alone."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise Missing("bitsandbytes (pip install bitsandbytes)")
    import bitsandbytes as bnb

    from vlrl.methods.core.trainable import LoRA

    with tempfile.TemporaryDirectory() as folder:
        random_policy("text", device).save(folder)
        four = Policy(build(Family, {"name": "text", "model": folder, "quantize": "nf4"}), device=device)
        plain = Policy(build(Family, {"name": "text", "model": folder}), device=device)
    modules = dict(plain.model.named_modules())
    for name, module in four.model.named_modules():
        if isinstance(module, bnb.nn.Linear4bit):
            modules[name].weight.data.copy_(
                bnb.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
            )
    groups = LoRA()(four)
    four.params.upcast_trainable()
    batch = make_batch([group_of(picture_prompt(), (40, 60, 20))], four.pad_id)
    before = {name: p.detach().clone() for name, p in four.model.named_parameters()}
    logp = four.forward(batch)["logp"]
    with torch.no_grad():
        difference = float((logp - plain.forward(batch)["logp"]).abs().max())
    (-logp.sum()).backward()
    torch.optim.AdamW(groups, lr=1e-2).step()
    moved = {name for name, p in four.model.named_parameters() if not torch.equal(before[name], p)}
    strangers = {name for name in moved if "lora_" not in name}
    strange = f", and {', '.join(sorted(strangers)[:3])}" if strangers else ""
    text = (
        f"largest difference of a log-prob to the dequantised model ({difference:.1e}); "
        f"{len(moved) - len(strangers)} adapter matrices moved{strange}"
    )
    return Found(difference if moved and not strangers else float("inf"), 1e-2, text)


# --- vLLM ---------------------------------------------------------------------------------------------------


def requests() -> list[Request]:
    """Greedy requests with and without a picture."""
    prompts = [
        picture_prompt(name="text"),
        picture_prompt((112, 112)),
        picture_prompt((224, 168), name="two"),
    ]
    return [
        Request(prompt=prompt, sampling=Sampling(temperature=0.0, max_tokens=16), n=1, tag=i)
        for i, prompt in enumerate(prompts)
    ]


def sampled(engine: Any) -> list[tuple[list[int], list[float]]]:
    """(ids, log-probs) of the greedy completions, in the order of `requests`."""
    done = {completion.request.tag: completion for completion in engine.generate(requests())}
    return [(list(done[tag].ids), list(done[tag].logp)) for tag in sorted(done)]


def disagreement(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """Largest difference of a log-prob over the tokens before two greedy completions part; infinite if they
    part where one token is clearly likelier (by 1e-2 in log-prob), since rounding does not explain that."""
    worst = 0.0
    for (ids, logp), (other_ids, other) in zip(ours, theirs, strict=True):
        for a, b, p, q in zip(ids, other_ids, logp, other):
            if a != b:
                worst = max(worst, float("inf") if abs(p - q) > 1e-2 else 0.0)
                break
            worst = max(worst, abs(p - q))
    return worst


def need_vllm() -> None:
    """Raises Missing where vLLM or a GPU is missing."""
    if importlib.util.find_spec("vllm") is None:
        raise Missing("vLLM (pip install 'vllm==0.32.*')")
    if not torch.cuda.is_available():
        raise Missing("a CUDA device")


def shake(policy: Policy) -> None:
    """Other weights, as after a step."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator).to(parameter.device))
    policy.version += 1


def vllm_sleep() -> Found:
    """Sleep frees the GPU, waking and new weights give engine `hf`'s samples."""
    need_vllm()
    from vlrl.engine.hf.engine import HF

    policy = random_policy("qwen2_5_vl")
    engine = VLLM(sleep=True, memory=0.3, max_model_len=2048).attach(policy)
    try:
        used = []
        worst = 0.0
        for changed in (False, True):
            if changed:
                shake(policy)
                engine.sync(policy)  # goes to sleep afterwards
                used.append(torch.cuda.mem_get_info()[0])
            worst = max(worst, disagreement(sampled(engine), sampled(HF().attach(policy))))
        used.append(torch.cuda.mem_get_info()[0])
        freed = (used[0] - used[1]) / torch.cuda.mem_get_info()[1]
    finally:
        engine.close()
    text = (
        f"largest difference of a log-prob to engine hf; asleep, {freed:.0%} of the GPU's memory is free "
        "again (0.3 was reserved)"
    )
    return Found(worst if freed > 0.2 else float("inf"), 1e-3, text)


def cuda_graphs() -> Found:
    """Samples with CUDA graphs against samples without them."""
    need_vllm()
    policy, results, seconds = random_policy("qwen2_5_vl"), [], []
    for eager in (True, False):
        engine = VLLM(memory=0.3, max_model_len=2048, eager=eager).attach(policy)
        try:
            results.append(sampled(engine))
            begun = time.perf_counter()
            sampled(engine)
            seconds.append(time.perf_counter() - begun)
        finally:
            engine.close()
    text = f"largest difference of a log-prob; {seconds[1]:.2f} s with graphs, {seconds[0]:.2f} without"
    return Found(disagreement(*results), 1e-3, text)


def nccl_transfer() -> Found:
    """Weights broadcast over NCCL to a server on the second GPU give engine `hf`'s samples."""
    need_vllm()
    if torch.cuda.device_count() < 2:
        raise Missing("a second GPU")
    from vlrl.engine.hf.engine import HF
    from vlrl.engine.vllm.server import VLLMServer

    policy = random_policy("qwen2_5_vl")
    engine = VLLMServer(transfer="nccl", devices=("1",), memory=0.3, max_model_len=2048).attach(policy)
    try:
        shake(policy)
        begun = time.perf_counter()
        engine.sync(policy)
        seconds = time.perf_counter() - begun
        worst = disagreement(sampled(engine), sampled(HF().attach(policy)))
    finally:
        engine.close()
    return Found(
        worst, 1e-3, f"largest difference of a log-prob to engine hf after a broadcast of {seconds:.2f} s"
    )


CHECKS: dict[str, Callable[[], Found]] = {
    check.__name__: check
    for check in (packed, bfloat16, flex_attention, qlora, vllm_sleep, cuda_graphs, nccl_transfer)
}

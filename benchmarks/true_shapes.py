"""Every model of configs/models at the true shape of its release (widths, heads, rotary embedding, vision
tower, vocabulary, picture rules), with random weights and few layers: packed log-probs against plain ones,
gradients, LoRA targets.

    python -m benchmarks.true_shapes                        # all, one process each; a 7B needs 10 GB
    python -m benchmarks.true_shapes qwen3_vl_4b --layers 1
    python -m benchmarks.true_shapes --vllm smollm2_135m    # vLLM loads it; new weights reach all its tensors

The tokenizer is the small one of tiny models, because a release's is not at hand without a hub; ids of
placeholders are therefore its own.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from benchmarks import cli
from benchmarks.cases import Stored, picture
from vlrl.config import load
from vlrl.plan.releases import meta_model, release, transformers_config
from vlrl.plan.setup import processor_of
from vlrl.plan.shape import model_config
from vlrl.plugins.registry import build, get, make
from vlrl.policy import Family, Policy
from vlrl.policy.costs import PictureCost
from vlrl.policy.families.vision import VisionFamily
from vlrl.policy.tiny import Tiny
from vlrl.types import Group, Prompt, Rollout, Row

MODELS = (
    "qwen2_5_vl_3b", "qwen2_5_vl_7b", "qwen3_vl_4b", "qwen2_vl_2b", "internvl3_2b", "llava_onevision_7b",
    "smolvlm2_2b", "gemma3_4b", "qwen2_5_1_5b",
    "qwen3_1_7b", "smollm2_135m",
)  # fmt: skip
IDS = re.compile(r"(image|video|vision_start|vision_end|boi|eoi)_token_(id|index)")
TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")


def family_of(model: str, **fields: Any) -> Family:
    """The family of a config of configs/models, in float32 and without checkpointing unless `fields` say
    otherwise."""
    spec = dict(load([f"models/{model}"]).tree["policy"])
    return build(Family, spec | {"dtype": "float32", "checkpointing": False} | fields, "policy")


def random_release(
    family: Family, layers: int = 2, vision_layers: int = 2, seed: int = 0, device: str = "cpu"
) -> Policy:
    """A policy whose model has the release's shape with `layers` and `vision_layers` layers (0: all), and
    random weights; its processor follows the release's rules for pictures. Ids of the whole vocabulary can be
    scored."""

    def loaded(self: Any) -> tuple[Any, Any]:
        return random_model(family, layers, vision_layers, seed)

    policy = Policy(variant(family, load=loaded), device=device)
    policy.params.forbidden_ids = policy.params.net.forbidden_ids = tuple(
        sorted(family.forbidden_ids(policy.processor))
    )
    return policy


def variant(family: Family, **members: Any) -> Family:
    """A family with the same settings whose class has these members in place of its own."""
    made: type[Family] = type(f"Variant{type(family).__name__}", (type(family),), members)
    return made(**{f.name: getattr(family, f.name) for f in dataclasses.fields(family)})


def random_model(
    family: Family, layers: int = 2, vision_layers: int = 2, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Any, Any]:
    """(model, processor) of `random_release`; weights are drawn in `dtype`."""
    tiny = dataclasses.replace(family, model="", tiny=Tiny())
    with torch.device("meta"):
        small, processor = tiny.build(Tiny())
    config = transformers_config(family.model, layers, vision_layers)
    for name in [n for n in (*vars(small.config), *TOKEN_IDS) if IDS.fullmatch(n) or n in TOKEN_IDS]:
        if hasattr(config, name) and getattr(small.config, name, None) is not None:
            setattr(config, name, getattr(small.config, name))
    text, small_text = config.get_text_config(), small.config.get_text_config()
    for name in TOKEN_IDS:
        setattr(text, name, getattr(small_text, name, None))
    model_class: Any = type(meta_model(config))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not isinstance(family, VisionFamily):
            return model_class._from_config(config, attn_implementation="sdpa", dtype=dtype), processor
        model = family.random_model(model_class, config, dtype=dtype)
    return model, family.make_processor(processor.tokenizer, release(family.model).pictures)


def save_release(
    model: str, folder: Path, layers: int = 0, vision_layers: int = 0, dtype: str = "bfloat16"
) -> Path:
    """Write the random model and the processor of a config of configs/models to `folder`, for `policy.model`;
    nothing if it holds them already.

    The whole model by default; its weights are in memory once, in `dtype`.
    """
    if not (folder / "config.json").is_file():
        made, processor = random_model(family_of(model), layers, vision_layers, dtype=getattr(torch, dtype))
        made.save_pretrained(folder)
        processor.save_pretrained(folder)
    return folder


def picture_prompt(*sizes: tuple[int, int], name: str = "one") -> Prompt:
    """A question, with a picture of each size (width, height) in pixels."""
    images = tuple(Stored(resized_picture(i, size), f"{name}-{i}-{size}") for i, size in enumerate(sizes))
    content = [*({"type": "image"} for _ in images), {"type": "text", "text": "How many digits are there?"}]
    return Prompt(
        Row(name, "How many digits are there?", images=images),
        ({"role": "user", "content": content},),
        images,
    )


def resized_picture(number: int, size: tuple[int, int]) -> bytes:
    """PNG of a picture of digits at this (width, height)."""
    from io import BytesIO

    from PIL import Image

    buffer = BytesIO()
    Image.open(BytesIO(picture(number, 64))).resize(size).save(buffer, "PNG")
    return buffer.getvalue()


def counted(family: VisionFamily, pixels: tuple[int, int]) -> tuple[PictureCost, int]:
    """What the release's processor makes of a picture of (width, height) pixels, under the config's bounds:
    vision embeddings and patches; and the tokens of its text, with the marks around the embeddings."""
    config, processor = model_config(family), processor_of(family)
    family.limit_pixels(processor, config)
    features = family.process(processor, picture_prompt(pixels).images[0])
    rows, text = features.tensors["pixel_values"], processor.tokenizer(features.text).input_ids
    if rows.dim() == 2:  # of patches
        return PictureCost(features.num_embeds, len(rows), len(rows)), len(text)
    patch = config.vision_config.patch_size
    per_tile = (rows.shape[-1] // (patch[0] if isinstance(patch, list) else patch)) ** 2
    return PictureCost(features.num_embeds, rows.shape[:-3].numel() * per_tile, per_tile), len(text)


def plain_logp(policy: Policy, rollout: Rollout) -> Tensor:
    """Log-probs of one rollout by the model's own forward on its processor's output: no packing, no caches,
    no mask of ours."""
    prompt, family = rollout.prompt, policy.family
    pictures: list[Any] = [image.load() for image in prompt.images]
    media = {"images": family.processor_batch([one.convert("RGB") for one in pictures])} if pictures else {}
    inputs: dict[str, Any] = dict(
        policy.processor(text=[policy.render(prompt)], add_special_tokens=False, return_tensors="pt", **media)
    )
    completion = torch.tensor([rollout.ids])
    inputs["input_ids"] = torch.cat([inputs["input_ids"], completion], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in inputs:
            inputs[name] = torch.cat([inputs[name], torch.zeros_like(completion)], 1)
    if not family.is_multimodal:
        inputs.pop("token_type_ids", None)
    inputs = {name: value.to(policy.device) for name, value in inputs.items() if isinstance(value, Tensor)}
    logits = policy.model(**inputs).logits[0, -completion.shape[1] - 1 : -1].float()
    logits[:, list(policy.params.net.forbidden_ids)] = float("-inf")
    return logits.log_softmax(-1).gather(-1, completion[0][:, None].to(policy.device))[:, 0]


@dataclass(frozen=True)
class Checked:
    """The result of one model: largest difference of log-probs to plain transformers, gradient norm,
    parameters, seconds."""

    model: str
    parameters: int
    tokens: int
    difference: float
    gradient: float
    lora_layers: int
    seconds: float


def check(model: str, pixels: tuple[int, int] = (224, 168), completions: int = 3, layers: int = 2) -> Checked:
    """Packed log-probs against plain transformers, and finite gradients of all layers (embeddings and head
    are frozen, to save memory)."""
    from vlrl.trainer.step.loss_inputs import make_batch

    begun = time.process_time()
    policy = random_release(family_of(model), layers, layers)
    head = policy.model.get_output_embeddings().weight
    policy.model.get_input_embeddings().weight.requires_grad_(False)
    head.requires_grad_(False)
    prompt = picture_prompt(*[pixels] if policy.family.is_multimodal else ())
    generator = torch.Generator().manual_seed(0)
    allowed = sorted(set(range(head.shape[0])) - set(policy.params.net.forbidden_ids))
    rollouts = [
        Rollout(
            prompt,
            [allowed[i] for i in torch.randint(len(allowed), (3 + 2 * k,), generator=generator).tolist()],
        )
        for k in range(completions)
    ]
    batch = make_batch([Group(prompt, rollouts)], policy.pad_id)
    logp = policy.forward(batch)["logp"]
    logp.sum().backward()
    norms = [p.grad.norm() for p in policy.model.parameters() if p.grad is not None]
    with torch.no_grad():
        plain = [plain_logp(policy, rollout) for rollout in rollouts]
    difference = max(float((logp[b, : len(row)] - row).abs().max()) for b, row in enumerate(plain))
    return Checked(
        model=model,
        parameters=sum(p.numel() for p in policy.model.parameters()),
        tokens=len(policy.encode(prompt)),
        difference=difference,
        gradient=float(torch.stack(norms).norm()),
        lora_layers=lora_layers(model),
        seconds=time.process_time() - begun,
    )


def lora_layers(model: str, options: Mapping[str, Any] | None = None) -> int:
    """How many layers LoRA finds in the whole release, on the meta device. Raises ConfigError if there is
    none."""
    from vlrl.plan.shape import MetaPolicy
    from vlrl.plugins.stages import Trainable
    from vlrl.policy.params import Params

    family = family_of(model)
    policy: Any = MetaPolicy(
        Params(meta_model(transformers_config(family.model)), family, torch.device("meta"), None)
    )
    trainable: Any = make(get(Trainable, "lora"), dict(options or {}), "trainable")
    trainable(policy)
    return sum(name.endswith("lora_A") for name, _ in policy.model.named_modules())


DIFFERENCE = "largest difference of a log-prob"
HEAD = (
    f"| model | parameters, few layers | prompt tokens | {DIFFERENCE} | gradient norm | LoRA layers, whole "
    "model |"
)
VLLM_HEAD = (
    f"| model | parameters, few layers | {DIFFERENCE}, loaded | after an update | vLLM's tensors | of them "
    "not updated | CPU-seconds |"
)


def main(
    models: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(MODELS)}; all by default.")
    ] = None,
    layers: Annotated[int, typer.Option(help="Layers of the language model and of the tower.")] = 2,
    vllm: Annotated[
        bool,
        typer.Option(
            "--vllm", help="Check vLLM's loading and weight updates instead; a second copy of the weights."
        ),
    ] = False,
    worker: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Check and print a table."""
    cli.known("model", models or (), cli.configs("models"))
    if worker:
        from benchmarks.vllm_shapes import check_vllm  # imports this file

        for model in models or MODELS:
            typer.echo(
                json.dumps(asdict(check_vllm(model, layers=layers) if vllm else check(model, layers=layers)))
            )
        return
    head, row = (VLLM_HEAD, vllm_row) if vllm else (HEAD, plain_row)
    typer.echo(f"{head}\n{'|---' * head.count(' | ')}|---|")
    failed = False
    for model in models or MODELS:
        command = [
            sys.executable,
            "-m",
            "benchmarks.true_shapes",
            model,
            "--worker",
            "--layers",
            str(layers),
            *(["--vllm"] if vllm else []),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            failed = True
            typer.echo(f"| `{model}` | failed: {fault(done)} {'| ' * (head.count(' | ') - 1)}|")
            continue
        text, wrong = row(json.loads(done.stdout.strip().splitlines()[-1]))
        failed |= wrong
        typer.echo(f"| `{model}` | {text} |")
    raise typer.Exit(1 if failed else 0)


def fault(done: subprocess.CompletedProcess[str]) -> str:
    """Why a process failed: the signal that ended it (9: out of memory), or its last line that names an
    error."""
    if done.returncode < 0:
        return f"ended by signal {-done.returncode}"
    lines = done.stderr.strip().splitlines() or ["(no output)"]
    return next((line for line in reversed(lines) if "Error:" in line), lines[-1])


def plain_row(r: dict[str, Any]) -> tuple[str, bool]:
    """(cells of a `Checked`, whether it failed)."""
    wrong = r["difference"] > 1e-4 or not 0 < r["gradient"] < float("inf")
    figures = (
        f"{r['parameters'] / 1e6:.0f}M | {r['tokens']} | "
        f"{r['difference']:.1e}{' (too large)' if wrong else ''} | {r['gradient']:.3g}"
    )
    return f"{figures} | {r['lora_layers']}", wrong


def vllm_row(r: dict[str, Any]) -> tuple[str, bool]:
    """(cells of a `VLLMChecked`, whether it failed)."""
    cells, wrong = [], bool(r["unmoved"])
    for when in ("loaded", "updated"):
        prompt, worst = max(r[when].items(), key=lambda item: item[1])
        cells.append(f"{worst:.1e}" + (f" (too large: prompt with {prompt})" if worst > 1e-4 else ""))
        wrong |= worst > 1e-4
    unmoved = ", ".join(f"{name} ({share:.1%} of its rows)" for name, share in r["unmoved"].items()) or "none"
    return (
        (
            f"{r['parameters'] / 1e6:.0f}M | {cells[0]} | {cells[1]} | {r['tensors']} | {unmoved} | "
            f"{r['seconds']:.0f}"
        ),
        wrong,
    )


if __name__ == "__main__":
    cli.run(main, __doc__)

"""Rollouts of a GRPO step: engine `hf` against TRL 1.16.0's and transformers' own generation, or engine
`vllm` against vLLM driven bare.

    python -m benchmarks.rollout              # 8 prompts x 8 completions, one 336-pixel picture each
    python -m benchmarks.rollout --side vllm --side vllm_bare --json

{side: {"cpu_seconds" (or "gpu_seconds"), "peak_extra_mb", "tokens", "ms_per_token"}, "ratio": {side: seconds
of the first side over this one's}}. Same weights and prompts, interleaved. Completions end with a probability
of about 1 / mean per token (that share of the ids ends them), so that lengths are geometric on every side;
each side draws its own, so figures are per token too.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import typer

from benchmarks import cli
from benchmarks.cases import CASES, Case, make_groups
from benchmarks.meter import measure
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Engine
from vlrl.policy import Family, Policy
from vlrl.types import Prompt, Request, Sampling

SIZES = {
    "hidden": 256, "layers": 4, "heads": 8, "kv_heads": 4, "intermediate": 704, "vision_hidden": 256,
    "vision_layers": 4, "vision_heads": 8,
    "rows": 32768,
}  # fmt: skip

Side = Callable[[int], int]  # seed -> completion tokens


def compare(
    case: str = "image_336", prompts: int = 8, group: int = 8, repeats: int = 3, sides: Sequence[str] = ()
) -> dict[str, Any]:
    """{side: {"cpu_seconds" or "gpu_seconds", "peak_extra_mb", "tokens", "ms_per_token"}, "ratio": {side:
    seconds of vlrl over those of side}}."""
    chosen = CASES[case]
    family = build(Family, {"name": "qwen2_5_vl" if chosen.images else "text", "tiny": SIZES})
    policy = Policy(family, device="cuda" if torch.cuda.is_available() else "cpu")
    asked = [g.prompt for g in make_groups(Case(**{**vars(chosen), "prompts": prompts, "group": group}), 200)]
    drawn = [i for i in range(SIZES["rows"]) if i not in set(policy.forbidden_ids)]
    ends = tuple(drawn[40 : 40 + max(1, len(drawn) // chosen.mean)])
    with tempfile.TemporaryDirectory() as folder:
        policy.save(folder)
        shared: dict[str, Any] = {
            "policy": policy,
            "folder": folder,
            "prompts": asked,
            "group": group,
            "ends": ends,
            "longest": chosen.longest,
        }
        running = {name: MAKERS[name](shared) for name in sides or ("vlrl", "transformers", "trl")}
        return _measured(running, repeats)


def _measured(sides: dict[str, Side], repeats: int) -> dict[str, Any]:
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for seed in range(repeats + 1):
        for name, side in sides.items():
            tokens, used = measure(partial(side, seed))
            runs[name].append({**used, "tokens": tokens})
    out: dict[str, Any] = {
        name: {key: statistics.median(r[key] for r in used[1:]) for key in used[0]}
        for name, used in runs.items()
    }
    clock = next(key for key in next(iter(out.values())) if key.endswith("seconds"))
    for figures in out.values():
        figures["ms_per_token"] = 1000 * figures[clock] / figures["tokens"]
    first, *others = out
    out["ratio"] = {name: out[first][clock] / out[name][clock] for name in others}
    return out


def _ours(shared: dict[str, Any]) -> Side:
    engine = build(Engine, "hf").attach(shared["policy"])

    def side(seed: int) -> int:
        shared["policy"].clear_caches()
        return sum(len(c.ids) for c in engine.generate(_requests(shared, seed)))

    return side


def _requests(shared: dict[str, Any], seed: int) -> list[Request]:
    sampling = Sampling(max_tokens=shared["longest"], stop_ids=shared["ends"])
    return [
        Request(prompt, sampling, n=shared["group"], seed=1000 * seed + i)
        for i, prompt in enumerate(shared["prompts"])
    ]


def _chat(prompt: Prompt) -> list[dict[str, Any]]:
    images = [{"type": "image", "image": medium.load()} for medium in prompt.images]
    return [{"role": "user", "content": [*images, {"type": "text", "text": prompt.row.question}]}]


def _length(ids: Sequence[int], ends: set[int]) -> int:
    return next((t + 1 for t, token in enumerate(ids) if token in ends), len(ids))


def _transformers(shared: dict[str, Any]) -> Side:
    """model.generate(num_return_sequences=G) on the prompts as one left-padded batch: pictures are processed
    once per prompt."""
    policy, ends = shared["policy"], set(shared["ends"])

    def side(seed: int) -> int:
        torch.manual_seed(seed)
        chats = [_chat(prompt) for prompt in shared["prompts"]]
        options: dict[str, Any] = {"padding": True, "padding_side": "left"}
        if policy.processor is policy.tokenizer:
            options = {"padding": True, "tokenizer_kwargs": {"padding_side": "left"}, "return_tensors": "pt"}
        else:
            options = {"processor_kwargs": {**options, "return_tensors": "pt"}}
        inputs = policy.processor.apply_chat_template(
            chats, add_generation_prompt=True, tokenize=True, return_dict=True, **options
        )
        with torch.no_grad():
            out = policy.model.generate(
                **inputs.to(policy.device), do_sample=True, top_k=0, num_return_sequences=shared["group"],
                max_new_tokens=shared["longest"],
                eos_token_id=sorted(ends), pad_token_id=policy.pad_id,
                suppress_tokens=list(policy.forbidden_ids),
            )  # fmt: skip
        return sum(_length(row, ends) for row in out[:, inputs["input_ids"].shape[1] :].tolist())

    return side


def _continuous(shared: dict[str, Any]) -> Side:
    """model.generate_batch: transformers' continuous batching, which takes token ids alone (no pictures)."""
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    policy, ends = shared["policy"], set(shared["ends"])
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        shared["folder"], dtype=torch.float32, attn_implementation="sdpa"
    )
    model = loaded.to(policy.device)
    config = ContinuousBatchingConfig(num_blocks=256, max_batch_tokens=512)

    def side(seed: int) -> int:
        torch.manual_seed(seed)
        chats = [_chat(prompt) for prompt in shared["prompts"]]
        ids = [policy.tokenizer.apply_chat_template(chat, add_generation_prompt=True) for chat in chats]
        settings = GenerationConfig(
            do_sample=True, top_k=0, num_return_sequences=shared["group"], eos_token_id=sorted(ends),
            max_new_tokens=shared["longest"], pad_token_id=policy.pad_id,
            suppress_tokens=list(policy.forbidden_ids),
        )  # fmt: skip
        found = model.generate_batch(
            [list(prompt["input_ids"]) if hasattr(prompt, "keys") else list(prompt) for prompt in ids],
            generation_config=settings,
            continuous_batching_config=config,
        )
        return sum(_length(one.generated_tokens, ends) for one in found.values())

    return side


def _trl(shared: dict[str, Any]) -> Side:
    """GRPOTrainer's own path: tokenising, processing and generating every repeated prompt."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    seeing, group, ends = bool(shared["prompts"][0].images), shared["group"], set(shared["ends"])
    loader: Any = AutoModelForImageTextToText if seeing else AutoModelForCausalLM
    reader: Any = AutoProcessor if seeing else AutoTokenizer
    config = GRPOConfig(
        output_dir=str(Path(shared["folder"]) / "trl"), per_device_train_batch_size=group,
        gradient_accumulation_steps=len(shared["prompts"]),
        num_generations=group, max_completion_length=shared["longest"], bf16=False,
        use_cpu=not torch.cuda.is_available(), report_to=[],
        disable_tqdm=True, generation_kwargs={"eos_token_id": sorted(ends),
            "suppress_tokens": list(shared["policy"].forbidden_ids)},
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=loader.from_pretrained(shared["folder"], dtype=torch.float32), args=config,
        processing_class=reader.from_pretrained(shared["folder"]),
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": "?"}]]}),
        reward_funcs=cast(Any, _no_reward),
    )  # fmt: skip

    def side(seed: int) -> int:
        torch.manual_seed(seed)
        chats = [_chat(prompt) for prompt in shared["prompts"] for _ in range(group)]
        ids, images, fields = trainer._tokenize_prompts(chats)
        completions, _ = trainer._generate_single_turn(ids, images, fields, group)
        return sum(_length(list(row), ends) for row in completions)

    return side


def _no_reward(completions: list, **_: Any) -> list[float]:
    return [0.0] * len(completions)


def _vllm(shared: dict[str, Any]) -> Side:
    engine = build(Engine, {"name": "vllm", "max_model_len": 4096}).attach(shared["policy"])
    shared["vllm"] = engine

    def side(seed: int) -> int:
        engine.core.reset_prefix_cache()
        return sum(len(c.ids) for c in engine.generate(_requests(shared, seed)))

    return side


def _vllm_bare(shared: dict[str, Any]) -> Side:
    """LLM.generate of the same vLLM with the same prompts and parameters, without vlrl."""
    from vllm import SamplingParams

    from vlrl.engine.vllm.prompts import common_parameters, vllm_prompt

    engine = shared["vllm"]

    def side(seed: int) -> int:
        engine.core.reset_prefix_cache()
        requests = _requests(shared, seed)
        prompts = [vllm_prompt(shared["policy"], request.prompt) for request in requests]
        plain = [
            common_parameters(request, engine.lm.eos_ids) | {"detokenize": True} for request in requests
        ]  # text too, as the engine gives
        parameters = [SamplingParams(**values, logprobs=0) for values in plain]
        outputs = engine.state.llm.generate(prompts, parameters, use_tqdm=False)
        return sum(len(sample.token_ids) for output in outputs for sample in output.outputs)

    return side


MAKERS = {
    "vlrl": _ours,
    "transformers": _transformers,
    "continuous": _continuous,
    "trl": _trl,
    "vllm": _vllm,
    "vllm_bare": _vllm_bare,
}


def main(
    case: Annotated[str, typer.Option(help=f"One of {', '.join(CASES)}.")] = "image_336",
    prompts: Annotated[int, typer.Option(help="Prompts of a step.")] = 8,
    group: Annotated[int, typer.Option(help="Completions per prompt.")] = 8,
    repeats: Annotated[
        int, typer.Option(help="Runs of each side that are counted, after one that is not.")
    ] = 3,
    side: Annotated[
        list[str] | None,
        typer.Option(
            help="vlrl, transformers, continuous, trl, vllm, vllm_bare (default: vlrl, transformers, trl)."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure and print."""
    cli.known("case", [case], CASES)
    cli.known("side", side or (), MAKERS)
    with redirect_stdout(sys.stderr):  # what libraries print is no part of the figures
        result = compare(case, prompts, group, repeats, side or ())
    if as_json:
        typer.echo(json.dumps(result))
        return
    for name, figures in result.items():
        typer.echo(f"{name}: " + ", ".join(f"{key} {value:,.3f}" for key, value in figures.items()))


if __name__ == "__main__":
    cli.run(main, __doc__)

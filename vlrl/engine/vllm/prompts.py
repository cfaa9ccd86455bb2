"""Requests in vLLM's format: prompts with one placeholder per medium, sampling parameters; and the fields of
completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from vlrl.engine.vllm.served_media import clip_metadata
from vlrl.plugins.registry import ConfigError
from vlrl.services.lazy import torch
from vlrl.types import Completion, Prompt, Request

KEY = "vlrl"  # the entry of SamplingParams.extra_args that our logits processors read
FORBIDDEN = "vlrl_forbidden"  # the entry of the engine's additional_config: ranges of ids


def ranges(ids: Sequence[int]) -> list[list[int]]:
    """Ascending ids as [first, one after the last] of each run: a padded vocabulary stays short on a server's
    command line.

    >>> ranges([3, 4, 5, 9])
    [[3, 6], [9, 10]]
    """
    runs: list[list[int]] = []
    for i in ids:
        if runs and runs[-1][1] == i:
            runs[-1][1] = i + 1
        else:
            runs.append([i, i + 1])
    return runs


def check_pictures(family: Any, prompt: Prompt, on_gpu: bool) -> None:
    """Raise ConfigError for pictures that vLLM 0.32 shows its model in another way than the trainer does:
    samples would come from another policy."""
    shown, where = len(prompt.images), f"engine: row {prompt.row.id!r}, family {family.name!r}"
    if family.vllm_problem:
        raise ConfigError(f"{where}: {family.vllm_problem}; use engine 'hf'")
    if prompt.audios:
        raise ConfigError(f"{where}: the row has audio, which no test compares in vLLM; use engine 'hf'")
    if prompt.videos and family.vllm_video_problem:
        raise ConfigError(f"{where}: the row shows a video, and {family.vllm_video_problem}; use engine 'hf'")
    if shown > 1 and family.multi_image_sensitive:
        raise ConfigError(
            f"{where}: the row shows {shown} images. The model sees several images of a prompt at low "
            "resolution, in vLLM each one as if it were "
            "alone; use engine 'hf', or rows with one image"
        )
    if shown and family.bidirectional_images and not on_gpu:
        raise ConfigError(
            f"{where}: the row shows an image. Its tokens attend to each other in both directions, in "
            "vLLM's CPU build only to earlier ones; "
            "use engine 'hf', or vLLM on a GPU"
        )


def prompt_ids(policy: Any, prompt: Prompt) -> list[int]:
    """The prompt's ids with a single placeholder for each medium: vLLM expands them itself. Raises
    ConfigError as `check_pictures`."""
    check_pictures(policy.family, prompt, torch.cuda.is_available())
    return policy.encoder.unexpanded_ids(prompt)


def vllm_prompt(policy: Any, prompt: Prompt, ids: Sequence[int] = ()) -> dict[str, Any]:
    """The prompt argument of `LLMEngine.add_request`. Media are identified by their keys, so that vLLM
    processes each once."""
    out: dict[str, Any] = {"prompt_token_ids": [*prompt_ids(policy, prompt), *ids]}
    if prompt.images or prompt.videos:
        media: dict[str, list] = {}
        for kind, items in (("image", prompt.images), ("video", prompt.videos)):
            if items:
                media[kind] = [_image(m) if kind == "image" else _video(m) for m in items]
        out["multi_modal_data"] = media
        out["multi_modal_uuids"] = {
            kind: [m.key for m in items]
            for kind, items in (("image", prompt.images), ("video", prompt.videos))
            if items
        }
    return out


def _image(medium: Any) -> Any:
    return medium.load().convert("RGB")


def _video(medium: Any) -> Any:
    clip = medium.load()
    return clip.frames_THWC, clip_metadata(clip.fps, len(clip))


def extra_args(request: Request, in_process: bool = True) -> dict[str, Any] | None:
    """The settings for our own logits processors. Raises ValueError for callables if the engine is not in
    this process."""
    sampling = request.sampling
    extra: dict[str, Any] = {}
    if sampling.bad_ids:
        extra["bad_ids"] = list(sampling.bad_ids)
    if not isinstance(sampling.temperature, (int, float)):
        extra["temperature"] = [list(step) for step in sampling.temperature]
    if sampling.processors:
        if not in_process:
            raise ValueError(
                "sampling: logits processors that are Python callables run in engines 'hf' and 'vllm', not "
                "in 'vllm_server'"
            )
        extra["processors"] = list(sampling.processors)
    if not extra:
        return None
    return {KEY: {**extra, "prefix": list(request.prefix_ids)}}


def common_parameters(request: Request, eos_ids: Sequence[int]) -> dict[str, Any]:
    """Sampling parameters with the same names in vLLM's Python and HTTP interfaces."""
    s = request.sampling
    scheduled = not isinstance(s.temperature, (int, float))
    prefix = len(request.prefix_ids)
    return {
        "n": request.n,
        "seed": request.seed % 2**63,
        "temperature": 1.0 if scheduled else s.temperature,
        "top_p": s.top_p,
        "top_k": s.top_k,
        "min_p": s.min_p,
        "max_tokens": s.max_tokens - prefix,
        "min_tokens": max(0, s.min_tokens - prefix),
        "stop": list(s.stop),
        "stop_token_ids": sorted({*eos_ids, *s.stop_ids}),
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "detokenize": bool(
            s.stop
            # detokenizing token by token costs more than decoding the whole completion once, as the engines
            # do
        ),
    }


def scored_prefix(request: Request) -> bool:
    """Whether vLLM computes log-probs of the given tokens. It then takes nothing of them from its prefix
    cache."""
    return bool(request.prefix_ids) and request.score_prefix


def finished_prefix(request: Request, version: int, text: str) -> list[Completion]:
    """The completions of a request whose prefix already fills `max_tokens`."""
    ids = list(request.prefix_ids)
    return [
        Completion(
            request=request,
            index=i,
            ids=list(ids),
            logp=[0.0] * len(ids),
            text=text,
            finish="length",
            version=version,
        )
        for i in range(request.n)
    ]


def versions_of(spans: Any, prefix: int, length: int, present: int) -> int | list[int]:
    """The policy version of a completion, or one per token if the weights changed meanwhile. `spans` are
    vLLM's, over the tokens after the prefix."""
    versions = [present] * length
    for span in [span if isinstance(span, Mapping) else vars(span) for span in spans or ()]:
        for t in range(prefix + span["start"], min(prefix + span["end"], length)):
            versions[t] = int(span["version"])
    return versions if len(set(versions)) > 1 else (versions or [present])[0]


def finish_reason(reason: str | None) -> Literal["stop", "length", "abort"]:
    """vLLM's finish reason as that of a completion."""
    known: dict[str | None, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}
    return known.get(reason, "abort")

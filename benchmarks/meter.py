"""CPU seconds, GPU seconds and peak memory of a piece of work."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def measure(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """(result, {"cpu_seconds" or "gpu_seconds", "peak_extra_mb"}): memory beyond what was held before, at its
    highest."""
    if torch.cuda.is_available():
        return _on_gpu(work)
    release_memory()
    reset_peak()
    before, begun = memory_status("VmRSS"), time.process_time()
    result = work()
    seconds = time.process_time() - begun
    return result, {"cpu_seconds": seconds, "peak_extra_mb": (memory_status("VmHWM") - before) / 1024}


def release_memory() -> None:
    """Collect garbage, and give what glibc's allocator holds unused back to the system, so that what is
    counted is in use."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def reset_peak() -> None:
    """Let the process's highest resident memory (VmHWM) start again from now (Linux)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def memory_status(field: str) -> float:
    """A field of this process's memory status, in KiB (Linux)."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        if line.startswith(field + ":")
    )
    return float(line.split()[1])


def _on_gpu(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    result = work()
    end.record()
    torch.cuda.synchronize()
    extra = (torch.cuda.max_memory_allocated() - before) / 2**20
    return result, {"gpu_seconds": start.elapsed_time(end) / 1000, "peak_extra_mb": extra}

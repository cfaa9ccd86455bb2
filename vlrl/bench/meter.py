"""CPU seconds, GPU seconds and peak memory of a piece of work."""

from __future__ import annotations

import ctypes
import ctypes.util
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def measure(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """(result, {"cpu_seconds" or "gpu_seconds", "peak_extra_mb"}): memory beyond what was held before, at its highest."""
    if torch.cuda.is_available():
        return _on_gpu(work)
    gc.collect()
    library = ctypes.util.find_library("c")
    if library:
        ctypes.CDLL(library).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the high-water mark starts again from here
    before, begun = _status("VmRSS"), time.process_time()
    result = work()
    seconds = time.process_time() - begun
    return result, {"cpu_seconds": seconds, "peak_extra_mb": (_status("VmHWM") - before) / 1024}


def _status(field: str) -> float:
    """A field of this process's memory status, in KiB (Linux)."""
    line = next(line for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines() if line.startswith(field + ":"))
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

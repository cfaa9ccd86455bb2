"""Devices that can be rented: peak bfloat16 products, memory and bandwidths, as their makers' data sheets state them."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.registry import ConfigError, suggest


@dataclass(frozen=True)
class GPU:
    """A device. `flops` are dense bfloat16 FLOP/s (no sparsity), `memory` bytes, `bandwidth` bytes/s of its memory, `link` bytes/s to a GPU of the
    same machine in one direction (NVLink or PCIe), `source` the data sheet."""

    name: str
    flops: float
    memory: float
    bandwidth: float
    link: float
    source: str

    @property
    def usable(self) -> float:
        """Bytes for tensors: the memory without 6% for the CUDA context, libraries, and fragmentation (ours)."""
        return 0.94 * self.memory


TERA, GIGA, GB = 1e12, 1e9, 1e9

GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("a100_40", 312 * TERA, 40 * GB, 1555 * GIGA, 300 * GIGA, "NVIDIA A100 data sheet (SXM 40 GB)"),
        GPU("a100", 312 * TERA, 80 * GB, 2039 * GIGA, 300 * GIGA, "NVIDIA A100 data sheet (SXM 80 GB); NVLink 600 GB/s in both directions"),
        GPU("h100", 989.4 * TERA, 80 * GB, 3350 * GIGA, 450 * GIGA, "NVIDIA H100 data sheet (SXM); NVLink 900 GB/s in both directions"),
        GPU("h200", 989.4 * TERA, 141 * GB, 4800 * GIGA, 450 * GIGA, "NVIDIA H200 data sheet (SXM)"),
        GPU("b200", 2250 * TERA, 180 * GB, 7700 * GIGA, 900 * GIGA, "NVIDIA DGX B200 data sheet, an eighth of the machine"),
        GPU("l40s", 362.05 * TERA, 48 * GB, 864 * GIGA, 32 * GIGA, "NVIDIA L40S data sheet; PCIe 4.0 x16"),
        GPU("l4", 121 * TERA, 24 * GB, 300 * GIGA, 32 * GIGA, "NVIDIA L4 data sheet; PCIe 4.0 x16"),
        GPU("a10", 125 * TERA, 24 * GB, 600 * GIGA, 32 * GIGA, "NVIDIA A10 data sheet; PCIe 4.0 x16"),
        GPU("rtx4090", 165.2 * TERA, 24 * GB, 1008 * GIGA, 32 * GIGA, "NVIDIA Ada architecture white paper (float32 accumulation); PCIe 4.0 x16"),
        GPU("mi300x", 1307.4 * TERA, 192 * GB, 5300 * GIGA, 64 * GIGA, "AMD Instinct MI300X data sheet; Infinity Fabric 64 GB/s to each neighbour"),
    )
}  # fmt: skip


def gpu(name: str) -> GPU:
    """The GPU of this name. Raises ConfigError."""
    if name not in GPUS:
        raise ConfigError(f"--gpu: no GPU named {name!r}.{suggest(name, GPUS)} Known: {', '.join(GPUS)}")
    return GPUS[name]

"""Devices that can be rented: peak bfloat16 products, memory and bandwidths, as their makers' data sheets
state them."""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.plugins.registry import ConfigError, suggest


@dataclass(frozen=True)
class GPU:
    """A device. `flops` are dense bfloat16 FLOP/s (no sparsity), `memory` bytes, `bandwidth` bytes/s of its
    memory, `link` bytes/s to a GPU of the same machine in one direction (NVLink or PCIe), `source` the data
    sheet."""

    name: str
    flops: float
    memory: float
    bandwidth: float
    link: float
    source: str

    @property
    def usable(self) -> float:
        """Bytes for tensors: the memory without 6% for the CUDA context, libraries, and fragmentation
        (ours)."""
        return 0.94 * self.memory


TERA, GIGA, GB = 1e12, 1e9, 1e9

# Read in copies of the sheets; their peaks are also those that pytorch/torchtitan (torchtitan/tools/utils.py,
# commit 02581674) and Lightning-AI/pytorch-lightning (fabric/utilities/throughput.py, commit 0810121f) take
# from these pages.
# Sheets state peaks with sparsity, which are twice the dense ones.
A100 = "A100 data sheet, nvidia.com/en-us/data-center/a100: 312 TFLOP/s; NVLink 600 GB/s in both directions"
H100 = (
    "H100 data sheet, nvidia.com/en-us/data-center/h100, SXM: 1,979 TFLOP/s with sparsity; NVLink 900 GB/s "
    "in both directions"
)
H200 = (
    "H200 data sheet, nvidia.com/en-us/data-center/h200, SXM: 1,979 TFLOP/s with sparsity; NVLink 900 GB/s "
    "in both directions"
)
B200 = (
    "DGX B200 data sheet, nvidia.com/en-us/data-center/dgx-b200, an eighth of it: 1,440 GB, 64 TB/s; 4.5 "
    "PFLOP/s with sparsity"
)
L40S = (
    "L40S data sheet, resources.nvidia.com/en-us-l40s: 362.05 dense, 733 TFLOP/s with sparsity; PCIe 4.0 x16"
)
L4 = "L4 data sheet, nvidia.com/en-us/data-center/l4: 242 TFLOP/s with sparsity; PCIe 4.0 x16"
A10 = "A10 data sheet, nvidia.com, Data-Center/a10/pdf/a10-datasheet.pdf: 125 TFLOP/s; PCIe 4.0 x16"
ADA = "NVIDIA Ada architecture white paper, appendix A: 165.2 TFLOP/s with float32 accumulation; PCIe 4.0 x16"
MI300X = (
    "MI300X data sheet, amd.com/en/products/accelerators/instinct/mi300/mi300x.html; 128 GB/s in both "
    "directions to each neighbour"
)

GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("a100_40", 312 * TERA, 40 * GB, 1555 * GIGA, 300 * GIGA, A100),
        GPU("a100", 312 * TERA, 80 * GB, 2039 * GIGA, 300 * GIGA, A100),
        GPU("h100", 989.4 * TERA, 80 * GB, 3350 * GIGA, 450 * GIGA, H100),
        GPU("h200", 989.4 * TERA, 141 * GB, 4800 * GIGA, 450 * GIGA, H200),
        GPU("b200", 2250 * TERA, 180 * GB, 8000 * GIGA, 900 * GIGA, B200),
        GPU("l40s", 362.05 * TERA, 48 * GB, 864 * GIGA, 32 * GIGA, L40S),
        GPU("l4", 121 * TERA, 24 * GB, 300 * GIGA, 32 * GIGA, L4),
        GPU("a10", 125 * TERA, 24 * GB, 600 * GIGA, 32 * GIGA, A10),
        GPU("rtx4090", 165.2 * TERA, 24 * GB, 1008 * GIGA, 32 * GIGA, ADA),
        GPU("mi300x", 1307.4 * TERA, 192 * GB, 5300 * GIGA, 64 * GIGA, MI300X),
    )
}  # fmt: skip


def gpu(name: str) -> GPU:
    """The GPU of this name. Raises ConfigError."""
    if name not in GPUS:
        raise ConfigError(f"--gpu: no GPU named {name!r}.{suggest(name, GPUS)} Known: {', '.join(GPUS)}")
    return GPUS[name]

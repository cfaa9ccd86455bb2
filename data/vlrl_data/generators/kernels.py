"""Small tensor functions to write as Triton kernels, each with a reference in torch."""

from __future__ import annotations

import random
from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource

# what it does, inputs, torch, Triton; {k} is a constant
OPERATIONS = (
    ("x + {k} y", ("x", "y"), "x + {k} * y", "x + {k} * y"),
    ("the larger of x and {k}", ("x",), "torch.clamp(x, min={k})", "tl.maximum(x, {k})"),
    ("x times the sigmoid of {k} x", ("x",), "x * torch.sigmoid({k} * x)", "x * tl.sigmoid({k} * x)"),
    ("(x - y) squared, plus {k}", ("x", "y"), "(x - y) ** 2 + {k}", "(x - y) * (x - y) + {k}"),
)
KERNEL = """import torch
import triton
import triton.language as tl

@triton.jit
def kernel({pointers}, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
{loads}
    tl.store(out_ptr + at, {value}, mask=mask)

def f({names}):
    out = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 64),)]({names}, out, x.numel(), BLOCK=64)
    return out"""


@register("gen_kernel")
@dataclass(frozen=True, kw_only=True)
class GenKernel(GeneratedSource):
    """A function of tensors to write in Triton. The answer is {"entry", "reference", "shapes"}, as reward
    `triton_kernel` reads it.

    Paper: AutoTriton, arXiv:2507.05687 (there functions of torch and of repositories).
    """

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        while True:
            place, k, n = rng.randrange(len(OPERATIONS)), rng.randint(1, 40) / 8, rng.randint(20, 150)
            if (random.Random(f"kernel split {place} {k}").random() < 0.2) == (self.split == "heldout"):
                break
        does, names, torch, triton = OPERATIONS[place]
        reference = f"import torch\n\ndef f({', '.join(names)}):\n    return {torch.format(k=k)}"
        code = KERNEL.format(
            pointers=", ".join(f"{name}_ptr" for name in names),
            loads="\n".join(f"    {name} = tl.load({name}_ptr + at, mask=mask)" for name in names),
            value=triton.format(k=k),
            names=", ".join(names),
        )
        question = (
            f"Write a Triton kernel and a function f({', '.join(names)}) that launches it: f returns "
            f"{does.format(k=k)}, element by element, of float tensors of {n} elements. Give one ```python "
            "block."
        )
        gold = {"entry": "f", "reference": reference, "shapes": [[n]] * len(names)}
        return Row(self.id(index), question, gold, task="kernel", target=f"```python\n{code}\n```")

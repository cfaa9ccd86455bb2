"""Small hardware modules to write in Verilog, each with a golden module and what its ports are."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, NamedTuple

from vlrl.plugins.registry import register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource


class Circuit(NamedTuple):
    """What a module does ({w}: bits, {k}: a constant below 2 ** w), its ports (name, bits as a text), its
    body, and its reset (name, level that resets, whether with the clock)."""

    does: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    body: str
    reset: tuple[str, int, bool] | None = None


CIRCUITS = (
    Circuit("y is a plus the constant {k}, modulo 2 ** {w}.", (("a", "{w}"),), (("y", "{w}"),),
            "assign y = a + {k};"),
    Circuit("y is the larger of a and b, as unsigned numbers; s is 1 where the sum of both is above {k}.",
            (("a", "{w}"), ("b", "{w}")), (("y", "{w}"), ("s", "1")),
            "wire [{w}:0] sum = a + b;\nassign y = a > b ? a : b;\nassign s = sum > {k};"),
    Circuit("y has the bits of a in reverse order, each inverted where the constant {k} has a 1.",
            (("a", "{w}"),), (("y", "{w}"),),
            "genvar i;\ngenerate for (i = 0; i < {w}; i = i + 1) begin : bits\n"
            "assign y[i] = a[{w} - 1 - i] ^ (({k} >> i) & 1'b1);\nend\nendgenerate"),
    Circuit("q counts up at rising edges of clk while en is 1 and goes from {k} to 0; rst 1 sets it to 0 at "
            "a rising edge.", (("clk", "1"), ("rst", "1"), ("en", "1")), (("q", "{w}"),),
            "reg [{w}-1:0] count;\nassign q = count;\nalways @(posedge clk) if (rst) count <= 0;\n"
            "else if (en) count <= count == {k} ? 0 : count + 1;", ("rst", 1, True)),
    Circuit("q is a shift register: at a rising edge of clk it moves left by one and takes d as its lowest "
            "bit; rst_n 0 sets it to {k} at once.",
            (("clk", "1"), ("rst_n", "1"), ("d", "1")), (("q", "{w}"),),
            "reg [{w}-1:0] bits;\nassign q = bits;\nalways @(posedge clk or negedge rst_n)\n"
            "if (!rst_n) bits <= {k};\nelse bits <= {{bits, d}};", ("rst_n", 0, False)),
)  # fmt: skip


def wide(width: str) -> str:
    """A port's range: "" for one bit."""
    return "" if width == "1" else f"[{int(width) - 1}:0] "


@register("gen_verilog")
@dataclass(frozen=True, kw_only=True)
class GenVerilog(GeneratedSource):
    """A module to write in Verilog, by its description and ports. The answer is the golden module with the
    widths of its ports, its clock and its resets, in the fields of CodeV-R1's records.

    Paper: CodeV-R1, arXiv:2505.24183 (there descriptions of modules from repositories). Reward: `verilog`.
    """

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        while True:
            place, w = rng.randrange(len(CIRCUITS)), rng.randint(3, 8)
            k = rng.randrange(1, 2**w - 1)
            if (random.Random(f"circuit split {place} {w} {k}").random() < 0.2) == (self.split == "heldout"):
                break
        circuit = CIRCUITS[place]
        inputs = [(name, width.format(w=w)) for name, width in circuit.inputs]
        outputs = [(name, width.format(w=w)) for name, width in circuit.outputs]
        ports = [f"input {wide(width)}{name}" for name, width in inputs]
        ports += [f"output {wide(width)}{name}" for name, width in outputs]
        header = f"module unit({', '.join(ports)});"
        code = f"{header}\n{circuit.body.format(w=w, k=k)}\nendmodule"
        gold: dict[str, Any] = {
            "code": code,
            "input_port_width": [[name, int(width)] for name, width in inputs],
            "output_port_width": [[name, int(width)] for name, width in outputs],
            "clock_port_polarity": [["clk", 1]] if circuit.reset else [],
            "reset_port_polarity_sync": [list(circuit.reset)] if circuit.reset else [],
        }
        question = f"Write a Verilog module with these ports:\n{header}\n{circuit.does.format(w=w, k=k)} " + (
            "Put it in a ```verilog block inside the answer."
        )
        target = f"<think>The ports are given.</think><answer>\n```verilog\n{code}\n```\n</answer>"
        return Row(self.id(index), question, gold, task="verilog", target=target)

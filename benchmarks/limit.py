"""How far each part of a step is from the machine's limit: achieved FLOP/s and bytes/s as shares of a plain
matrix product and of a plain copy.

    python -m benchmarks.limit                       # both shapes, a Markdown table
    python -m benchmarks.limit small --repeats 9 --json

One thread; CPU seconds; the parts, the product and the copy run in turn, so that other load falls on all of
them. A part's FLOPs are counted from its shapes (a product of an (a, b) and a (b, c) matrix is 2 a b c),
forward and backward as autograd does them: the gradient of the input and of the weight cost one forward each.
Attention counts the pairs that are allowed. Nothing is counted for what is computed again. Bytes of decoding
are those that must be read per step: all weights once, and the keys and values of the running sequences.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import torch
import typer
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import cli
from benchmarks.cases import Stored, picture
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Engine
from vlrl.policy import Family, Policy
from vlrl.policy.cpu_matmul import product
from vlrl.policy.family import base
from vlrl.policy.forward import head_weight, score_by_weight, score_tokens
from vlrl.policy.packing import build_layout
from vlrl.policy.tree_attention import attention_arguments
from vlrl.types import Prompt, Request, Rollout, Row, Sampling


@dataclass(frozen=True)
class Shape:
    """A model and a load. `half_billion` has the widths of Qwen2.5-0.5B (hidden 896, 14 heads, 2 key-value
    heads, inner 4,864) with 2 layers and 32,768 rows of the vocabulary, so that it fits a small machine."""

    tiny: dict[str, int]
    family: str = "qwen2_5_vl"
    prompt_words: int = 60
    completion: int = 256
    group: int = 8
    pixels: int = 336


SHAPES = {
    "small": Shape(
        tiny={
            "hidden": 256, "layers": 4, "heads": 8, "kv_heads": 4, "intermediate": 704, "vision_hidden": 256,
            "vision_layers": 4, "vision_heads": 8,
            "rows": 32768,
        }
    ),
    "half_billion": Shape(
        tiny={"hidden": 896, "layers": 2, "heads": 14, "kv_heads": 2, "intermediate": 4864, "rows": 32768},
        family="text", pixels=0, completion=128
    ),
}  # fmt: skip


@dataclass
class Part:
    """CPU seconds of a part's runs, with its FLOPs or bytes."""

    work: Callable[[], Any]
    flops: float = 0.0
    bytes: float = 0.0
    seconds: list[float] = field(default_factory=list)

    def time(self) -> None:
        """Run it once."""
        begun = time.process_time()
        self.work()
        self.seconds.append(time.process_time() - begun)


def product_and_copy(size: int = 1024, numbers: int = 1 << 25) -> dict[str, Part]:
    """The machine's two rates: a float32 product of square matrices by the fastest call that torch has here,
    and a copy of 128 MiB."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    source, target = torch.randn(numbers), torch.empty(numbers)
    return {
        "matrix product": Part(lambda: product(a, b), flops=2.0 * size**3),
        "matrix product (torch)": Part(lambda: a @ b, flops=2.0 * size**3),
        "copy": Part(lambda: target.copy_(source), bytes=8.0 * numbers),
    }


def measure(name: str, repeats: int = 5) -> list[dict[str, Any]]:
    """Rows of the table of a shape: {"part", "seconds", "gflops", "share_of_product", "gbytes",
    "share_of_copy"}; medians of interleaved runs."""
    torch.manual_seed(0)
    parts = {**product_and_copy(), **Load(SHAPES[name]).parts()}
    for run in range(repeats + 1):
        for part in parts.values():
            part.time()
            if run == 0:
                part.seconds.clear()  # the first run allocates
    peak = parts["matrix product"].flops / statistics.median(parts["matrix product"].seconds)
    copied = parts["copy"].bytes / statistics.median(parts["copy"].seconds)
    rows = []
    for label, part in parts.items():
        seconds = statistics.median(part.seconds)
        flops, moved = part.flops / seconds, part.bytes / seconds
        rows.append(
            {
                "part": label, "seconds": seconds, "gflops": flops / 1e9, "share_of_product": flops / peak,
                "gbytes": moved / 1e9,
                "share_of_copy": moved / copied,
            }
        )  # fmt: skip
    return rows


class Load:
    """One group on a random model of a shape, and the parts of its step as functions."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.policy = Policy(build(Family, {"name": shape.family, "tiny": shape.tiny}))
        rng = random.Random(0)
        self.prompts = [self._prompt(rng, index) for index in range(8)]
        self.rollouts = [
            Rollout(self.prompts[0], [rng.randrange(200) for _ in range(shape.completion)])
            for _ in range(shape.group)
        ]
        self.text = base(self.policy.model).config.get_text_config()
        heads = self.text.num_attention_heads
        keys = self.text.num_key_value_heads * (self.text.hidden_size // heads)
        self.length, self.keys = len(self.policy.encode(self.prompts[0])), keys
        self.layer_weights = self.text.hidden_size * (
            2 * self.text.hidden_size + 2 * keys + 3 * self.text.intermediate_size
        )

    def _prompt(self, rng: random.Random, index: int) -> Prompt:
        images = (Stored(picture(index, self.shape.pixels), f"limit-{index}"),) if self.shape.pixels else ()
        question = " ".join(
            rng.choice(("how", "many", "digits", "are", "there")) for _ in range(self.shape.prompt_words)
        )
        content = [*({"type": "image"} for _ in images), {"type": "text", "text": question}]
        return Prompt(
            Row(str(index), question, images=images), ({"role": "user", "content": content},), images
        )

    def layers_flops(self, tokens: float, pairs: float) -> float:
        """FLOPs of the language layers' forward pass."""
        return self.text.num_hidden_layers * (
            2.0 * self.layer_weights * tokens + 4.0 * self.text.hidden_size * pairs
        )

    def head_flops(self, tokens: float) -> float:
        """FLOPs of the output layer's forward pass."""
        return 2.0 * tokens * self.text.hidden_size * self.text.vocab_size

    def parts(self) -> dict[str, Part]:
        """The parts of a step by name; "prompt and completions" contains "prompt"."""
        p, t, g = self.length, self.shape.completion, self.shape.group
        tokens, scored = p + g * (t - 1), g * t
        trained = 3.0  # forward, gradient of the input, gradient of the weights
        found = {
            "prompt": Part(lambda: self.train_layers(1), trained * self.layers_flops(p, p * p / 2)),
            "prompt and completions": Part(
                lambda: self.train_layers(g),
                trained * self.layers_flops(tokens, p * p / 2 + g * (p * t + t * t / 2)),
            ),
            "head": Part(self.train_head, trained * self.head_flops(scored)),
            "optimizer": Part(
                self.optimizer_step(), bytes=28.0 * sum(x.numel() for x in self.policy.model.parameters())
            ),  # 4 reads, 3 writes
            "decoding": self.decoding(),
        }
        if self.shape.pixels:
            with FlopCounterMode(display=False) as counter, torch.backends.mkldnn.flags(enabled=False):
                self.train_vision()
            found = {"vision": Part(self.train_vision, float(counter.get_total_flops())), **found}
        return found

    def train_vision(self) -> None:
        """Forward and backward of the vision tower for a prompt's pictures."""
        features = self.policy.encode(self.prompts[0]).features
        (embeds,) = self.policy.family.encode_media(self.policy.model, features)
        embeds.embeds_NH.sum().backward()

    def train_layers(self, group: int) -> None:
        """Forward and backward of the language layers for a prompt and, if `group` > 1, its completions;
        media embeddings are given."""
        policy, encoded = self.policy, self.policy.encode(self.prompts[0])
        with torch.no_grad():
            embeds = policy.encode_media(encoded.features)
        ids = [r.ids if group > 1 else r.ids[:1] for r in self.rollouts[:group]]
        layout = build_layout(
            [encoded], [0] * group, ids, [[] for _ in ids], self.shape.completion, policy.pad_id, packed=True
        )
        how = attention_arguments(policy.family, policy.model, layout)
        kinds = [f.kind for f in encoded.features]
        hidden, _ = policy.family.hidden(
            policy.model, layout.ids_RL, layout.positions, embeds=embeds, kinds=kinds, **how
        )
        hidden.sum().backward()

    def train_head(self) -> None:
        """Forward and backward of the completions' log-probs, given hidden states."""
        count = self.shape.group * self.shape.completion
        hidden = torch.randn(count, self.text.hidden_size, requires_grad=True)
        ids = torch.arange(count) % 200
        weight = head_weight(self.policy.model)
        score = (
            partial(score_tokens, self.policy.logits) if weight is None else partial(score_by_weight, weight)
        )
        score(hidden, ids, torch.ones(count))["logp"].sum().backward()

    def optimizer_step(self) -> Callable[[], Any]:
        """A step of AdamW on all weights, with gradients given."""
        optimizer = torch.optim.AdamW(
            self.policy.model.parameters(), lr=0.0, fused=not torch.cuda.is_available()
        )

        def step() -> None:
            for parameter in self.policy.model.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            optimizer.step()

        return step

    def decoding(self, tokens: int = 48) -> Part:
        """64 sequences of `tokens` tokens of 8 prompts by engine `hf`; prefill and the draw of tokens count
        as time, not as work."""
        engine = build(Engine, "hf").attach(self.policy)
        sampling = Sampling(max_tokens=tokens, temperature=1.0)
        requests = [Request(prompt, sampling, 8, seed=i) for i, prompt in enumerate(self.prompts)]
        sequences, layers = 8 * len(self.prompts), self.text.num_hidden_layers
        weights = layers * self.layer_weights + self.text.hidden_size * self.text.vocab_size
        kv = 2 * self.keys * layers * (len(self.prompts) * self.length + sequences * tokens / 2)
        flops = tokens * (
            sequences * (2.0 * weights + 4.0 * layers * self.text.hidden_size * (self.length + tokens / 2))
        )
        return Part(lambda: list(engine.generate(requests)), flops, 4.0 * tokens * (weights + kv))


def main(
    shapes: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(SHAPES)}; all by default.")
    ] = None,
    repeats: Annotated[
        int, typer.Option(help="Runs of each part that are counted, after one that is not.")
    ] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure and print."""
    cli.known("shape", shapes or (), SHAPES)
    torch.set_num_threads(1)
    result = {name: measure(name, repeats) for name in shapes or SHAPES}
    if as_json:
        typer.echo(json.dumps(result))
        return
    typer.echo(
        "| shape | part | CPU s | GFLOP/s | of the product | GB/s | of the copy "
        "|\n|---|---|---|---|---|---|---|"
    )
    for name, rows in result.items():
        for r in rows:
            flops = f"{r['gflops']:.0f} | {r['share_of_product']:.0%}" if r["gflops"] else " | "
            moved = f"{r['gbytes']:.1f} | {r['share_of_copy']:.0%}" if r["gbytes"] else " | "
            typer.echo(f"| `{name}` | {r['part']} | {r['seconds']:.3f} | {flops} | {moved} |")


if __name__ == "__main__":
    cli.run(main, __doc__)

"""CPU seconds of a training forward and backward of branches that share a trunk, with and without sharing:
`python -m benchmarks.trees`.

A prompt, a trunk of `--trunk` tokens (turns and tool results) and `--branches` rollouts that go on from its
end, from its middle and from its beginning in equal shares, as ARPO's do. Compared are the padded layout (a
prompt and trunk for every rollout), rows that share the prompt alone, and trees. The three have the same
gradient: printed is the relative distance of the tree's.
"""

from __future__ import annotations

import time

import torch

from benchmarks import cli
from vlrl.plugins.registry import build
from vlrl.policy import Family, Policy, packing
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import Group, Prompt, Rollout, Row


def main() -> None:
    """Measure and print."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--trunk", type=int, default=600, help="tokens of the trunk")
    parser.add_argument("--own", type=int, default=100, help="tokens of each branch of its own")
    parser.add_argument("--branches", type=int, default=8, help="rollouts")
    parser.add_argument("--hidden", type=int, default=256, help="hidden size of the model")
    parser.add_argument("--layers", type=int, default=4, help="layers of the model")
    parser.add_argument(
        "--repeats", type=int, default=3, help="measurements of each, of which the fastest counts"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    tiny = {
        "hidden": options.hidden,
        "layers": options.layers,
        "heads": 8,
        "kv_heads": 4,
        "intermediate": 4 * options.hidden,
    }
    generator = torch.Generator().manual_seed(0)

    def draw(n: int) -> list[int]:
        return torch.randint(0, 200, (n,), generator=generator).tolist()

    prompt = Prompt(Row("q", "q"), ({"role": "user", "content": "word " * 40},))
    trunk, cuts = draw(options.trunk), [options.trunk, options.trunk // 2, 0]
    rollouts = [
        Rollout(prompt, [*trunk[: cuts[k % 3]], *draw(options.own + options.trunk - cuts[k % 3])])
        for k in range(options.branches)
    ]
    gradients = {}
    for name, layout, least in (
        ("padded", "padded", 16),
        ("prompt shared", "packed", 10**9),
        ("trees", "packed", 16),
    ):
        packing.MIN_SHARED = least
        policy = Policy(build(Family, {"name": "text", "tiny": tiny, "layout": layout}))
        batch = make_batch([Group(prompt, rollouts)], policy.pad_id)
        seconds = []
        for _ in range(options.repeats):
            policy.model.zero_grad()
            begun = time.process_time()
            policy.forward(batch)["logp"].sum().backward()
            seconds.append(time.process_time() - begun)
        gradients[name] = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
        tokens, rows = (policy.counters[key] // options.repeats for key in ("tokens", "head_rows"))
        print(
            f"{name:14} {tokens:6} tokens {rows:6} rows of the output layer {min(seconds):8.2f} CPU-seconds",
            flush=True,
        )
    distance = (gradients["trees"] - gradients["padded"]).norm() / gradients["padded"].norm()
    print(f"distance of the trees' gradient from the padded layout's: {distance:.1e}")


if __name__ == "__main__":
    main()

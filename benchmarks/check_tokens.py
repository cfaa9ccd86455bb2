"""Are tokens and log-probs of multi-turn episodes those of the training forward?

    python -m benchmarks.check_tokens [--engine vllm] [--pictures]

Plays `--episodes` episodes of up to `--turns` turns with a tiny random model and the shipped tools: the
calculator, and with `--pictures` the zoom tool, which answers with pictures in mid-conversation. A random
model writes no calls, so in half of the turns the environment is handed a call in place of what the model
wrote; the conversation keeps the model's own tokens. Checked, for every rollout of every episode:

- the ids of a later part of the conversation begin with all ids of the earlier one;
- the tokens that carry loss are those that were sampled;
- log-probs of the sampled tokens, as the engine gave them, differ by at most 1e-4 from the training forward's
  (packed trees, and the padded layout).

Exit status 1 if a check fails. It is its own plug-in file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from benchmarks import cli
from vlrl.config import load
from vlrl.engine.base import PolicyEngine
from vlrl.environments.calculator import Calculator
from vlrl.environments.tools import ToolEnvironment
from vlrl.environments.zoom import Zoom
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import SamplingContext
from vlrl.plugins.episodes import Action, Episode, Observation, Picture
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Environment, Source
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.trainer.views import StepView
from vlrl.types import Group, Media, Rollout, Row

TOLERANCE = 1e-4  # nats
GROUP = 4


@register("check_rows")
@dataclass(frozen=True, kw_only=True)
class CheckRows(Source):
    """Questions of several lengths, with a picture of noise each if `pictures`. vlrl original (a
    measurement's own)."""

    count: int = 64
    pictures: bool = False

    def __call__(self) -> Sequence[Row]:
        return [
            Row(f"r{i}", "Look closely. " * (1 + i % 7) + f"What is {i}?", str(i), images=self.shown(i))
            for i in range(self.count)
        ]

    def shown(self, number: int) -> tuple[Media, ...]:
        """The row's pictures."""
        size = (56 + 28 * (number % 3), 84)
        pixels = np.random.default_rng(number).integers(0, 255, (*size, 3), dtype=np.uint8)
        return (Picture.of(pixels),) if self.pictures else ()


@register("check_tools")
@dataclass(frozen=True, kw_only=True)
class CheckTools(Environment):
    """The calculator or the zoom tool, which are handed a call in half of the turns. vlrl original (a
    measurement's own)."""

    stops: ClassVar[tuple[str, ...]] = tuple("aeiou 0123456789")
    pictures: bool = False

    @property
    def provides(self) -> Sequence[Capability]:
        return self.inner.provides

    @cached_property
    def inner(self) -> ToolEnvironment:
        """The tool."""
        return Zoom(side=56) if self.pictures else Calculator()

    def tools(self) -> Sequence[Any]:
        return self.inner.tools()

    def episode(self) -> Episode:
        return CheckEpisode(self)


class CheckEpisode(Episode):
    """One conversation with the tool."""

    def __init__(self, settings: CheckTools) -> None:
        self.settings, self.inner = settings, settings.inner.episode()

    def reset(self, row: Row, seed: int) -> Observation:
        return self.inner.reset(row, seed)

    def step(self, action: Action) -> Observation:
        value = zlib.crc32(action.text.encode())
        if not value % 2:
            return Observation(f"Nothing is known of {value % 1000}.", role="tool")
        arguments: dict[str, Any] = {"expression": f"{value % 97} * {value % 89}"}
        name = "calculator"
        if self.settings.pictures:
            name, arguments = (
                "zoom",
                {"box": [2, 2, 30 + value % 20, 34], "image": value % len(action.images)},
            )
        call = json.dumps({"name": name, "arguments": arguments})
        return self.inner.step(replace(action, text=f"<tool_call>{call}</tool_call>"))


@dataclass
class Found:
    """What was measured: differences of log-probs in nats, and what is wrong."""

    wrong: list[str] = field(default_factory=list)
    packed: list[float] = field(default_factory=list)
    padded: list[float] = field(default_factory=list)
    rollouts: int = 0
    episodes: int = 0
    turns: int = 0
    pictures: int = 0
    seconds: float = 0.0


def check_ids(policy: Any, group: Group, found: Found) -> None:
    """The ids of each conversation, part by part."""
    parts: dict[int, list[Rollout]] = {}
    for rollout in group:
        parts.setdefault(rollout.info["conversation"], []).append(rollout)
    for conversation in parts.values():
        conversation.sort(key=lambda rollout: rollout.info["segment"])
        found.turns += conversation[-1].info["turns"]
        found.pictures += len(conversation[-1].prompt.images) - len(conversation[0].prompt.images)
        before: list[int] = []
        for rollout in conversation:
            now = [*policy.encode(rollout.prompt).ids, *rollout.ids]
            if now[: len(before)] != before:
                found.wrong.append(f"row {rollout.row.id}: tokens of earlier turns were changed")
            before = now
            spans = [t for _, start, end in rollout.info["turn_spans"] for t in range(start, end)]
            if [t for t, trained in enumerate(rollout.trained_mask) if trained] != spans:
                found.wrong.append(
                    f"row {rollout.row.id}: the tokens that carry loss are not those that were sampled"
                )
    found.episodes += len(parts)
    found.rollouts += len(group)


def check_logp(policy: Any, groups: Sequence[Group], found: Found) -> None:
    """Log-probs of the engine against those of the training forward, packed and padded."""
    batch = make_batch(groups, policy.pad_id)
    packed = policy.packed
    for values, layout in ((found.packed, packed), (found.padded, False)):
        policy.packed = layout
        with torch.no_grad():
            logp_BT = policy.forward(batch)["logp"]
        policy.packed = packed
        for logp_T, rollout in zip(logp_BT, batch.rollouts):
            given = torch.tensor(rollout.logp)
            mask = torch.tensor(rollout.trained_mask)
            values += (logp_T[: len(rollout)].cpu() - given).abs()[mask].tolist()


def measure(run: Session, episodes: int, view: Callable[[], SamplingContext] | None = None) -> Found:
    """Play the episodes in groups and check them; `view` makes what the rollout strategy is given, by default
    a new step each time."""
    found, rows = Found(), [row for rows in run.rows.values() for row in rows]
    while found.episodes < episodes:
        given = view() if view else StepView(run, run.begin_step())
        some = [rows[(found.episodes // GROUP + i) % len(rows)] for i in range(16)]
        begun = time.process_time()
        groups = [
            group
            for group in run.rollout([run.prompt_template(row) for row in some], [GROUP] * len(some), given)
            if len(group)
        ]
        found.seconds += time.process_time() - begun
        for group in groups:
            check_ids(run.policy, group, found)
        for at in range(0, len(groups), 4):
            check_logp(run.policy, groups[at : at + 4], found)
    for name, values in (("packed", found.packed), ("padded", found.padded)):
        if not values or max(values) > TOLERANCE:
            found.wrong.append(f"{name}: log-probs differ by up to {max(values, default=float('nan')):.2e}")
    return found


def settings(options: argparse.Namespace, output: str) -> list[str]:
    """The config's overrides."""
    engine = {
        "hf": f"{{name: hf, conversation_tokens: {0 if options.no_cache else 65536}}}",
        "vllm": "{name: vllm, max_model_len: 2048, options: {max_num_seqs: 64}}",
        "vllm_server": "{name: vllm_server, max_model_len: 2048}",
    }
    pictures = str(options.pictures).lower()
    sizes = f"{{hidden: {options.hidden}, layers: {options.layers}, std: 0.2, seed: 3}}"
    words = [
        f"policy={{name: {'qwen2_5_vl' if options.pictures else 'text'}, tiny: {sizes}}}",
        f"plugins=[{Path(__file__).resolve()}]",
        f"data.train.rows={{name: check_rows, pictures: {pictures}}}",
        f"environment={{name: check_tools, pictures: {pictures}}}",
        f"rollout={{name: multi_turn, max_turns: {options.turns}, patience: 30}}",
        f"sampling={{name: plain, max_tokens: {options.tokens}}}",
        f"engine={engine[options.engine]}", "rewards.answer={name: numeric, weight: 1.0}", f"output={output}",
        f"seed={options.seed}",
    ]  # fmt: skip
    return [*words, "reward_shaping.turns={name: last_turn_reward}"] if options.pictures else words


def main() -> int:
    """Measure and print; the number of findings."""
    parser = cli.Parser(__doc__)
    parser.add_argument("--episodes", type=int, default=1000, help="episodes to play, at least")
    parser.add_argument("--engine", choices=["hf", "vllm", "vllm_server"], default="hf", help="what samples")
    parser.add_argument(
        "--pictures",
        action="store_true",
        help="a vision-language model with the zoom tool, in place of text with the calculator",
    )
    parser.add_argument("--turns", type=int, default=5, help="turns of an episode, at most")
    parser.add_argument("--tokens", type=int, default=12, help="tokens of a turn, at most")
    parser.add_argument("--hidden", type=int, default=128, help="hidden size of the model")
    parser.add_argument("--layers", type=int, default=2, help="layers of the model")
    parser.add_argument(
        "--no-cache", action="store_true", help="engine hf: prefill the whole conversation in every turn"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as output:
        begun = time.process_time()
        run = Session(Plan.of(load(["base/rl", "methods/grpo"], settings(options, output))))
        run.open()
        run.enter(0)
        run.engine.sync(run.policy)
        try:
            found = measure(run, options.episodes)
        finally:
            run.close()
        assert isinstance(run.engine, PolicyEngine)
        counters = run.engine.counters
    played = (
        f"{found.episodes} episodes of {found.turns / found.episodes:.1f} turns, {found.rollouts} rollouts"
    )
    seconds = time.process_time() - begun
    print(
        f"{options.engine}: {played}, {found.pictures} pictures in mid-conversation, {len(found.packed)} "
        f"sampled tokens, {seconds:.0f} CPU-seconds"
    )
    for name, values in (("packed", found.packed), ("padded", found.padded)):
        print(
            f"  against the training forward, {name}: largest difference {max(values):.1e}, mean "
            f"{sum(values) / len(values):.1e} nats"
        )
    print(f"  rollouts: {found.seconds:.1f} CPU-seconds, {counters['prefill_tokens']} tokens prefilled")
    if counters["prompt_tokens"]:
        share = counters["cached_tokens"] / counters["prompt_tokens"]
        print(
            f"  prompt tokens: {counters['prompt_tokens']}, of which from the prefix cache: "
            f"{counters['cached_tokens']} ({share:.0%})"
        )
    print("\n".join(found.wrong) if found.wrong else "ids and log-probs agree")
    return len(found.wrong)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)

"""Peak memory of a training step, counted by torch's CPU allocator, for the comparison with what `vlrl plan`
predicts.

Counted are the bytes of all tensors that are alive at the same time, temporaries inside kernels included, as
`torch.cuda.max_memory_allocated` does on a GPU: the profiler of torch reports every allocation and release.
Resident memory would count pages that the C library keeps, and not those of a buffer that is allocated but
not yet written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.cases import Stored, picture
from vlrl.types import Clip, Group, Media, Prompt, Rollout, Row


@dataclass(frozen=True)
class Noise(Media):
    """A video of random frames, `side` x `side` pixels."""

    name: str
    frames: int
    side: int
    kind = "video"

    @property
    def key(self) -> str:
        return self.name

    def load(self) -> Any:
        frames = np.random.default_rng(0).integers(
            0, 255, (self.frames, self.side, self.side, 3), dtype=np.uint8
        )
        return Clip(frames_THWC=frames, fps=2.0)


@dataclass(frozen=True)
class Load:
    """The groups of a rank's step: `prompts` groups of `group` completions of `completion` tokens; prompts of
    `words` words and a medium of `side` pixels (a video if it has `frames`)."""

    prompts: int = 2
    group: int = 4
    completion: int = 128
    words: int = 64
    side: int = 0
    frames: int = 0

    def media(self, index: int) -> tuple[Media, ...]:
        """The media of prompt `index`."""
        if not self.side:
            return ()
        return (
            (Noise(f"v{index}", self.frames, self.side),)
            if self.frames
            else (Stored(picture(index, self.side), f"p{index}-{self.side}"),)
        )

    def groups(self, seed: int, vocabulary: int = 400) -> list[Group]:
        """Groups with random completions and advantages of both signs."""
        rng = random.Random(seed)
        out = []
        for index in range(self.prompts):
            media = self.media(index)
            question = (
                " ".join(
                    rng.choice(("how", "many", "digits", "are", "there", "in", "the", "picture"))
                    for _ in range(self.words)
                )
                + f" {seed}"
            )
            kind = "video" if self.frames else "image"
            content = [*({"type": kind} for _ in media), {"type": "text", "text": question}]
            shown: dict[str, Any] = {"videos": media} if self.frames else {"images": media}
            prompt = Prompt(
                Row(f"{seed}/{index}", question, **shown), ({"role": "user", "content": content},), **shown
            )
            rollouts = [
                Rollout(prompt, [rng.randrange(vocabulary) for _ in range(self.completion)])
                for _ in range(self.group)
            ]
            for place, rollout in enumerate(rollouts):
                rollout.reward = rollout.advantage = 1.0 if place % 2 else -1.0
                rollout.advantages = [rollout.advantage] * len(rollout)
                rollout.logp = [-6.0] * len(rollout)
            out.append(Group(prompt, rollouts, f"{seed}/{index}"))
        return out


def peak_bytes(work: Callable[[], Any]) -> tuple[Any, int]:
    """(result, highest number of bytes in tensors of the CPU that were allocated inside and alive at the same
    time)."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        result = work()
    results: Any = profiler.profiler
    events = sorted(
        (e.start_ns(), i, e.nbytes())
        for i, e in enumerate(results.kineto_results.events())
        if e.name() == "[memory]"
    )
    held = highest = 0
    for _, _, size in events:
        held += size
        highest = max(highest, held)
    return result, highest


def open_run(words: Sequence[str]) -> Any:
    """A run of a config's words with its policy, engine, phase and optimizer, ready to learn."""
    from vlrl.cli.words import load_words
    from vlrl.trainer.plan import Plan
    from vlrl.trainer.session import Session

    run = Session(Plan.of(load_words(words)))
    run.open()
    run.enter(0)
    return run


def learn_steps(run: Any, load: Load, steps: int = 2) -> None:
    """Optimizer steps on given completions, sampling left out."""
    from vlrl.trainer.step.loop import learn
    from vlrl.trainer.views import StepView

    for step in range(steps):
        record = run.begin_step()
        record.groups = load.groups(1000 * run.rank + step)
        learn(StepView(run, record))


def longest_group(run: Any, groups: Sequence[Group]) -> dict[str, Any]:
    """The fields of `vlrl.plan.memory.MicroBatch` for the most expensive of `groups`, as a micro-batch of its
    own."""
    from vlrl.trainer.step.loss_inputs import cost

    group = max(groups, key=lambda g: cost(run.policy, g))
    prompt = run.policy.encode(group.prompt)
    patches = sum(len(next(iter(f.tensors.values()))) for f in prompt.features)
    length = len(prompt) + sum(len(r) - 1 for r in group)
    media = sum(f.num_embeds for f in prompt.features)
    return {
        "rows": 1,
        "length": length,
        "scored": sum(map(len, group)),
        "patches": patches,
        "media_tokens": media,
    }

"""Some of a prompt's answers are begun by an expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.methods.common.sampling_rounds import accuracy
from vlrl.methods.core.rollout import Independent
from vlrl.methods.papers.ghpo import check_demonstrations
from vlrl.methods.papers.luffy import demonstrations
from vlrl.registry import register
from vlrl.types import Group, Prompt

if TYPE_CHECKING:
    from vlrl.context import RunContext


def adapted(length: int, now: float, before: float, most: int) -> int:
    """L' = int(L before / now), held in [1, most]; L where one of them is 0 or they are equal."""
    if now <= 0 or before <= 0 or now == before:
        return length
    return max(min(int(length * before / now), most), 1)


@register("g2rpo_a")
@dataclass(frozen=True)
class G2rpoA(Independent):
    """`guided` of a prompt's n rollouts go on from the first L tokens of the row's demonstration (source "guided"), the others start from nothing.

    Every third step, L <- L (mean accuracy of the two steps before) / (its accuracy), whole, in [1, most]; `adaptive` false keeps L = `length`. The
    given tokens are trained on like the policy's own, as in the release; `train_given` false masks them. `info["given"]` is their number; they
    come on top of `max_tokens`.
    Paper: Guo et al. 2025 (G2RPO-A), arXiv:2508.13023; checked against _compute_new_guidance_length and _prepare_inputs of g2rpoa_trainer.py: 2 of
    12 guided, length and most 3072, no division by zero. Deviates: a demonstration shorter than L is given whole, without padding behind it.
    Accuracy is the share of a step's rollouts, guided ones too, with a reward above `threshold` (of `slot`, or the total), over all ranks. State: L
    and the two steps before. Edge: a row without demonstration, and a prompt with a single rollout, are not guided; one rollout always is unguided.
    """

    guided: int = 2
    length: int = 3072
    most: int = 3072
    adaptive: bool = True
    train_given: bool = True
    slot: str = ""
    threshold: float = 0.5
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"length": 0, "before": [], "step": 0}, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.guided < 1 or not 1 <= self.length <= self.most:
            raise ValueError(f"guided={self.guided} must be at least 1, and 1 <= length={self.length} <= most={self.most}")
        self.state["length"] = self.length

    def setup(self, run: RunContext) -> None:
        check_demonstrations(run, self.name)

    def given(self, prompt: Prompt, run: RunContext) -> tuple[int, ...]:
        """The first L tokens of the row's demonstration, without what the prompt's prefix says already."""
        text = next(iter(demonstrations(prompt.row)), "").removeprefix(prompt.prefix)
        return tuple(run.policy.tokenizer.encode(text, add_special_tokens=False)[: self.state["length"]])

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        given = [self.given(prompt, run) for prompt in prompts]
        led = [min(self.guided, max(count - 1, 0)) if ids else 0 for count, ids in zip(counts, given, strict=True)]
        wanted = [(prompt, n, ids) for prompt, n, ids in zip(prompts, led, given)]
        wanted += [(prompt, count - n, ()) for prompt, count, n in zip(prompts, counts, led)]
        drawn = self.draw(wanted, run)
        groups = []
        for i, prompt in enumerate(prompts):
            for rollout in drawn[i]:
                rollout.source, rollout.info["given"] = "guided", len(given[i])
                rollout.loss_mask = None if self.train_given else [t >= len(given[i]) for t in range(len(rollout))]
            groups.append(Group(prompt, [*drawn[i], *drawn[len(prompts) + i]]))
        return groups

    def end_step(self, run: RunContext) -> None:
        groups = run.sampled_groups
        rollouts = [rollout for group in groups for rollout in group]
        if not self.adaptive or not rollouts:
            return
        now, state = accuracy(rollouts, self.threshold, self.slot), self.state
        if state["step"] % 3 == 2:
            state["length"] = adapted(state["length"], now, sum(state["before"]) / 2, self.most)
        state["before"] = [now] if state["step"] % 3 == 0 else [*state["before"], now]
        state["step"] += 1

    def metrics(self) -> dict[str, float]:
        return {"guided/length": float(self.state["length"])}

    def state_dict(self) -> dict[str, Any]:
        return {**self.state, "before": list(self.state["before"])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.update(state)

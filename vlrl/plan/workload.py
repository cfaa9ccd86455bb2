"""What a step of a config does: prompts, completions, pictures, micro-batches, passes."""

from __future__ import annotations

from dataclasses import dataclass, field

from vlrl.plan.memory import MicroBatch
from vlrl.plan.shape import ModelShape
from vlrl.policy.costs import PictureCost


@dataclass(frozen=True)
class Workload:
    """A step over all ranks: `prompts` groups of `group` completions. `text_tokens` and `completion` are
    means, `max_prompt` and `max_completion` the bounds of the config; `pictures` per prompt of cost
    `picture`; `epochs` over the groups; `reference` and `old_logp`: a pass without gradient for them;
    `logged`: the entropy is; `dense`: packed rows have dense masks; `sequence` ranks share a row."""

    prompts: int
    group: int
    text_tokens: int
    completion: float
    max_prompt: int
    max_completion: int
    micro_batch_tokens: int
    num_minibatches: int = 1
    epochs: int = 1
    pictures: int = 0
    picture: PictureCost = field(default_factory=PictureCost)
    reference: bool = False
    old_logp: bool = False
    logged: bool = True
    can_pack: bool = True
    dense: bool = True
    sequence: int = 1

    @property
    def media_tokens(self) -> int:
        """Vision tokens of a prompt."""
        return self.pictures * self.picture.tokens

    @property
    def prompt(self) -> int:
        """Mean tokens of a prompt."""
        return min(self.text_tokens + self.media_tokens, self.max_prompt)

    @property
    def group_tokens(self) -> float:
        """Mean tokens of a packed group."""
        return self.prompt + self.group * self.completion


def packs(shape: ModelShape, work: Workload, prompt: int, completion: int) -> bool:
    """Whether a group of these lengths is run as one row: `vlrl.policy.packing.packing_is_cheaper` for a
    single group."""
    if not work.can_pack or not work.dense:
        return work.can_pack
    linear = shape.text.weights / (2 * shape.text.queries)
    packed, padded = prompt + work.group * (completion - 1), prompt + completion - 1
    if work.group * padded > 2 * packed:
        return True
    return packed * (linear + packed) <= work.group * padded * (linear + padded / 2)


def longest_micro_batch(shape: ModelShape, work: Workload) -> MicroBatch:
    """The longest micro-batch that the config allows: as many of the longest groups as `micro_batch_tokens`
    holds, at least one."""
    prompt, completion = work.max_prompt, work.max_completion
    packed = packs(shape, work, prompt, completion)
    tokens = prompt + work.group * completion
    groups = max(1, work.micro_batch_tokens // tokens)
    media = min(work.media_tokens, prompt)
    patches = work.pictures * work.picture.patches
    rows, length = (
        (groups, prompt + work.group * (completion - 1))
        if packed
        else (groups * work.group, prompt + completion - 1)
    )
    return MicroBatch(
        rows=rows,
        length=length,
        scored=groups * work.group * completion,
        patches=groups * patches,
        media_tokens=groups * media,
        masked=packed and work.group > 1 and work.dense,
        patches_of_largest=work.picture.largest,
        saved=groups * work.pictures * work.picture.saved,
        saved_inputs=groups * work.pictures * work.picture.saved_inputs,
        sequence=work.sequence,
    )


def micro_batches(work: Workload, ranks: int) -> int:
    """Micro-batches of a rank in an optimizer step, for groups of mean length."""
    groups = max(1.0, work.prompts * work.sequence / ranks / work.num_minibatches)
    at_a_time = max(1, int(work.micro_batch_tokens // work.group_tokens))
    return max(1, round(groups / at_a_time + 0.499))

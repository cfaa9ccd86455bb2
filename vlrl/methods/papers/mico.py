"""Sample on weakly augmented pictures, train on strongly augmented ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vlrl.methods.core.prompt_template import Chat
from vlrl.registry import register
from vlrl.types import Prompt, Row


@register("mico")
@dataclass(frozen=True)
class Mico(Chat):
    """As `chat`, and prompt.train = the same question about `row.meta["train_images"]`: log-probs and the update use those pictures.

    Paper: MiCo, arXiv:2506.22434, sec. 3 (augmented GRPO: rollouts on weak, optimisation on strong augmentation). Rows: `gen_mico`.
    Edge: a row without `train_images` is trained on what it was sampled with; another number of pictures than the row has raises ValueError.
    """

    def __call__(self, row: Row) -> Prompt:
        prompt = super().__call__(row)
        strong = tuple(row.meta.get("train_images", ()))
        if not strong:
            return prompt
        if len(strong) != len(row.images):
            raise ValueError(f"row {row.id!r}: {len(strong)} train_images for {len(row.images)} images; give one each")
        return replace(prompt, train=replace(prompt, images=strong))

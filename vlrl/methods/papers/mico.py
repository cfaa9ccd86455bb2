"""MiCo: augmented GRPO. Rollouts are sampled on weakly augmented pictures and trained on strongly augmented
ones.

Paper: MiCo, arXiv:2506.22434. The rows are those of source `gen_mico`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vlrl.methods.core.prompt_template import Chat
from vlrl.plugins.registry import register
from vlrl.types import Prompt, Row


@register("mico")
@dataclass(frozen=True)
class Mico(Chat):
    """MiCo's augmented prompts: as `chat`; log-probs and the update use the same question with the pictures
    of `row.meta["train_images"]`.

    Paper: MiCo, arXiv:2506.22434, sec. 3 (augmented GRPO: rollouts on weak, optimisation on strong
    augmentation). Rows: `gen_mico`. Edge: a row without `train_images` is trained on the pictures it was
    sampled with; raises ValueError where their number differs from `images`.
    """

    def __call__(self, row: Row) -> Prompt:
        prompt = super().__call__(row)
        train_images = tuple(row.meta.get("train_images", ()))
        if not train_images:
            return prompt
        if len(train_images) != len(row.images):
            raise ValueError(
                f"row {row.id!r}: {len(train_images)} train_images for {len(row.images)} images; give one "
                "each"
            )
        return replace(prompt, train=replace(prompt, images=train_images))

"""ReGFT: reference-guided fine-tuning, the policy samples with the beginning of a reference solution as a
hint and is trained without the hint.

`regft` is the prompt template of the first phase (configs/methods/regft.yaml).

Paper: Wu et al. 2026 (ReGFT), arXiv:2603.01223, sec. 3: a partial reference solution as a hint, the trace is
the policy's own, the hint is stripped for training. Deviates: the paper's wording and share are not known to
us; the share counts characters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vlrl.methods.core.prompt_template import Chat
from vlrl.plugins.registry import register
from vlrl.types import Prompt, Row


@register("regft")
@dataclass(frozen=True)
class Regft(Chat):
    """ReGFT's hinted prompt: as `chat`, with the first ceil(share * n) characters of the row's `target`
    inserted into the question by `hint`.

    `hint` contains {question} and {reference}. `prompt.train` is the prompt without the hint.
    Edge: a row without a `target`, and a row that is a conversation, has its plain prompt.
    """

    share: float = 0.5
    hint: str = "{question}\nA solution begins: {reference}"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1 or "{question}" not in self.hint or "{reference}" not in self.hint:
            raise ValueError(
                f"share={self.share} must be in (0, 1] and hint={self.hint!r} must contain {{question}} "
                f"and {{reference}}"
            )

    def __call__(self, row: Row) -> Prompt:
        plain = super().__call__(row)
        if not row.target or row.messages:
            return plain
        beginning = row.target[: math.ceil(self.share * len(row.target) - 1e-9)]
        question = self.hint.replace("{reference}", beginning).replace("{question}", row.question)
        return replace(super().__call__(replace(row, question=question)), row=row, train=plain)

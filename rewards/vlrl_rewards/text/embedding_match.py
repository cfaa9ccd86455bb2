"""Bidirectional Max-Average Similarity: an open answer and its gold text, compared by the policy's own token
embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError, Response, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.parsing import clean

MAX_TOKENS = 1024


def bmas(said_NH: np.ndarray, gold_MH: np.ndarray) -> float:
    """(mean_i max_j cos(s_i, g_j) + mean_j max_i cos(s_i, g_j)) / 2 of token embeddings s (N, H) and g (M,
    H), at least 0; 0 without tokens."""
    if not len(said_NH) or not len(gold_MH):
        return 0.0
    unit = [
        x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        for x in (said_NH.astype(np.float64), gold_MH.astype(np.float64))
    ]
    cos_NM = unit[0] @ unit[1].T
    return max(0.0, float(cos_NM.max(1).mean() + cos_NM.max(0).mean()) / 2)


@register("bmas")
@dataclass(frozen=True, kw_only=True)
class Bmas(Graded):
    """Mixed-R1's open-ended reward: Bidirectional Max-Average Similarity (BMAS) of the answer and the gold
    text.

        r = min(1, n / m, m / n)^length * (mean_i max_j cos(s_i, g_j) + mean_j max_i cos(s_i, g_j)) / 2

    s_i and g_j are the policy's input embeddings of the n tokens of the answer and the m tokens of the gold
    text. Paper: Mixed-R1, arXiv:2505.24164 (BMAS from the embeddings of the tokenizer; which layer's is not
    published: input embeddings are ours). Deviates: rewards/DEVIATIONS.md. Gold: a text. Edge: no answer: 0;
    at most 1,024 tokens of each text are compared. Range [0, 1]; correct where the texts are equal after
    folding. Needs a run with a policy: raises RuntimeError outside.
    """

    refusals = False
    length: float = 1.0
    correct_at: float = 0.95

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"length: {self.length} must not be negative; 0 is the paper's form")

    def embeddings(self, text: str) -> np.ndarray:
        """(N, H) input embeddings of the tokens of a text."""
        policy: Any = self.run.policy
        ids = policy.encode_text(text)[:MAX_TOKENS]
        weight = policy.model.get_input_embeddings().weight
        return (
            np.asarray(weight[ids].detach().float().cpu().numpy()) if ids else np.zeros((0, weight.shape[1]))
        )

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        text = clean(gold).strip() if isinstance(gold, str) else ""
        if not text:
            raise GoldError(f"answer: the gold {gold!r:.100} is not a text")
        target = text
        answer = self.committed(response)
        said = clean(answer.text).strip()
        said_NH, gold_MH = self.embeddings(said), self.embeddings(target)
        n, m = len(said_NH), len(gold_MH)
        factor = (min(n, m) / max(n, m)) ** self.length if n and m else 0.0
        score = min(1.0, factor * bmas(said_NH, gold_MH))
        return self.scored(
            answer, score, said.casefold() == target.casefold(), f"{n} tokens against {m}", said[:200]
        )

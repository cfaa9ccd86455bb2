"""Migrated code against the target, compared and not run."""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass
from typing import Any, Literal

from rapidfuzz.distance import Levenshtein

from vlrl.registry import register
from vlrl.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.edits import MAX_CHARS
from vlrl_rewards.parsing import answer_tags, visible


def bare_code(code: str) -> str | None:
    """Python without comments and blank lines; None if it does not parse. Nothing is executed."""
    if len(code) > MAX_CHARS:
        return None
    try:
        ast.parse(code)
        comments = [token for token in tokenize.generate_tokens(io.StringIO(code).readline) if token.type == tokenize.COMMENT]
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return None
    lines = code.split("\n")
    for token in comments:
        row, column = token.start
        lines[row - 1] = lines[row - 1][:column]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def code_block(response: str) -> str | None:
    """The only fenced block of the only `<answer>`; None if there is none, or several."""
    seen = visible(response)
    spans = answer_tags(seen)
    parts = seen[slice(*spans[0])].split("```") if len(spans) == 1 else []
    if len(parts) != 3:
        return None
    language, _, body = parts[1].partition("\n")
    return body if language.strip().lower() in ("", "python", "py", "python3") else None


@register("code_edit")
@dataclass(frozen=True, kw_only=True)
class CodeEdit(Reward):
    """similarity: r = 3.5 s - 1.5, s = 1 - Levenshtein(c, g) / max(|c|, |g|);  exact: r = 2 if c = g else -1.5;  -2 where c is no Python.

    Paper: ReCode, arXiv:2506.20495 (edit similarity and exact match on code without comments and blank lines; constants of its release).
    Deviates: Levenshtein by rapidfuzz (the same numbers, in less time); the format term (+-1) is a reward of its own (`tag_format`). The code is
    parsed, never run. Edge: several blocks, or more than 20,000 characters: -2. A gold answer that is no Python raises ValueError. Range [-2, 2].
    """

    mode: Literal["similarity", "exact"] = "similarity"

    def __call__(self, rollout: Rollout) -> float:
        gold = bare_code(str(rollout.answer if rollout.answer is not None else ""))
        if not gold:
            raise ValueError(f"row {rollout.row.id!r}: the gold answer is not Python: {rollout.answer!r:.80}")
        block = code_block(rollout.text)
        mine = None if block is None else bare_code(block)
        if not mine:
            return -2.0
        rules: dict[str, Any] = {
            "similarity": lambda: 3.5 * Levenshtein.normalized_similarity(mine, gold) - 1.5,
            "exact": lambda: 2.0 if mine == gold else -1.5,
        }
        return float(rules[self.mode]())

"""Rewards for edited code, compared with the reference and not executed: search/replace patches, and edited
programs."""

from __future__ import annotations

import ast
import difflib
import io
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from rapidfuzz.distance import Indel, Levenshtein

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.parsing import answer_tags, visible

MAX_CHARS = 20_000
MAX_FILE = 1_000_000
_TRANSITIONS = {
    ("", "<<<<<<< SEARCH"): "search",
    ("search", "======="): "replace",
    ("replace", ">>>>>>> REPLACE"): "",
}  # (side, line): next side


class Misformed(ValueError):
    """The response has no patch that can be applied."""


def section(text: str, tag: str) -> str:
    """The content of the only `<tag>...</tag>`. Raises Misformed if there is not exactly one."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1 or text.index(closing) < text.index(opening):
        raise Misformed(f"not exactly one <{tag}> block")
    return text[text.index(opening) + len(opening) : text.index(closing)].strip()


def edits_in(text: str) -> list[tuple[str, str, str]]:
    """(path, search, replace) of every block: "### path", then the two parts between conflict marks. Raises
    Misformed if one is broken, or none."""
    found: list[tuple[str, str, str]] = []
    path, side = "", ""
    parts: dict[str, list[str]] = {"search": [], "replace": []}
    for line in text.split("\n"):
        moved = _TRANSITIONS.get((side, line))
        if moved is None:
            path = line[4:].strip() if not side and line.startswith("### ") else path
            parts.get(side, []).append(line)
        elif moved == "search":
            parts = {"search": [], "replace": []}
        elif not moved:
            found.append((path, "\n".join(parts["search"]), "\n".join(parts["replace"])))
        side = side if moved is None else moved
    if side or not found or not all(name for name, _, _ in found):
        raise Misformed("no whole search/replace block with a path")
    return found


def applied(files: Mapping[str, str], edits: list[tuple[str, str, str]]) -> dict[str, str]:
    """The edited files after the edits. Raises Misformed where a search text is missing, or an edit changes
    nothing."""
    out: dict[str, str] = {}
    for path, search, replace in edits:
        text = "\n" + out.get(path, files.get(path, ""))
        if search == replace or "\n" + search not in text:
            raise Misformed(f"{path}: the search text is not there, or equals its replacement")
        if len(text) + text.count("\n" + search) * len(replace) > MAX_FILE:
            raise Misformed(f"{path}: the file would grow beyond {MAX_FILE} characters")
        out[path] = text.replace("\n" + search, "\n" + replace)[1:]
    return out


def changes(files: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Path -> unified diff (3 lines of context, no header) of every file that changes."""
    pairs = (
        (path, difflib.unified_diff(files.get(path, "").splitlines(), text.splitlines(), lineterm=""))
        for path, text in after.items()
    )
    diffs = {path: "\n".join(list(lines)[2:]) for path, lines in pairs}
    return {path: diff for path, diff in diffs.items() if diff}


@register("patch_similarity")
@dataclass(frozen=True, kw_only=True)
class PatchSimilarity(Reward):
    """SWE-RL's patch similarity for search/replace edits.

        r = mean over the files of both patches of 2 LCS(d, g) / (|d| + |g|)

    d, g: the unified diffs of a file (0 if only one patch changes it). A misformed patch: r = -1.
    Paper: SWE-RL, arXiv:2502.18449, sec. 2.2 (similarity of patches; -1 for a wrong format), checked against
    its release. Deviates: longest common subsequence (rapidfuzz) in place of difflib's matching blocks, which
    take cubic time on repeated characters; LCS is never lower. A diff longer than 10 times the real one plus
    2,000 characters scores 0.
    Reads `row.meta[files]`: {path: text before}; gold answer: {path: text after}. Edge: a patch that changes
    nothing is misformed. Range [-1, 1].
    """

    files: str = "files"
    tag: str = "solution"
    think: bool = True

    def __call__(self, rollout: Rollout) -> float:
        before, gold = rollout.row.meta.get(self.files), rollout.answer
        if not _are_files(before) or not _are_files(gold) or not changes(before, gold):
            raise ValueError(
                f"row {rollout.row.id!r}: needs meta[{self.files!r}] = {{path: text before}} and an answer "
                f"{{path: text after}} that differs"
            )
        try:
            if self.think and not section(rollout.text, "think"):
                return -1.0
            mine = changes(before, applied(before, edits_in(section(rollout.text, self.tag))))
        except Misformed:
            return -1.0
        real = changes(before, gold)
        return sum(_alike(mine.get(path, ""), real.get(path, "")) for path in {*mine, *real}) / len(
            {*mine, *real}
        )


def _are_files(value: Any) -> TypeGuard[Mapping[str, str]]:
    return isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values())


def _alike(mine: str, real: str) -> float:
    if not mine or not real or len(mine) > 10 * len(real) + 2000:
        return 0.0
    return Indel.normalized_similarity(mine, real)


def bare_code(code: str) -> str | None:
    """Python code without comments and blank lines; None if it does not parse. It executes nothing."""
    if len(code) > MAX_CHARS:
        return None
    try:
        ast.parse(code)
        comments = [
            token
            for token in tokenize.generate_tokens(io.StringIO(code).readline)
            if token.type == tokenize.COMMENT
        ]
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
    """ReCode's reward for migrated code: edit similarity or exact match.

        similarity:  r = 3.5 s - 1.5,   s = 1 - Levenshtein(c, g) / max(|c|, |g|)
        exact:       r = 2 if c = g else -1.5

    c, g: answer and gold without comments and blank lines; r = -2 if c is no Python.
    Paper: ReCode, arXiv:2506.20495 (edit similarity and exact match on code without comments and blank lines;
    constants of its release). Deviates: Levenshtein by rapidfuzz (the same numbers, in less time); the format
    term (+-1) is a reward of its own (`tag_format`). The code is parsed, not executed. Edge: several blocks,
    or more than 20,000 characters: -2. A gold answer that is no Python raises ValueError. Range [-2, 2].
    """

    mode: Literal["similarity", "exact"] = "similarity"
    correct_at: float = 2.0

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

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
from vlrl.plugins.scoring import Answer, GoldError, Response, Unread, Verdict
from vlrl.types import Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.parsing import answer_tags, outside_thinking

MAX_CHARS = 20_000
MAX_FILE = 1_000_000
_TRANSITIONS = {
    ("", "<<<<<<< SEARCH"): "search",
    ("search", "======="): "replace",
    ("replace", ">>>>>>> REPLACE"): "",
}  # (side, line): next side


def block(response: Response, tag: str) -> Answer:
    """The content of the only `<tag>...</tag>`, trimmed. Raises Unread if there is not exactly one."""
    text, opening, closing = response.text, f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1 or text.index(closing) < text.index(opening):
        raise Unread(f"not exactly one <{tag}> block", response.whole)
    start, end = text.index(opening) + len(opening), text.index(closing)
    return Answer(text[start:end].strip(), start, end, "section")


def edits_in(text: str) -> list[tuple[str, str, str]]:
    """(path, search, replace) of every block: "### path", then the two parts between conflict marks. Raises
    Unread if one is broken, or none."""
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
        raise Unread("no whole search/replace block with a path")
    return found


def applied(files: Mapping[str, str], edits: list[tuple[str, str, str]]) -> dict[str, str]:
    """The edited files after the edits. Raises Unread where a search text is missing, or an edit changes
    nothing."""
    out: dict[str, str] = {}
    for path, search, replace in edits:
        text = "\n" + out.get(path, files.get(path, ""))
        if search == replace or "\n" + search not in text:
            raise Unread(f"{path}: the search text is not there, or equals its replacement")
        if len(text) + text.count("\n" + search) * len(replace) > MAX_FILE:
            raise Unread(f"{path}: the file would grow beyond {MAX_FILE} characters")
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
class PatchSimilarity(Graded):
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

    def lowest(self) -> float:
        return -1.0

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        before = row.meta.get(self.files)
        if not _are_files(before) or not _are_files(gold) or not changes(before, gold):
            raise GoldError(
                f"row {row.id!r}: needs meta[{self.files!r}] = {{path: text before}} and an answer "
                f"{{path: text after}} that differs"
            )
        if self.think and not block(response, "think").text:
            raise Unread("no thought", response.whole)
        answer = block(response, self.tag)
        mine = changes(before, applied(before, edits_in(answer.text)))
        real = changes(before, gold)
        paths = {*mine, *real}
        score = sum(_alike(mine.get(path, ""), real.get(path, "")) for path in paths) / len(paths)
        return self.scored(answer, score, None, f"similarity {score:.3f}")


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


def code_block(seen: str) -> Answer | None:
    """The only fenced block of the only `<answer>` of a visible text; None if there is none, or several."""
    spans = answer_tags(seen)
    parts = seen[slice(*spans[0])].split("```") if len(spans) == 1 else []
    if len(parts) != 3:
        return None
    language, _, body = parts[1].partition("\n")
    if language.strip().lower() not in ("", "python", "py", "python3"):
        return None
    return Answer(body, *spans[0], "section")


@register("code_edit")
@dataclass(frozen=True, kw_only=True)
class CodeEdit(Graded):
    """ReCode's reward for migrated code: edit similarity or exact match.

        similarity:  r = 3.5 s - 1.5,   s = 1 - Levenshtein(c, g) / max(|c|, |g|)
        exact:       r = 2 if c = g else -1.5

    c, g: answer and gold without comments and blank lines; r = -2 if c is no Python. Paper: ReCode,
    arXiv:2506.20495 (edit similarity and exact match on code without comments and blank lines; constants of
    its release). Deviates: rewards/DEVIATIONS.md. Edge: several blocks, or more than 20,000 characters: -2. A
    gold answer that is no Python raises ValueError. Range [-2, 2].
    """

    mode: Literal["similarity", "exact"] = "similarity"
    correct_at: float = 2.0

    def lowest(self) -> float:
        return -2.0

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        wanted = bare_code(str(gold if gold is not None else ""))
        if not wanted:
            raise GoldError(f"row {row.id!r}: the gold answer is not Python: {gold!r:.80}")
        answer = code_block(outside_thinking(response.text))
        mine = None if answer is None else bare_code(answer.text)
        if answer is None or not mine:
            raise Unread("no block of Python in the answer", response.whole)
        same = mine == wanted
        close = 3.5 * Levenshtein.normalized_similarity(mine, wanted) - 1.5
        score = close if self.mode == "similarity" else 2.0 if same else -1.5
        return self.scored(answer, score, None, "the same code" if same else "other code")

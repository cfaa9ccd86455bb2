"""Search/replace patches against the real change."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from rapidfuzz.distance import Indel

from vlrl.registry import register
from vlrl.stages import Reward
from vlrl.types import Rollout

MAX_CHARS = 20_000
MAX_FILE = 1_000_000
_MOVES = {("", "<<<<<<< SEARCH"): "search", ("search", "======="): "replace", ("replace", ">>>>>>> REPLACE"): ""}  # (side, line): next side


class Misformed(ValueError):
    """A response that holds no patch that can be applied."""


def section(text: str, tag: str) -> str:
    """The inside of the only `<tag>...</tag>`. Raises Misformed if there is not exactly one."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1 or text.index(closing) < text.index(opening):
        raise Misformed(f"not exactly one <{tag}> block")
    return text[text.index(opening) + len(opening) : text.index(closing)].strip()


def edits_in(text: str) -> list[tuple[str, str, str]]:
    """(path, search, replace) of every block: "### path", the two parts between the conflict marks. Raises Misformed on a broken one, or none."""
    found: list[tuple[str, str, str]] = []
    path, parts, side = "", {"search": [], "replace": []}, ""
    for line in text.split("\n"):
        moved = _MOVES.get((side, line))
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
    """The files that the edits touch, as they are afterwards. Raises Misformed where a search text is not there, or nothing changes."""
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
    pairs = ((path, difflib.unified_diff(files.get(path, "").splitlines(), text.splitlines(), lineterm="")) for path, text in after.items())
    diffs = {path: "\n".join(list(lines)[2:]) for path, lines in pairs}
    return {path: diff for path, diff in diffs.items() if diff}


@register("patch_similarity")
@dataclass(frozen=True, kw_only=True)
class PatchSimilarity(Reward):
    """r = mean over the files of both patches of 2 LCS(d, g) / (|d| + |g|), d and g their unified diffs (0 for a file in one only); -1 if misformed.

    Paper: SWE-RL, arXiv:2502.18449, sec. 2.2 (similarity of patches; -1 for a wrong format), checked against its release.
    Deviates: longest common subsequence (rapidfuzz) in place of difflib's matching blocks, which take cubic time on repeated characters; LCS is never
    lower. A diff more than 10 times as long as the real one (and 2,000 characters) scores 0.
    Reads `row.meta[files]`: {path: text before}; gold answer: {path: text after}. Edge: a patch that changes nothing is misformed. Range [-1, 1].
    """

    files: str = "files"
    tag: str = "solution"
    think: bool = True

    def __call__(self, rollout: Rollout) -> float:
        before, gold = rollout.row.meta.get(self.files), rollout.answer
        if not isinstance(before, Mapping) or not isinstance(gold, Mapping) or not changes(before, gold):
            raise ValueError(
                f"row {rollout.row.id!r}: needs meta[{self.files!r}] = {{path: text before}} and an answer {{path: text after}} that differs"
            )
        try:
            if self.think and not section(rollout.text, "think"):
                return -1.0
            mine = changes(before, applied(before, edits_in(section(rollout.text, self.tag))))
        except Misformed:
            return -1.0
        real = changes(before, gold)
        return sum(_alike(mine.get(path, ""), real.get(path, "")) for path in {*mine, *real}) / len({*mine, *real})


def _alike(mine: str, real: str) -> float:
    if not mine or not real or len(mine) > 10 * len(real) + 2000:
        return 0.0
    return Indel.normalized_similarity(mine, real)

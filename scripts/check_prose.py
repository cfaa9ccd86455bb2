"""Finds sentences and paragraphs that are hard to read: `python scripts/check_prose.py [PAGE ...]`.

A sentence has at most 30 words and 4 commas or semicolons, brackets and code left out; a colon ends one. A
paragraph or a list item has at most 80 words in at most 6 sentences. Code, tables and headings are not read.
There are no exceptions: a hard sentence is rewritten. Without arguments the pages of `PAGES` are read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS_OF_SENTENCE, WORDS_OF_PARAGRAPH, SENTENCES, COMMAS = 30, 80, 6, 4
PAGES = (
    "AGENTS.md",
    "docs/index.md",
    "docs/which_reward.md",
    "docs/one_gpu.md",
    "docs/errors.md",
    "docs/guide.md",
    "docs/api/index.md",
    *(f"docs/tutorials/{path.name}" for path in sorted((ROOT / "tutorials").glob("*.md"))),
    *(f"docs/coming_from/{name}.md" for name in ("trl", "verl", "ms_swift", "vlm_r1")),
)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """(line, prose) of every paragraph and list item; a word of code or a link counts as one word."""
    block: list[str] = []
    start, fenced = 0, False
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if re.match(r"\s*(```|===)", line):
            fenced = not fenced if "```" in line else fenced
            line = ""
        item = bool(re.match(r"\s*([-*]|\d+\.|:)\s", line))
        skipped = fenced or not line.strip() or re.match(r"\s*(\||#|<|!\[)", line)
        if (skipped or item) and block:
            yield start, " ".join(block)
            block = []
        if not skipped:
            start = start if block else number
            block.append(re.sub(r"^\s*([-*]|\d+\.|:)\s+", "", line).strip())


def plain(text: str) -> str:
    """Prose without code, addresses and what stands in brackets."""
    text = re.sub(r"`[^`]*`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\([^)]*\)", "", text)


def problems(text: str) -> Iterator[tuple[int, str]]:
    """(line, what is hard) of a page."""
    for line, block in paragraphs(text):
        sentences = [part for part in re.split(r"(?<=[.!?:])\s+", plain(block)) if part.strip()]
        words = [len(re.findall(r"\w[\w'/-]*", sentence)) for sentence in sentences]
        if sum(words) > WORDS_OF_PARAGRAPH or len(sentences) > SENTENCES:
            yield line, f"a paragraph of {sum(words)} words in {len(sentences)} sentences: {block[:60]}..."
        for sentence, count in zip(sentences, words, strict=True):
            commas = len(re.findall(r"[,;]", sentence))
            if count > WORDS_OF_SENTENCE or commas > COMMAS:
                yield line, f"a sentence of {count} words and {commas} commas: {sentence[:60]}..."


def main(pages: list[str]) -> int:
    """Print what is hard; the number of such places."""
    found = 0
    for page in pages or PAGES:
        for line, problem in problems((ROOT / page).read_text(encoding="utf-8")):
            print(f"{page}:{line}: {problem}")
            found += 1
    return found


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))

"""Retrievers: a query to the best passages of a corpus, by BM25 in the process or by a server over HTTP."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vlrl.plugins.registry import ConfigError, home_of
from vlrl.plugins.stages import Source
from vlrl.services.http import JsonClient
from vlrl.services.third_party import pip_install

MAX_QUERY = 1000  # characters


@dataclass(frozen=True)
class Passage:
    """A document of a corpus, or a part of one."""

    title: str
    text: str

    @classmethod
    def from_record(cls, record: Any) -> Passage | None:
        """From {"title", "text"} or Search-R1's {"contents": '"title"\\ntext'}; None for anything else."""
        if not isinstance(record, Mapping):
            return None
        contents = record.get("contents")
        if isinstance(contents, str):
            title, _, text = contents.partition("\n")
            return cls(title.strip().strip('"'), text.strip() or title.strip())
        whole = record.get("text")
        return cls(str(record.get("title", "")), whole) if isinstance(whole, str) else None


class Retriever(ABC):
    """Finds passages. `search` may be called from several threads at once."""

    @abstractmethod
    def search(self, query: str, k: int) -> list[Passage]:
        """At most `k` passages, best first; none where nothing fits."""


class Bm25(Retriever):
    """Lucene's BM25 (k1 1.5, b 0.75) by the package bm25s, over titles and texts, English stop words left
    out.

    Robertson and Zaragoza 2009; Lu 2024 (BM25S), arXiv:2407.03618. A passage without a word of the query is
    never found.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        import bm25s

        self.passages, self.bm25s = passages, bm25s
        self.index = bm25s.BM25()
        self.index.index(self._tokens([f"{p.title}\n{p.text}" for p in passages]), show_progress=False)

    def _tokens(self, texts: list[str]) -> Any:
        return self.bm25s.tokenize(texts, stopwords="en", show_progress=False)

    def search(self, query: str, k: int) -> list[Passage]:
        tokens = self.bm25s.tokenize(
            [query[:MAX_QUERY]], stopwords="en", show_progress=False, return_ids=False
        )
        if not tokens[0]:
            return []
        places, scores = self.index.retrieve(tokens, k=min(k, len(self.passages)), show_progress=False)
        ranked = sorted(zip(scores[0].tolist(), places[0].tolist()), key=lambda pair: (-pair[0], pair[1]))
        return [self.passages[place] for score, place in ranked if score > 0]


class HttpRetriever(Retriever):
    """Search-R1's retrieval server: POST {"queries": [query], "topk": k, "return_scores": true} to `url`.

    The answer is {"result": [[{"document": {"contents": '"title"\\ntext'}, "score": 0.5}, ...]]}; documents
    may also stand there without "document". PeterGriffinJin/Search-R1, search_r1/search/retrieval_server.py.
    `seconds` bounds a call. Raises ServiceError for a server that does not answer, ConnectionError for
    another answer: that is the environment's failure, not the policy's.
    """

    def __init__(self, url: str, seconds: float) -> None:
        self.client = JsonClient(url, timeout=seconds, attempts=2, max_answer=8 << 20, deadline=seconds)

    def search(self, query: str, k: int) -> list[Passage]:
        answer = self.client.post("", {"queries": [query[:MAX_QUERY]], "topk": k, "return_scores": True})
        found = answer.get("result") if isinstance(answer, dict) else None
        if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], list):
            raise ConnectionError(
                f'{self.client.url}: expected {{"result": [[...]]}} with one list for the query, got '
                f"{str(answer)[:200]}"
            )
        passages = [
            Passage.from_record(item.get("document", item) if isinstance(item, dict) else item)
            for item in found[0][:k]
        ]
        if None in passages:
            raise ConnectionError(
                f'{self.client.url}: a document has "contents", or "title" and "text"; got '
                f"{str(found[0])[:200]}"
            )
        return [passage for passage in passages if passage is not None]


def read_corpus(path: Path) -> list[Passage]:
    """The passages of a JSONL of {"title", "text"} or {"contents"}. Raises ConfigError for a missing or empty
    file, and names a wrong line."""
    if not path.is_file():
        raise ConfigError(
            f"environment.corpus: no file {str(path)!r}; name a JSONL with a title and a text per line"
        )
    passages = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                passage = Passage.from_record(json.loads(line)) if line.strip() else None
            except (ValueError, RecursionError):
                passage = None
            if passage is None and line.strip():
                raise ConfigError(
                    f'environment.corpus: {path}:{number}: expected {{"title": ..., "text": ...}} or '
                    f'{{"contents": ...}}, got {line[:80]!r}'
                )
            passages += [passage] if passage is not None else []
    if not passages:
        raise ConfigError(f"environment.corpus: {str(path)!r} has no documents")
    return passages


def invented_corpus(seed: int = 0) -> list[Passage]:
    """The corpus of source `gen_lookup`: facts about invented people and towns."""
    made: Iterable[tuple[str, str]] = home_of(Source, "generators.lookup").documents(seed)
    return [Passage(title, text) for title, text in made]


def check_bm25() -> None:
    """Raise ConfigError where bm25s is not installed."""
    if find_spec("bm25s") is None:
        raise ConfigError(
            f"environment: BM25 needs the package bm25s; {pip_install('search')}, or set environment.url "
            "to a retrieval server"
        )

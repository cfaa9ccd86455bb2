"""A search engine over a corpus: the policy writes queries and reads passages."""

from __future__ import annotations

import re
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from vlrl.environments.retrieval import (
    Bm25,
    HttpRetriever,
    Passage,
    Retriever,
    check_bm25,
    invented_corpus,
    read_corpus,
)
from vlrl.environments.tools import Tool, ToolEnvironment, ToolEpisode
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.episodes import Action, Observation
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.tool_calls import STOP

ACTION = re.compile(r"<(search|access|answer)>(.*?)</\1>", re.DOTALL)
NOTHING = "No information available"
AGAIN = (
    "That was neither a query nor an answer. Write a query between <search> and </search>, or the answer "
    "between <answer> and </answer>."
)
BUILDING = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class SearchTool(ToolEnvironment):
    """Base of environments with a search: `k` passages of at most `passage` characters, asked for by tags or
    by tool calls (`form`).

    A turn ends behind its query or its answer. One without an action ends the episode. With `retry` it is
    told so, as in Search-R1's loop (search_r1/llm_agent/generation.py, "My previous action is invalid"), and
    the policy has its next turn.
    """

    stops: ClassVar[tuple[str, ...]] = ("</search>", "</access>", "</answer>", STOP)
    k: int = 3
    form: Literal["tags", "tool_call"] = "tags"
    passage: int = 1000
    retry: bool = False

    def __post_init__(self) -> None:
        if self.k < 1 or self.passage < 1:
            raise ValueError(f"k={self.k} and passage={self.passage} must be at least 1")

    @abstractmethod
    def episode(self) -> SearchEpisode: ...

    def toolbox(self) -> Sequence[Tool]:
        return list(self.episode().tools.values())

    def tools(self) -> Sequence[Mapping[str, Any]]:
        return super().tools() if self.form == "tool_call" else ()


@register("search")
@dataclass(frozen=True, kw_only=True)
class Search(SearchTool):
    """Search-R1's search engine: answers `<search> query </search>` with the `k` best passages in
    `<information>` tags.

    Paper: Jin et al. 2025 (Search-R1), arXiv:2503.09516, sec. 3.1 and 3.3; PeterGriffinJin/Search-R1,
    search_r1/llm_agent/generation.py (tags, wording of the passages), topk 3. Deviates: passages are a
    message of the user (a tool's, with `tool_call`), not text inside the policy's turn. Edge: a turn with an
    answer, or without an action, ends the episode; an empty query, and a page that does not exist, are told
    to the policy.

    Attributes:
        form: "tool_call": the tool {"name": "search", "arguments": {"query": "..."}} in place of tags.
        retry: With tags, a turn without an action is told so and does not end the episode.
        corpus: A JSONL of {"title", "text"} (or Search-R1's {"contents"}), ranked by BM25 (extra
            `search`); "": the facts of source `gen_lookup` with this `world_seed`.
        url: A retrieval server with Search-R1's interface (https://host:8000/retrieve) in place of a corpus.
        pages: `<access> title </access>` (tool `access`) shows a whole document of the corpus.
        passage, page: Lengths in characters.
    """

    corpus: str = ""
    world_seed: int = 0
    url: str = ""
    pages: bool = False
    page: int = 8000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.page < 1:
            raise ValueError(f"page={self.page} must be at least 1")
        if self.url and (self.corpus or self.pages):
            raise ValueError(
                "url: a retrieval server replaces the corpus and has no pages; leave out corpus and pages"
            )

    def check(self, phase: PhaseContext) -> None:
        if self.url:
            return
        check_bm25()
        if self.corpus and not Path(self.corpus).expanduser().is_file():
            raise ConfigError(
                f"environment.corpus: no file {self.corpus!r}; name a JSONL with a title and a text per line"
            )

    @cached_property
    def _loaded(self) -> tuple[dict[str, Passage], Retriever]:
        if self.url:
            return {}, HttpRetriever(self.url, self.call_seconds)
        passages = (
            read_corpus(Path(self.corpus).expanduser()) if self.corpus else invented_corpus(self.world_seed)
        )
        return {passage.title.casefold(): passage for passage in passages}, Bm25(passages)

    @property
    def loaded(self) -> tuple[Mapping[str, Passage], Retriever]:
        """Documents by title in lower case, and the retriever; read and indexed on first use."""
        with BUILDING:
            return self._loaded

    def episode(self) -> SearchEpisode:
        return CorpusEpisode(self)


class SearchEpisode(ToolEpisode):
    """Queries of one conversation. A subclass finds the passages."""

    def __init__(self, settings: SearchTool) -> None:
        self.form, self.k, self.limit = settings.form, settings.k, settings.passage
        self.retry = settings.retry
        super().__init__([Tool.of(self.search)])

    def step(self, action: Action) -> Observation:
        self.action = action
        if self.form == "tool_call":
            return super().step(action)
        found = dict(ACTION.findall(action.text))
        if not found and self.retry:
            return Observation(AGAIN, invalid=True)
        if "answer" in found or not found:
            return self.finished()
        name = list(found)[-1]
        if name not in self.tools:
            return tagged(
                f"There is no <{name}> here; write a query between <search> and </search>.", invalid=True
            )
        answer = self.called(name, {"query" if name == "search" else "title": found[name].strip()})
        return tagged(answer.text.removeprefix("Error: ValueError: "), invalid=answer.invalid)

    @abstractmethod
    def passages(self, query: str) -> list[Passage]:
        """What is found, at most `k` passages."""

    def search(self, query: str) -> str:
        """Searches a collection of documents. query: what to look for."""
        if not query:
            raise ValueError("the query is empty")
        found = enumerate(self.passages(query), 1)
        return (
            "\n".join(
                f"Doc {n}{f'(Title: {p.title})' if p.title else ':'} {cut(p.text, self.limit)}"
                for n, p in found
            )
            or NOTHING
        )


class CorpusEpisode(SearchEpisode):
    """Queries and pages of a corpus, or of a retrieval server."""

    def __init__(self, settings: Search) -> None:
        super().__init__(settings)
        self.settings = settings
        if settings.pages:
            self.tools["access"] = Tool.of(self.access)

    @property
    def stateless(self) -> bool:
        return type(self) is CorpusEpisode

    def passages(self, query: str) -> list[Passage]:
        return self.settings.loaded[1].search(query, self.k)

    def access(self, title: str) -> str:
        """Shows a whole document. title: its title, as in the results of a search."""
        known = self.settings.loaded[0].get(title.casefold())
        if known is None:
            raise ValueError(f"there is no document {title[:80]!r}")
        return f"{known.title}\n{cut(known.text, self.settings.page)}"


def cut(text: str, limit: int) -> str:
    """At most `limit` characters of a text."""
    return text if len(text) <= limit else f"{text[:limit]} ..."


def tagged(text: str, invalid: bool = False) -> Observation:
    """What a search tells the policy, in `<information>` tags."""
    return Observation(f"<information>{text}</information>", invalid=invalid, calls=int(not invalid))

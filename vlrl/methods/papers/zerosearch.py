"""ZeroSearch: a language model plays the search engine, and writes useless documents more often as training
goes on. It is environment `zerosearch`.

Paper: Sun et al. 2025 (ZeroSearch), arXiv:2505.04588; Alibaba-NLP/ZeroSearch at 2d4cdca.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vlrl.beside.judge import check_judge
from vlrl.environments.asked_model import AskedModel
from vlrl.environments.retrieval import MAX_QUERY, Passage
from vlrl.environments.search import SearchEpisode, SearchTool
from vlrl.plugins.contexts import PhaseContext, StageContext, StepContext
from vlrl.plugins.episodes import Observation
from vlrl.plugins.registry import register
from vlrl.plugins.stages import State, transient
from vlrl.types import Row, Sampling

PROMPT = """\
You are a search engine. For the query below, write {k} {kind} documents, one per line, each of about 30 \
words. They begin with
"Doc 1:", "Doc 2:" and so on. Write nothing else.

Somebody wants to answer this question: "{question}" The answer is: {answer}
{aim}

Query: {query}
"""
AIMS = {
    "useful": "The documents must hold what helps to find the answer.",
    "noisy": "The documents must be related to the query, and must not help to find the answer.",
}
_DOCUMENT = re.compile(r"^\s*Doc(?:ument)?\s*\d+\s*:\s*", re.MULTILINE)


def noise_probability(step: int, steps: int, start: float, end: float, base: float) -> float:
    """P(i) = p_s + (b^(i/m) - 1) / (b - 1) (p_e - p_s), i = `step` of m = `steps`, p_s, p_e, b = `start`,
    `end`, `base`; then p_e."""
    return end if step >= steps else start + (base ** (step / steps) - 1) / (base - 1) * (end - start)


@dataclass
class ZeroSearchState(State):
    """The simulator, and what was asked of it in the current step and in the last one: (noisy, all)
    queries."""

    model: Any = transient()
    asked: list[bool] = transient(factory=list)
    logged: tuple[float, float] = transient((0.0, 0.0))


@register("zerosearch")
@dataclass(frozen=True, kw_only=True)
class ZeroSearch(SearchTool):
    """ZeroSearch's simulated search engine: a model writes the `k` documents; with probability P(i) it is
    told to write useless ones.

        P(i) = p_s + (b^(i/m) - 1) / (b - 1) (p_e - p_s)

    i of m steps of the phase, p_s = `start`, p_e = `end`, b = `base`. The model (`simulator`: {model:
    name@revision, engine: config}) sees question, gold answer and query. Noise is drawn from the episode's
    seed and the turn's text. Logs `zerosearch/noise` (P) and `zerosearch/noisy_queries` (share). Paper: Sun
    et al. 2025 (ZeroSearch), arXiv:2505.04588, sec. 3 (curriculum rollout); Alibaba-NLP/ZeroSearch at
    2d4cdca, llm_agent/generation.py. Deviates: the wording of the prompts is ours; a turn that is cut at the
    length limit ends the episode. Edge: a reply without documents is shown as one; a simulator that fails is
    the environment's failure.
    """

    state_class = ZeroSearchState
    simulator: Mapping[str, Any] = field(default_factory=dict)
    k: int = 5
    start: float = 0.0
    end: float = 0.5
    base: float = 4.0
    max_tokens: int = 400
    temperature: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.start <= 1 and 0 <= self.end <= 1) or self.base <= 0 or self.base == 1:
            raise ValueError(
                f"start={self.start} and end={self.end} are probabilities, and base={self.base} is above 0 "
                "and not 1"
            )
        if self.max_tokens < 1 or self.temperature < 0:
            raise ValueError(
                f"max_tokens={self.max_tokens} must be at least 1, temperature={self.temperature} not "
                "negative"
            )

    def check(self, phase: PhaseContext) -> None:
        check_judge(self.simulator, "environment.simulator")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.model = AskedModel(self.simulator["engine"], run, "environment.simulator.engine")

    @property
    def noise(self) -> float:
        """P of the present step, the first one being 1 (ray_trainer.py:717,773); `start` before the run."""
        step, steps = (self.run.phase_step + 1, self.run.settings.steps) if self.is_set_up else (0, 1)
        return noise_probability(step, steps, self.start, self.end, self.base)

    def episode(self) -> SearchEpisode:
        return ZeroSearchEpisode(self)

    def end_step(self, run: StepContext) -> None:
        asked = run.gather_and_clear(self.state.asked)
        self.state.logged = (float(sum(asked)), float(len(asked)))

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        return {"zerosearch/noise": self.noise, "zerosearch/noisy_queries": self.state.logged}


class ZeroSearchEpisode(SearchEpisode):
    """Queries of one conversation, which a model answers."""

    def __init__(self, settings: ZeroSearch) -> None:
        super().__init__(settings)
        self.settings, self.row, self.seed = settings, Row("", ""), 0

    def reset(self, row: Row, seed: int) -> Observation:
        self.row, self.seed = row, seed
        return Observation()

    def passages(self, query: str) -> list[Passage]:
        settings = self.settings
        noisy = random.Random(f"{self.seed}/{self.action.turn}/{self.action.text}").random() < settings.noise
        settings.state.asked.append(noisy)
        text = self.written(query[:MAX_QUERY], "noisy" if noisy else "useful")
        before, *parts = _DOCUMENT.split(text)
        return [Passage("", part.strip()) for part in (parts or [before]) if part.strip()][: self.k]

    def written(self, query: str, kind: str) -> str:
        """The simulator's reply."""
        settings = self.settings
        gold = self.row.answer
        answer = ", ".join(map(str, gold)) if isinstance(gold, (list, tuple)) else str(gold)
        asked = PROMPT.format(
            k=self.k, kind=kind, question=self.row.question, answer=answer, aim=AIMS[kind], query=query
        )
        sampling = Sampling(temperature=settings.temperature, max_tokens=settings.max_tokens)
        seed = random.Random(f"{self.seed}/{kind}/{query}").getrandbits(31)
        return str(settings.state.model.answer(asked, sampling, seed, f"{self.row.id}/query", answer).text)

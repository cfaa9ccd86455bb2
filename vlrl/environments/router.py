"""A pool of language models with prices: the policy sends questions to the one that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlrl.environments.asked_model import AskedModel
from vlrl.environments.search import cut, tagged
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.episodes import Action, Episode, Observation
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Environment, State, transient
from vlrl.types import Row, Sampling

ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
MAX_QUESTION = 4000  # characters
PROMPT = """A base model asks you a question that it cannot answer alone. Answer it directly where you can, with a short explanation; else say what
you know about it. If you know nothing, say so, and advise it to ask another model. Write a few sentences and stay on the topic.

Question: {query}
"""


@dataclass
class RouterState(State):
    """The models by name in lower case."""

    models: dict[str, AskedModel] = transient(factory=dict)


@register("router")
@dataclass(frozen=True, kw_only=True)
class Router(Environment):
    """Router-R1's pool of models: `<search> model: question </search>` is answered by that model, in
    `<information>` tags.

    `models` maps a name to {engine: config of an engine, price: per million completion tokens, about: what
    the prompt says of it}. The first observation lists them. The reward part `cost` is price times completion
    tokens, summed over the episode.
    Paper: Zhang et al. 2025 (Router-R1), arXiv:2506.09033, sec. 3; ulab-uiuc/Router-R1 at 801a240,
    router_r1/llm_agent/route_service.py (512 tokens, temperature 0) and generation.py. Deviates: the wording
    of the prompts is ours; names must be equal up to case. Edge: an unknown model, and a call without one
    colon, are told to the policy (`invalid`); a turn with an answer, or without an action, ends the episode;
    a model that does not answer is the environment's failure. An engine without token ids counts four
    characters as a token.
    """

    stops: ClassVar[tuple[str, ...]] = ("</search>",)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    max_tokens: int = 512
    temperature: float = 0.0

    def init_state(self) -> RouterState:
        return RouterState()

    def check(self, phase: PhaseContext) -> None:
        if not self.models:
            raise ConfigError(
                "environment.models: name the models: {small: {engine: {name: openai, url: ..., model: "
                "...}, price: 0.3}}"
            )
        for name, model in self.models.items():
            price = model.get("price")
            if (
                "engine" not in model
                or not isinstance(price, (int, float))
                or price < 0
                or set(model) - {"engine", "price", "about"}
                or ":" in name
            ):
                raise ConfigError(
                    f"environment.models.{name}: expected an engine, a price of at least 0, and perhaps "
                    "about; a name has no colon"
                )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        for name, model in self.models.items():
            self.state.models[name.casefold()] = AskedModel(
                model["engine"], run, f"environment.models.{name}.engine"
            )

    def episode(self) -> Episode:
        return RouterEpisode(self)


class RouterEpisode(Episode):
    """Questions of one conversation. `seed` is that of the episode."""

    def __init__(self, settings: Router) -> None:
        self.settings, self.row, self.seed = settings, Row("", ""), 0
        self.prices = {name.casefold(): float(model["price"]) for name, model in settings.models.items()}

    def reset(self, row: Row, seed: int) -> Observation:
        self.row, self.seed = row, seed
        lines = [
            f"- {name}{': ' if model.get('about') else ''}{model.get('about', '')}"
            for name, model in self.settings.models.items()
        ]
        return Observation("\n".join(["Models that you can ask:", *lines]))

    def step(self, action: Action) -> Observation:
        found = dict(ACTION.findall(action.text))
        if "answer" in found or not found:
            return Observation(done=True)
        name, colon, query = found["search"].partition(":")
        name, query = name.strip().casefold(), query.strip()
        if not colon or not query:
            return tagged(
                "Write the name of a model, a colon and a question between <search> and </search>.",
                invalid=True,
            )
        if name not in self.prices:
            return tagged(
                f"There is no model {name[:40]!r}; the models are {', '.join(self.settings.models)}.",
                invalid=True,
            )
        text, tokens = self.asked(name, query[:MAX_QUESTION])
        shown = tagged(cut(text.strip(), 8 * self.settings.max_tokens))
        return Observation(shown.text, parts={"cost": tokens * self.prices[name]}, calls=1)

    def asked(self, name: str, query: str) -> tuple[str, int]:
        """A model's answer and its number of tokens."""
        settings = self.settings
        sampling = Sampling(temperature=settings.temperature, max_tokens=settings.max_tokens)
        text = PROMPT.format(query=query)
        completion = settings.state.models[name].answer(
            text, sampling, self.seed, f"{self.row.id}/{name}", self.row.answer
        )
        return completion.text, len(completion.ids) or -(-len(completion.text) // 4)

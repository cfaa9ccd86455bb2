"""Router-R1: a policy that asks other models, paid for right answers and for cheap ones.

    router_r1          reward shaping: outcome, form and cost in one reward
    router_r1.router   environment: a pool of language models with prices

Paper: Zhang et al. 2025 (Router-R1), arXiv:2506.09033; checked against ulab-uiuc/Router-R1 at 801a240,
verl/utils/reward_score/qa_em.py, verl/trainer/main_ppo.py (format_reward, normalize_reward) and train.sh.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from vlrl.environments.asked_model import AskedModel
from vlrl.environments.search import cut, tagged
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.episodes import CALLS, INVALID_ACTIONS, TURN_PARTS, Action, Episode, Observation
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Environment, RewardShaping, State, transient
from vlrl.types import Group, Rollout, Row, Sampling

_BLOCK = re.compile(r"<(search|answer|think)>(.*?)</\1>", re.DOTALL)
TAGS = ("search", "answer", "think")


@dataclass
class RouterR1State(State):
    """Square roots of the newest costs of this process; (sum, count) of the costs of the current step and of
    the last one."""

    window: list[float] = field(default_factory=list)
    costs: list[float] = transient(factory=list)
    logged: tuple[float, float] = transient((0.0, 0.0))


@register("router_r1")
@dataclass(frozen=True)
class RouterR1(RewardShaping):
    """Router-R1's reward, in place of the total. With outcome s and cost reward C in [0, 1]:

        R = -1                                          if malformed
            (1 - cost_weight) s + cost_weight C          if s > 0
            0                                           otherwise
        C = 1 - clip((sqrt(c) - q_05) / (q_95 - q_05), 0, 1)

    c is the cost of the episode (price times tokens of the models that it asked), q the quantiles of sqrt(c)
    over the last `window` episodes, this one included; C is 1/2 where they are equal. Malformed: tags that do
    not pair or are nested, no or an empty thought, not exactly one answer, anything before the first thought
    or behind the answer, or a call that failed. Paper: Zhang et al. 2025 (Router-R1), arXiv:2506.09033, sec.
    3; the values are the release's. Deviates: `<information>` in the policy's turns is malformed; each
    process keeps a window. Logs `router_r1/cost`, the mean cost per episode.
    """

    state_class = RouterR1State
    cost_weight: float = 0.0
    window: int = 1000
    low: float = 0.05
    high: float = 0.95
    malformed: float = -1.0
    requires = (INVALID_ACTIONS, TURN_PARTS, CALLS)

    def __post_init__(self) -> None:
        if not 0 <= self.cost_weight <= 1 or not 0 <= self.low < self.high <= 1 or self.window < 1:
            raise ValueError(
                f"cost_weight={self.cost_weight} and low={self.low} < high={self.high} are in [0, 1], "
                f"window={self.window} at least 1"
            )

    def __call__(self, group: Group) -> list[float]:
        return [self.value(rollout) for rollout in group]

    def value(self, rollout: Rollout) -> float:
        """The reward of one rollout; its cost joins the window."""
        cost = self.cost_reward(float(TURN_PARTS[rollout].get("cost", 0.0)))
        if INVALID_ACTIONS[rollout] or not well_formed(rollout.text):
            return self.malformed
        outcome = float(rollout.outcome or 0.0)
        return (1 - self.cost_weight) * outcome + self.cost_weight * cost if outcome > 0 else 0.0

    def cost_reward(self, cost: float) -> float:
        """C of an episode with this cost, which joins the window."""
        window, root = self.state.window, math.sqrt(cost)
        window.append(root)
        del window[: -self.window]
        self.state.costs.append(cost)
        low, high = quantiles(window, (self.low, self.high))
        return 1.0 - min(max((root - low) / (high - low), 0.0), 1.0) if high - low >= 1e-8 else 0.5

    def end_step(self, run: object) -> None:
        self.state.logged = (math.fsum(self.state.costs), float(len(self.state.costs)))
        self.state.costs.clear()

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        return {"router_r1/cost": self.state.logged}


def quantiles(values: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Quantiles with linear interpolation."""
    return [float(q) for q in np.quantile(np.asarray(values), shares)]


def well_formed(text: str) -> bool:
    """Whether the policy's turns have the form thought, question, ..., thought, answer (rules:
    `RouterR1`)."""
    text = text.strip()
    blocks = _BLOCK.findall(text)
    contents = [content.strip() for _, content in blocks]
    names = [name for name, _ in blocks]
    balanced = (
        all(text.count(f"<{tag}>") == text.count(f"</{tag}>") for tag in TAGS) and "<information>" not in text
    )
    nested = any(f"<{tag}>" in content or f"</{tag}>" in content for content in contents for tag in TAGS)
    thoughts = [content for name, content in zip(names, contents, strict=True) if name == "think"]
    ends = text.startswith("<think>") and text.endswith("</answer>")
    return (
        balanced
        and not nested
        and ends
        and bool(thoughts)
        and names.count("answer") == 1
        and not {"", "..."} & set(thoughts)
    )


# --- the environment ----------------------------------------------------------------------------------------


ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
MAX_QUESTION = 4000  # characters
PROMPT = """\
A base model asks you a question that it cannot answer alone. Answer it directly where you can, with a short \
explanation; else say what
you know about it. If you know nothing, say so, and advise it to ask another model. Write a few sentences \
and stay on the topic.

Question: {query}
"""


@dataclass
class PoolState(State):
    """The models by name in lower case."""

    models: dict[str, AskedModel] = transient(factory=dict)


@register("router_r1.router")
@dataclass(frozen=True, kw_only=True)
class RouterR1Router(Environment):
    """Router-R1's pool of models: `<search> model: question </search>` is answered by that model, in
    `<information>` tags.

    The first observation lists the models. The reward part `cost` is price times completion tokens, summed
    over the episode. Paper: Zhang et al. 2025 (Router-R1), arXiv:2506.09033; ulab-uiuc/Router-R1 at 801a240,
    route_service.py (512 tokens, temperature 0), generation.py. Deviates: the prompts' wording; names are
    equal up to case. Edge: an unknown model, or no colon or question, is told (`invalid`); a question with a
    colon or its model's name is answered, and `invalid`. An answer ends the episode, a turn without an action
    goes on. A model that does not answer is the environment's failure. Without token ids four characters are
    a token.

    Attributes:
        models: Name to {engine: config of an engine, price: per million completion tokens, about: what the
            prompt says of it}.
    """

    state_class = PoolState
    stops: ClassVar[tuple[str, ...]] = ("</search>", "</answer>")
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    max_tokens: int = 512
    temperature: float = 0.0

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

    def __init__(self, settings: RouterR1Router) -> None:
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
        if "answer" in found:
            return Observation(done=True)
        if not found:
            return Observation()
        name, colon, query = found["search"].partition(":")
        name, query = name.strip().casefold(), query.strip()
        if not colon or not query or "your-query" in query.casefold():
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
        malformed = ":" in query or name in query.casefold()  # answered, and yet no form
        return Observation(shown.text, parts={"cost": tokens * self.prices[name]}, calls=1, invalid=malformed)

    def asked(self, name: str, query: str) -> tuple[str, int]:
        """A model's answer and its number of tokens."""
        settings = self.settings
        sampling = Sampling(temperature=settings.temperature, max_tokens=settings.max_tokens)
        text = PROMPT.format(query=query)
        completion = settings.state.models[name].answer(
            text, sampling, self.seed, f"{self.row.id}/{name}", self.row.answer
        )
        return completion.text, len(completion.ids) or -(-len(completion.text) // 4)

"""A teacher behind an endpoint: vLLM's `prompt_logprobs`, through the service of models beside the policy.

Shapes: K likely tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlrl.beside.judge import open_service
from vlrl.beside.service import ModelService, ScoreAsk, Usage
from vlrl.methods.common.prompts import content_items
from vlrl.methods.common.teacher_config import (
    NoHintError,
    TeacherConfig,
    TeacherScore,
    aligned_completion,
    over_spans,
)
from vlrl.methods.common.token_spans import Aligned, Aligner, UnalignedError
from vlrl.plugins.contexts import StageContext
from vlrl.plugins.registry import ConfigError
from vlrl.types import Prompt, Rollout

MIN_REST = 1e-6  # the least probability of what a server did not list: its numbers are rounded
SERVED = ("concurrency", "max_calls", "token_budget", "prices")


@dataclass(frozen=True)
class ServedEncoder:
    """A served teacher's tokenizer."""

    tokenizer: Any

    @property
    def stop_ids(self) -> Sequence[int]:
        return [self.tokenizer.eos_token_id] if self.tokenizer.eos_token_id is not None else []

    def encode_text(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """The prompt in its chat template."""
        messages = [
            {"role": message["role"], "content": _texts(message["content"])} for message in prompt.messages
        ]
        rendered = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return list(self.tokenizer(rendered + prompt.prefix, add_special_tokens=False).input_ids)


def _texts(content: Any) -> str:
    return "".join(item.get("text", "") for item in content_items(content))


class ServedTeacher:
    """A teacher behind an endpoint: one call per rollout, with deadlines, retries and a budget. What fails is
    no score, and is counted. Log-probs are at temperature 1."""

    def __init__(self, run: StageContext, config: TeacherConfig, where: str) -> None:
        self.run, self.config = run, config
        spec = {"model": config.model, "engine": config.engine}
        spec |= {name: getattr(config, name) for name in SERVED}
        self.service: ModelService = open_service(spec, run, where, Usage(), "teacher")[0]
        self.encoder: ServedEncoder | None = None
        self.aligner: Aligner | None = None
        if config.tokenizer:
            from transformers import AutoTokenizer

            tokenizer: Any = AutoTokenizer.from_pretrained(config.tokenizer)
            if tokenizer.get_vocab() != run.policy.tokenizer.get_vocab():
                self.encoder = ServedEncoder(tokenizer)
                self.aligner = Aligner(run.policy, self.encoder)

    def sleep(self) -> None:
        """Nothing of it is on the device."""

    def scores(self, rollouts: Sequence[Rollout], k: int) -> list[TeacherScore]:
        """What it says of each rollout, with its `k` most likely tokens (0: without)."""
        found: dict[int, TeacherScore] = {}
        asks: dict[int, tuple[ScoreAsk, Aligned | None]] = {}
        for place, rollout in enumerate(rollouts):
            try:
                asks[place] = self.ask(rollout, k)
            except (NoHintError, UnalignedError) as error:
                found[place] = TeacherScore(failure=str(error))
        replies = self.service.score([ask for ask, _ in asks.values()])
        for (place, (ask, aligned)), reply in zip(asks.items(), replies, strict=True):
            if reply.failure:
                found[place] = TeacherScore(failure=reply.failure)
                continue
            logp = [at[token] for token, at in zip(ask.ids, reply.places)]
            tops = [likely(at, k) for at in reply.places] if k else []
            length = len(rollouts[place])
            if aligned is not None and self.aligner is not None:
                found[place] = over_spans(length, aligned, logp, tops, self.aligner)
                continue
            rest = length - len(ask.ids)
            kept = [*rollouts[place].trained_mask[: len(ask.ids)], *[False] * rest]
            found[place] = TeacherScore(
                [value if keep else None for value, keep in zip([*logp, *[0.0] * rest], kept)],
                range(length),
                [top if keep else None for top, keep in zip([*tops, *[None] * rest], kept)],
            )
        return [found[place] for place in range(len(rollouts))]

    def ask(self, rollout: Rollout, k: int) -> tuple[ScoreAsk, Aligned | None]:
        """The request about a rollout. With pictures its completion goes as text, without the end of the
        turn. Raises NoHintError and UnalignedError."""
        own = self.run.settings.logp_temperature
        told = rollout.temperature if own == "sampling" else own
        temperatures = told if isinstance(told, list) else [told]
        if any(value not in (0, 1) for value in temperatures):
            raise ConfigError(
                f"teacher: a served one gives log-probs at temperature 1, and the policy's are at "
                f"{temperatures[0]}; set sampling.temperature=1 or logp_temperature=1, or load the teacher "
                "(model: FOLDER)"
            )
        policy, prompt = self.run.policy, replace(self.config.shown(rollout.prompt), train=None)
        if self.encoder is not None and self.aligner is not None:
            if prompt.media:
                raise UnalignedError("a served teacher with another tokenizer reads text alone")
            aligned = aligned_completion(self.aligner, rollout)
            ids = tuple(self.encoder.prompt_ids(prompt))
            return ScoreAsk(prompt, ids, tuple(aligned.ids), "", max(1, k)), aligned
        ended = bool(rollout.ids) and rollout.ids[-1] in policy.stop_ids
        if prompt.media:
            body = rollout.ids[: len(rollout.ids) - ended]
            return ScoreAsk(prompt, (), tuple(body), policy.tokenizer.decode(body), max(1, k)), None
        return ScoreAsk(prompt, tuple(policy.encode(prompt).ids), tuple(rollout.ids), "", max(1, k)), None


def likely(place: Mapping[int, float], k: int) -> tuple[list[int], list[float]]:
    """The k most likely tokens of a place, their log-probs and that of all others: 1 less their sum."""
    best = sorted(place.items(), key=lambda entry: -entry[1])[:k]
    rest = max(1 - math.fsum(math.exp(value) for _, value in best), MIN_REST)
    return [token for token, _ in best], [*(value for _, value in best), math.log(rest)]

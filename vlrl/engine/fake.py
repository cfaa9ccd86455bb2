"""An engine without a model: completions come from a table, from the row, or from a function. For tests of everything around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vlrl.engine.hf.rng import uniforms
from vlrl.registry import register
from vlrl.stages import Engine
from vlrl.types import Completion, Request

Speak = Callable[[Request, int], str]


@register("fake")
@dataclass(frozen=True)
class Fake(Engine):
    """Completion i of a request is one of its options, each with probability 1 / len(options), drawn from stream (seed, i).

    vlrl original. Options: `table[row.id]`, else `table[row.question]`, else `options`; "{target}" and "{answer}" in an option stand for the row's
    own. `function(request, index) -> text` (from Python only) replaces all of that. Log-probs (nats): the choice, log(1 / len(options)), is
    booked on the first token, the rest is certain (0); of alternatives only the drawn one is told. Tokens are the policy tokenizer's plus its
    EOS, or UTF-8 bytes where there is no policy. `calls` counts requests, `version` syncs. Edge: a completion longer than `sampling.max_tokens` is
    cut, `finish` "length".
    """

    own_weights: ClassVar[bool] = True  # it can sample while the trainer trains
    options: tuple[str, ...] = ("<answer>{answer}</answer>", "<answer>0</answer>")
    table: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    function: Speak | None = None
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"calls": 0, "version": 0, "policy": None}, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.options or not all(self.table.values()):
            raise ValueError("options: at least one completion is needed, for every key of `table` too")

    @property
    def version(self) -> int:
        return self.state["version"]

    def setup(self, run: Any) -> None:
        self.state["policy"] = getattr(run, "policy", None)

    def sync(self, policy: Any) -> None:
        self.state["version"] += 1

    def state_dict(self) -> dict[str, Any]:
        return {"version": self.state["version"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.update(state)

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        for request in requests:
            self.state["calls"] += 1
            for index in range(request.n):
                yield self._completion(request, index)

    def score(self, prompt: Any, ids: Sequence[int]) -> list[float]:
        """Log-probs of a fixed model that finds every token as likely as a byte: log(1 / 256)."""
        return [-math.log(256)] * len(ids)

    def _completion(self, request: Request, index: int) -> Completion:
        text, logp = self._speak(request, index)
        ids = [*request.prefix_ids, *self._encode(text)]
        limit = request.sampling.max_tokens
        finish = "length" if len(ids) > limit else "stop"
        ids = ids[:limit]
        values = ([logp] + [0.0] * len(ids))[: len(ids)]
        top = [{token: value} for token, value in zip(ids, values)] if request.sampling.top_logprobs else None
        return Completion(request=request, index=index, ids=ids, logp=values, text=text, finish=finish, version=self.version, top_logprobs=top)

    def _speak(self, request: Request, index: int) -> tuple[str, float]:
        row = request.prompt.row
        if self.function is not None:
            return self.function(request, index), 0.0
        options = self.table.get(row.id) or self.table.get(row.question) or self.options
        choice = options[int(uniforms(request.seed, index, 1)[0] * len(options))]
        return choice.replace("{target}", row.target).replace("{answer}", str(row.answer)), -math.log(len(options))

    def _encode(self, text: str) -> list[int]:
        policy = self.state["policy"]
        if policy is None:
            return list(text.encode())
        return [*policy.tokenizer.encode(text, add_special_tokens=False), policy.tokenizer.eos_token_id]

"""An engine without a model, for tests: completions come from a table, from the row, or from a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vlrl.engine.hf.sampler import uniforms
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Engine, State, transient
from vlrl.services.delegation import Of
from vlrl.types import Completion, Prompt, Request

if TYPE_CHECKING:
    from vlrl.plugins.views import PolicyView

Respond = Callable[[Request, int], str]


@dataclass
class FakeState(State):
    """`version` counts syncs, `calls` requests."""

    version: int = 0
    calls: int = transient(0)


@register("fake")
@dataclass(frozen=True)
class Fake(Engine):
    """Completion i of a request is one of its options, each with probability 1 / len(options), drawn from
    random stream (seed, i).

    vlrl original. Options: `table[row.id]`, else `table[row.question]`, else `options`; "{target}" and
    "{answer}" in an option are replaced by the row's. `function(request, index) -> text` (from Python only)
    replaces all of that. Log-probs (nats): the first token has that of the choice, log(1 / len(options)), the
    others 0; top log-probs list the drawn token alone. Tokens are the policy tokenizer's plus its EOS, or
    UTF-8 bytes without a policy. Edge: a completion longer than `sampling.max_tokens` is cut, `finish`
    "length".
    """

    state_class = FakeState
    own_weights = True  # it can sample while the trainer trains
    options: tuple[str, ...] = ("<answer>{answer}</answer>", "<answer>0</answer>")
    table: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    function: Respond | None = None

    def __post_init__(self) -> None:
        if not self.options or not all(self.table.values()):
            raise ValueError("options: at least one completion is needed, also for every key of `table`")

    version: ClassVar[Of[int]] = Of("state")

    def sync(self, policy: PolicyView) -> None:
        self.state.version += 1

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        for request in requests:
            self.state.calls += 1
            for index in range(request.n):
                yield self._completion(request, index)

    def score(self, prompt: Prompt, ids: Sequence[int]) -> list[float]:
        """Log-probs (nats) of a uniform distribution over 256 tokens."""
        return [-math.log(256)] * len(ids)

    def _completion(self, request: Request, index: int) -> Completion:
        text, logp = self._respond(request, index)
        ids = [*request.prefix_ids, *self._encode(text)]
        limit = request.sampling.max_tokens
        finish: Literal["stop", "length"] = "length" if len(ids) > limit else "stop"
        ids = ids[:limit]
        values = ([logp] + [0.0] * len(ids))[: len(ids)]
        top = [{token: value} for token, value in zip(ids, values)] if request.sampling.top_logprobs else None
        return Completion(
            request=request,
            index=index,
            ids=ids,
            logp=values,
            text=text,
            finish=finish,
            version=self.version,
            top_logprobs=top,
        )

    def _respond(self, request: Request, index: int) -> tuple[str, float]:
        """(text, log-prob of the choice)."""
        row = request.prompt.row
        if self.function is not None:
            return self.function(request, index), 0.0
        options = self.table.get(row.id) or self.table.get(row.question) or self.options
        choice = options[int(uniforms(request.seed, index, 1)[0] * len(options))]
        return choice.replace("{target}", row.target).replace("{answer}", str(row.answer)), -math.log(
            len(options)
        )

    def _encode(self, text: str) -> list[int]:
        policy: Any = getattr(self.run, "policy", None) if self.is_set_up else None
        if policy is None:
            return list(text.encode())
        return [*policy.encode_text(text), policy.tokenizer.eos_token_id]

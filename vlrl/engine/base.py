"""What engines that run the policy share: the policy as a language model, the counters of a step.

Shape legend: H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from vlrl.plugins.stages import Engine, State, transient
from vlrl.policy.family import base, no_mask
from vlrl.services.delegation import Of
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Prompt

if TYPE_CHECKING:
    from vlrl.plugins.contexts import StepContext
    from vlrl.policy.encoded import EncodedPrompt, Features, MediaEmbeds


class SamplingModel:
    """The policy as the language model that an engine samples from."""

    def __init__(self, policy: Any) -> None:
        self.policy, self.family = policy, policy.family
        self.tokenizer = policy.tokenizer

    model: Of[Any] = Of("policy")
    version: Of[int] = Of("policy")
    encode: Of[Callable[[Prompt], EncodedPrompt]] = Of("policy")
    decode: Of[Callable[[Sequence[int]], str]] = Of("policy")
    encode_media: Of[Callable[[list[Features]], list[MediaEmbeds]]] = Of("policy")

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @cached_property
    def text_config(self) -> Any:
        """The language model's part of the transformers config."""
        return base(self.model).config.get_text_config()

    @cached_property
    def no_mask(self) -> Any:
        """The mask of a decode step: `KVCache` masks by itself."""
        return no_mask(self.model)

    @cached_property
    def forbidden_ids(self) -> tuple[int, ...]:
        """Ids with probability 0: media placeholders, and rows beyond the tokenizer."""
        return tuple(sorted(self.policy.forbidden_ids))

    @cached_property
    def forbidden_set(self) -> frozenset[int]:
        return frozenset(self.forbidden_ids)

    @cached_property
    def vocab_size(self) -> int:
        return self.text_config.vocab_size

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """The ends of a turn and of a document, and those of the model's generation config."""
        named = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        named = named if isinstance(named, (list, tuple)) else [named]
        return tuple(sorted({*self.policy.stop_ids, *named} - {None}))

    @cached_property
    def pad_id(self) -> int:
        return self.eos_ids[0] if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id

    def decode_all(self, ids: Sequence[int]) -> str:
        """Text of completion ids with special tokens, in which stop strings are looked for (as vLLM does):
        every token has at least one byte."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    @cached_property
    def _written(self) -> dict[int, frozenset[str] | None]:
        return {}

    def may_end(self, token: int, stops: Sequence[str]) -> bool:
        """Whether the token can be the one that completes a stop string: it writes the last character of one.

        The characters of a token are kept, so that most steps decode nothing. They are those of the token
        after itself: a tokenizer may drop a space at the beginning of a text. A token that holds a part of a
        character may complete any string.
        """
        if token not in self._written:
            text = self.decode_all([token, token])
            self._written[token] = None if "\ufffd" in text else frozenset(text)
        written = self._written[token]
        return written is None or any(stop[-1:] in written for stop in stops)

    def masks(self, layout: Any) -> Any:
        return self.family.masks(self.model, layout)

    def hidden(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        with self.policy.autocast():
            return self.family.hidden(self.model, *args, **kwargs)

    def logits(self, hidden: Tensor) -> Tensor:
        with self.policy.autocast():
            return self.policy.logits(hidden)


@dataclass
class EngineState(State):
    """The handles and counters of an engine; nothing of it is saved.

    `counters` count since the engine was made, `step_counts` are those of the last finished step.
    """

    lm: SamplingModel | None = transient()
    counters: Counter[str] = transient(factory=Counter)
    counted: Counter[str] = transient(factory=Counter)  # `counters` at the last `end_step`
    step_counts: Counter[str] = transient(factory=Counter)


class PolicyEngine(Engine):
    """Base class of engines that sample from the policy."""

    state_class = EngineState

    @property
    def lm(self) -> SamplingModel:
        """The policy that was attached."""
        assert self.state.lm is not None, "setup() was not called"
        return self.state.lm

    counters: ClassVar[Of[Counter[str]]] = Of("state")  # the work done since the engine was made

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Work that is no part of a step, such as held-out answers: the counters are as before."""
        before = Counter(self.counters)
        try:
            yield
        finally:
            self.counters.clear()
            self.counters.update(before)

    def end_step(self, run: StepContext) -> None:
        """Take the step's share of the counters, for `metrics`."""
        counts = Counter(self.counters)
        counts.subtract(self.state.counted)
        self.state.step_counts, self.state.counted = counts, Counter(self.counters)

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        """The counts of the last finished step; they add up over ranks."""
        return {
            f"engine/{name}": (float(value), 0.0) for name, value in sorted(self.state.step_counts.items())
        }

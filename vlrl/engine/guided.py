"""Guided decoding: a completion can only draw tokens that keep it inside a choice, a regular expression or a
JSON schema (xgrammar)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from vlrl.plugins.registry import ConfigError
from vlrl.services.lazy import Tensor

if TYPE_CHECKING:
    from vlrl.engine.base import SamplingModel

GRAMMARS: dict[str, Callable[[Any], tuple[str, str]]] = {
    "choice": lambda options: ("regex", "|".join(re.escape(str(option)) for option in options)),
    "regex": lambda source: ("regex", source),
    "json": lambda schema: ("json", schema if isinstance(schema, str) else json.dumps(schema)),
}


def pattern(guided: Mapping[str, Any]) -> tuple[str, str]:
    """("regex" | "json", source text) of a `guided` setting. Raises ConfigError for any other."""
    if len(guided) != 1 or not set(guided) <= set(GRAMMARS):
        raise ConfigError(
            f"guided: {dict(guided)!r} is not one of {{'choice': [...]}}, {{'regex': ...}}, {{'json': "
            f"schema}}"
        )
    ((kind, value),) = guided.items()
    return GRAMMARS[kind](value)


@lru_cache(maxsize=256)
def compiled(kind: str, source: str, tokenizer: Any, vocab_size: int) -> Any:
    """xgrammar's compiled grammar for this tokenizer. Raises ConfigError if xgrammar is missing or refuses
    the source."""
    try:
        import xgrammar
    except ImportError:
        raise ConfigError(
            "sampling.guided needs xgrammar; `pip install xgrammar`, or remove `guided`"
        ) from None
    info = xgrammar.TokenizerInfo.from_huggingface(
        tokenizer, vocab_size=vocab_size, stop_token_ids=[tokenizer.eos_token_id]
    )
    compiler = xgrammar.GrammarCompiler(info)
    try:
        return compiler.compile_regex(source) if kind == "regex" else compiler.compile_json_schema(source)
    except RuntimeError as error:
        raise ConfigError(f"guided.{kind}: {source!r} is refused by xgrammar: {error}") from None


class GuidedProcessor:
    """The logits processor of one completion. Edge: after a prefix outside the language only EOS is
    allowed."""

    def __init__(self, grammar: Any, eos_id: int) -> None:
        import xgrammar

        self.xgrammar = xgrammar
        self.matcher = xgrammar.GrammarMatcher(grammar)
        self.eos_id, self.read, self.left_language = eos_id, 0, False

    def __call__(self, ids: Sequence[int], logits_V: Tensor) -> Tensor:
        for token in ids[self.read :]:
            self.left_language = (
                self.left_language or self.matcher.is_terminated() or not self.matcher.accept_token(token)
            )
        self.read = len(ids)
        if self.left_language or self.matcher.is_terminated():
            eos_only_V = logits_V.new_full(logits_V.shape, float("-inf"))
            eos_only_V[self.eos_id] = 0.0
            return eos_only_V
        mask = self.xgrammar.allocate_token_bitmask(1, logits_V.shape[-1])
        self.matcher.fill_next_token_bitmask(mask)
        out_1V = logits_V.clone().unsqueeze(0)
        self.xgrammar.apply_token_bitmask_inplace(out_1V, mask.to(logits_V.device))
        return out_1V[0]


def processor_for(guided: Mapping[str, Any], lm: SamplingModel) -> GuidedProcessor:
    """A new logits processor for one completion."""
    return GuidedProcessor(compiled(*pattern(guided), lm.tokenizer, lm.vocab_size), lm.tokenizer.eos_token_id)

"""Guided decoding: only tokens that keep a completion inside a choice, a regular expression or a JSON schema can be drawn (xgrammar)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from torch import Tensor

from vlrl.registry import ConfigError


def pattern(guided: Mapping[str, Any]) -> tuple[str, str]:
    """("regex" | "json", source text) of a `guided` setting. Raises ConfigError for any other."""
    makers = {
        "choice": lambda options: ("regex", "|".join(re.escape(str(option)) for option in options)),
        "regex": lambda source: ("regex", source),
        "json": lambda schema: ("json", schema if isinstance(schema, str) else json.dumps(schema)),
    }
    if len(guided) != 1 or not set(guided) <= set(makers):
        raise ConfigError(f"guided: {dict(guided)!r} is not one of {{'choice': [...]}}, {{'regex': ...}}, {{'json': schema}}")
    ((kind, value),) = guided.items()
    return makers[kind](value)


@lru_cache(maxsize=256)
def compiled(kind: str, source: str, tokenizer: Any, vocabulary: int) -> Any:
    """xgrammar's compiled grammar for this tokenizer. Raises ConfigError where xgrammar is missing or refuses the source."""
    try:
        import xgrammar
    except ImportError:
        raise ConfigError("decode.guided needs xgrammar; `pip install xgrammar`, or drop `guided`") from None
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocabulary, stop_token_ids=[tokenizer.eos_token_id])
    compiler = xgrammar.GrammarCompiler(info)
    try:
        return compiler.compile_regex(source) if kind == "regex" else compiler.compile_json_schema(source)
    except RuntimeError as error:
        raise ConfigError(f"guided.{kind}: {source!r} is refused by xgrammar: {error}") from None


class Guide:
    """A logits processor with the state of one completion. Edge: a prefix that leaves the language ends the completion (only EOS is allowed)."""

    def __init__(self, grammar: Any, eos_id: int):
        import xgrammar

        self.xgrammar = xgrammar
        self.matcher = xgrammar.GrammarMatcher(grammar)
        self.eos_id, self.read, self.lost = eos_id, 0, False

    def __call__(self, ids: Sequence[int], logits_V: Tensor) -> Tensor:
        for token in ids[self.read :]:
            self.lost = self.lost or self.matcher.is_terminated() or not self.matcher.accept_token(token)
        self.read = len(ids)
        if self.lost or self.matcher.is_terminated():
            only_V = logits_V.new_full(logits_V.shape, float("-inf"))
            only_V[self.eos_id] = 0.0
            return only_V
        mask = self.xgrammar.allocate_token_bitmask(1, logits_V.shape[-1])
        self.matcher.fill_next_token_bitmask(mask)
        out_1V = logits_V.clone().unsqueeze(0)
        self.xgrammar.apply_token_bitmask_inplace(out_1V, mask.to(logits_V.device))
        return out_1V[0]


def processor_for(guided: Mapping[str, Any], lm: Any) -> Guide:
    """A fresh guide for one completion."""
    return Guide(compiled(*pattern(guided), lm.tokenizer, lm.vocabulary), lm.tokenizer.eos_token_id)

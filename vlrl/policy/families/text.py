"""Text-only causal language models (Qwen2, Qwen3, Llama and others that `AutoModelForCausalLM` loads with
rotary positions)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import ConfigError, register
from vlrl.policy.costs import DECODER_QK_NORM, SavedTensors
from vlrl.policy.encoded import Features
from vlrl.policy.family import Family
from vlrl.policy.tiny import Tiny, qwen_tokenizer
from vlrl.types import Media

KINDS = ("qwen2", "qwen3", "llama")


@register("text")
@dataclass(frozen=True, kw_only=True)
class Text(Family):
    """A causal language model without media. `tiny.kind` is "qwen2" (default), "qwen3" or "llama"."""

    is_multimodal: ClassVar[bool] = False
    saved_tensors: ClassVar[Mapping[str, SavedTensors]] = {"qwen3": DECODER_QK_NORM}

    def build(self, tiny: Tiny) -> tuple[Any, Any]:
        from transformers import AutoConfig, AutoModelForCausalLM

        kind = tiny.kind or "qwen2"
        if kind not in KINDS:
            raise ConfigError(f"policy.tiny.kind: {kind!r} is not one of {', '.join(KINDS)}")
        tokenizer = qwen_tokenizer(tiny.vocabulary)
        config = AutoConfig.for_model(kind, **tiny.text(tokenizer), head_dim=tiny.hidden // tiny.heads)
        attention = {"attn_implementation": self.attn_implementation}
        return AutoModelForCausalLM.from_config(config, **attention), tokenizer

    def process(self, processor: Any, medium: Media, single_image: bool = True) -> Features:
        raise ConfigError(
            f"policy: {self.name!r} reads no {medium.kind}s; use a vision family, or rows without media"
        )

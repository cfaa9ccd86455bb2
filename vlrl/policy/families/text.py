"""Text-only causal language models (Qwen2, Qwen3, Llama and others that `AutoModelForCausalLM` loads with
rotary positions)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlrl.config.model_folder import located
from vlrl.plugins.registry import ConfigError, register
from vlrl.policy.encoded import Features
from vlrl.policy.family import Family, quantization
from vlrl.policy.tiny import Tiny, qwen_tokenizer
from vlrl.types import Media

KINDS = ("qwen2", "qwen3", "llama")


@register("text")
@dataclass(frozen=True, kw_only=True)
class Text(Family):
    """A causal language model without media. `tiny.kind` is "qwen2" (default), "qwen3" or "llama"."""

    is_multimodal = False

    def load(self) -> tuple[Any, Any]:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        options, folder = {"revision": self.revision}, located(self.model)
        precision = {
            "dtype": self.load_dtype,
            "attn_implementation": self.attn_implementation,
            **quantization(self),
        }
        model = AutoModelForCausalLM.from_pretrained(folder, **precision, **options)
        return model, AutoTokenizer.from_pretrained(folder, **options)

    def build(self, tiny: Tiny) -> tuple[Any, Any]:
        from transformers import AutoConfig, AutoModelForCausalLM

        kind = tiny.kind or "qwen2"
        if kind not in KINDS:
            raise ConfigError(f"policy.tiny.kind: {kind!r} is not one of {', '.join(KINDS)}")
        tokenizer = qwen_tokenizer(tiny.vocabulary)
        config = AutoConfig.for_model(kind, **tiny.text(tokenizer), head_dim=tiny.hidden // tiny.heads)
        return AutoModelForCausalLM.from_config(
            config, attn_implementation=self.attn_implementation
        ), tokenizer

    def process(self, processor: Any, medium: Media, single_image: bool = True) -> Features:
        raise ConfigError(
            f"policy: {self.name!r} reads no {medium.kind}s; use a vision family, or rows without media"
        )

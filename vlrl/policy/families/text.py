"""Text-only causal language models (Qwen2, Qwen3, Llama, Qwen3-MoE, Qwen3-Next, Qwen3.5 and others that
`AutoModelForCausalLM` loads with rotary positions)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.registry import ConfigError, register
from vlrl.policy.costs import DECODER_QK_NORM, SavedTensors
from vlrl.policy.encoded import Features
from vlrl.policy.family import Family
from vlrl.policy.recurrent import with_memory
from vlrl.policy.tiny import Tiny, qwen_tokenizer
from vlrl.types import Media

# model types of tiny models: what their configs have beside `Tiny.text`
KINDS: dict[str, Callable[[Tiny], Mapping[str, Any]]] = {
    "qwen2": lambda tiny: {},
    "qwen3": lambda tiny: {},
    "llama": lambda tiny: {},
    "qwen3_moe": lambda tiny: tiny.mixture(),
    "qwen3_next": lambda tiny: {
        **tiny.mixture(),
        **tiny.delta_rule(),
        "shared_expert_intermediate_size": tiny.intermediate // 2,
    },
    "qwen3_5_text": lambda tiny: tiny.delta_rule(),
}


@register("text")
@dataclass(frozen=True, kw_only=True)
class Text(Family):
    """A causal language model without media. `tiny.kind` is one of `KINDS`, "qwen2" by default."""

    is_multimodal: ClassVar[bool] = False
    saved_tensors: ClassVar[Mapping[str, SavedTensors]] = {
        "qwen3": DECODER_QK_NORM,
        "qwen3_moe": DECODER_QK_NORM,
        "qwen3_next": DECODER_QK_NORM,
    }

    def build(self, tiny: Tiny) -> tuple[Any, Any]:
        from transformers import AutoConfig, AutoModelForCausalLM

        kind = tiny.kind or "qwen2"
        if kind not in KINDS:
            raise ConfigError(f"policy.tiny.kind: {kind!r} is not one of {', '.join(KINDS)}")
        tokenizer = qwen_tokenizer(tiny.vocabulary)
        sizes = {"head_dim": tiny.hidden // tiny.heads, **tiny.text(tokenizer), **KINDS[kind](tiny)}
        config = AutoConfig.for_model(kind, **sizes)
        attention = {"attn_implementation": self.attn_implementation}
        return with_memory(AutoModelForCausalLM.from_config(config, **attention)), tokenizer

    def process(self, processor: Any, medium: Media, single_image: bool = True) -> Features:
        raise ConfigError(
            f"policy: {self.name!r} reads no {medium.kind}s; use a vision family, or rows without media"
        )

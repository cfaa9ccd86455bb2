"""A model family: how to load or build it, encode its prompts, place its tokens, and run it. One small file per family in `families/`.

Shape legend: B rows, L tokens of a row, A rotary axes, H hidden size, V vocabulary, N completion tokens.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from vlrl.policy.encoded import Features, Seen
from vlrl.policy.packing import Layout, block_mask, may_attend
from vlrl.policy.tiny import Tiny
from vlrl.registry import ConfigError
from vlrl.stages import Stage

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from vlrl.types import Media

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Family(Stage):
    """What is common to all families.

    `model` is a hub id or a folder; without it `tiny` says how small a random model to build. `min_pixels` / `max_pixels` bound a picture, and
    `video_max_pixels` a video frame, after the processor's resize. `layout` "packed" runs a group as one sequence (the prompt once),
    "padded" every rollout with a prompt of its own. `checkpointing` recomputes activations in the backward pass. `cache_mb` is what processed
    media may take. `dtype` is what matrix products are taken in; `masters` keeps the weights that are trained in float32 all the same (without,
    updates below half a unit in the last place are lost: nearly all of a bfloat16's at a learning rate of 1e-6). `attn` is the attention kernel:
    "sdpa", "flex" (block masks, CUDA), "eager", "flash_attention_2".
    """

    kind: ClassVar[str] = "family"
    home: ClassVar[str] = "vlrl.policy.families"
    packs: ClassVar[bool] = True  # False: packing cannot hold for this family, the padded layout is used, with a warning
    sees: ClassVar[bool] = True  # has a vision tower
    minds_company: ClassVar[bool] = False  # True: a picture is processed differently where its prompt shows several
    model: str = ""
    revision: str = "main"
    tiny: Tiny | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    masters: bool = True
    layout: Literal["packed", "padded"] = "packed"
    attn: Literal["sdpa", "flex", "eager", "flash_attention_2"] = "sdpa"
    min_pixels: int | None = None
    max_pixels: int | None = None
    video_max_pixels: int | None = None
    checkpointing: bool = False
    cache_mb: int = 1024
    chunk: int = 1024  # completion tokens whose logits are alive at a time
    chat_template: str = ""  # a Jinja template that replaces the model's own
    quantize: Literal["", "nf4", "int8"] = ""  # frozen weights in 4 or 8 bits, for adapters (needs bitsandbytes and a GPU)

    def __post_init__(self) -> None:
        if self.attn == "flex" and not torch.cuda.is_available():
            raise ConfigError("policy.attn: 'flex' needs a CUDA device; use 'sdpa'")
        if self.attn == "flash_attention_2" and self.layout == "packed":
            raise ConfigError("policy.attn: 'flash_attention_2' has no mask for packed groups; use 'flex' or 'sdpa', or layout: padded")
        if self.quantize and not self.model:
            raise ConfigError("policy.quantize: only loaded models can be quantised; set `model`, or leave it out")
        if not self.model and self.tiny is None:
            raise ConfigError(f"policy: {self.name!r} needs `model` (a hub id or a folder) or `tiny` (sizes of a random model)")

    # --- making it ------------------------------------------------------------------------------------------------------------------

    @property
    def stored(self) -> torch.dtype:
        """What `model` is loaded in: a run's own checkpoint as it was trained, others in `dtype`."""
        return torch.float32 if self.masters and self.model and (Path(self.model) / "trainer").is_dir() else DTYPES[self.dtype]

    @property
    def kernel(self) -> str:
        """What a model is made with: `attn`, where block masks are for language models alone (`adopt`)."""
        return "sdpa" if self.attn == "flex" else self.attn

    def adopt(self, model: PreTrainedModel) -> None:
        """Let the language model attend by block masks, where `attn` says so. Transformers refuses that for whole models of the Qwen-VL
        families, whose vision towers cannot; their language models can."""
        if self.attn == "flex":
            model.config.get_text_config()._attn_implementation = "flex_attention"

    def bound(self, processor: Any) -> None:
        """Put pixel bounds into a processor."""

    @abstractmethod
    def load(self) -> tuple[PreTrainedModel, Any]:
        """(model, processor) of `self.model`. The processor of a text family is its tokenizer."""

    @abstractmethod
    def build(self, tiny: Tiny) -> tuple[PreTrainedModel, Any]:
        """(model, processor) with random weights, without any download."""

    # --- prompts --------------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def process(self, processor: Any, medium: Media, alone: bool = True) -> Features:
        """Decode and process one picture or video; `alone` says that its prompt shows no other picture."""

    def placeholders(self, processor: Any) -> dict[str, str]:
        """The text that the chat template writes for a medium, by kind; `process` says which ids it becomes."""
        return {}

    def batched(self, images: list[Any]) -> list[Any]:
        """The pictures (or videos) of one prompt as the processor takes them."""
        return images

    def forbidden(self, processor: Any) -> set[int]:
        """Ids that may never be sampled: they stand for media."""
        return set()

    def slot(self, kind: str) -> str:
        """The token that one vision embedding of a medium that the model takes for `kind` replaces."""
        return ""

    def positions(self, model: nn.Module, ids: list[int], types: list[int], features: Sequence[Features]) -> tuple[Tensor, int]:
        """Rotary positions of a prompt, (L,) or (A, L), and the position of the first completion token (then + 1 per token)."""
        return torch.arange(len(ids)), len(ids)

    # --- running it -----------------------------------------------------------------------------------------------------------------

    def look(self, model: nn.Module, features: Sequence[Features]) -> list[Seen]:
        """Run the vision tower once over these media (of any kinds)."""
        raise ConfigError(f"policy: {self.name!r} reads no pictures; use a vision family, or rows without media")

    def masks(self, model: nn.Module, layout: Layout) -> Any:
        """What `hidden` takes as `mask` for these rows."""
        text = base(model).config.get_text_config()
        kinds = getattr(text, "layer_types", None)
        see = block_mask if self.attn == "flex" else may_attend
        full = see(layout.order_RL, layout.segment_RL) if layout.branches else None
        if kinds is None:  # such models take a single mask
            return full
        windowed = {"sliding_attention": see(layout.order_RL, layout.segment_RL, text.sliding_window)} if "sliding_attention" in kinds else {}
        return {"full_attention": full, **windowed}

    def hidden(self, model: nn.Module, ids_BL: Tensor, positions: Tensor, mask: Any = None, seen: Sequence[Seen] = (), kinds: Sequence[str] = (),
               **kwargs: Any) -> tuple[Tensor, Any]:  # fmt: skip
        """Last hidden states (B, L, H), and the KV cache (None unless `use_cache=True` or `past_key_values` is given).

        `positions` is (B, L) or (A, B, L). `mask` is None (causal), (B, past + L) ones and zeros, or what `masks` returns. `seen` are the media of
        the rows, row by row in order, `kinds` their kinds: one entry for each time a picture stands in `ids_BL`.
        """
        if seen:
            kwargs["mm_encoder_outputs"] = {
                kind: self.outputs(model, kind, [s for s, k in zip(seen, kinds) if k == kind]) for kind in sorted(set(kinds))
            }
        kwargs.setdefault("use_cache", kwargs.get("past_key_values") is not None)
        out = base(model).model(input_ids=ids_BL, position_ids=positions, attention_mask=mask, **kwargs)
        return out.last_hidden_state, out.past_key_values

    def outputs(self, model: nn.Module, kind: str, seen: Sequence[Seen]) -> Any:
        """Media as the model's own forward takes them when they are computed already."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        return BaseModelOutputWithPooling(pooler_output=tuple(s.embeds_NH for s in seen))

    def logits(self, model: nn.Module, hidden: Tensor) -> Tensor:
        """(..., H) -> (..., V), scaled and capped where the architecture says so (Granite, Cohere, Gemma 2)."""
        logits, text = base(model).get_output_embeddings()(hidden), base(model).config.get_text_config()
        scale = (getattr(text, "logit_scale", None) or 1.0) / (getattr(text, "logits_scaling", None) or 1.0)
        logits = logits if scale == 1 else logits * scale
        cap = getattr(text, "final_logit_softcapping", None)
        return logits if cap is None else cap * (logits / cap).tanh()


def linear_cost(text: Any) -> float:
    """What a token costs in a layer's products, counted in pairs of tokens that meet in its attention (a layer's weights / 2 H of its heads)."""
    heads = text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    keys = getattr(text, "num_key_value_heads", None) or heads
    weights = text.hidden_size * (2 * (heads + keys) * size + 3 * text.intermediate_size)
    return weights / (2 * heads * size)


def base(model: nn.Module) -> Any:
    """The plain transformers model inside DDP, DeepSpeed, FSDP or PEFT wrappers."""
    while True:
        if hasattr(model, "get_base_model"):
            model = model.get_base_model()  # type: ignore[operator]
        elif hasattr(model, "module") and isinstance(model.module, nn.Module) and not hasattr(model, "get_output_embeddings"):
            model = model.module
        else:
            return model


def quantization(family: Family) -> dict[str, Any]:
    """The loader's options for a family's quantised weights. Raises ConfigError without bitsandbytes."""
    if not family.quantize:
        return {}
    from importlib.util import find_spec

    from transformers import BitsAndBytesConfig

    if find_spec("bitsandbytes") is None:
        raise ConfigError(f"policy.quantize: {family.quantize!r} needs bitsandbytes; `pip install bitsandbytes`, or leave it out")
    four = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": DTYPES[family.dtype]}
    return {"quantization_config": BitsAndBytesConfig(**(four if family.quantize == "nf4" else {"load_in_8bit": True}))}

"""A model family: how to load or build a model, process its media, compute its positions and run it.

One file per family in `families/` says all that is special to it; what is not overridden reads the
processor's and the model's own configs. `Family` is the contract, `families.vision.VisionFamily` its base for
models with a vision tower.

Shape legend: B rows, L tokens of a row, A rotary axes, H hidden size, V vocabulary, N completion tokens.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vlrl.config.model_folder import check_model, config_of, located, parts_beside_text
from vlrl.plugins.registry import ConfigError, get, names
from vlrl.plugins.stages import Stage
from vlrl.policy.costs import PictureCost, SavedTensors
from vlrl.policy.encoded import Features, MediaEmbeds
from vlrl.policy.packing import Layout, block_mask, dense_mask, image_runs
from vlrl.policy.tiny import Tiny
from vlrl.services.lazy import Tensor, nn, torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from vlrl.types import Media


@dataclass(frozen=True, kw_only=True)
class Family(Stage):
    """The config of a policy's model, and the interface of all model families. A bound that the family's
    processor cannot keep is refused.

    Attributes:
        model: A hub id or a folder; without it, `tiny` gives the sizes of a random model.
        max_pixels, min_pixels: Bounds on the pixels of a picture that the vision tower sees, all tiles
            together; `video_max_pixels`: those of a frame.
        layout: "packed" runs a group as one sequence (the prompt once), "padded" every rollout with its own
            prompt.
        checkpointing: Recomputes activations in the backward pass.
        dtype: Type of matrix products.
        fp32_master_weights: Keeps trained weights in float32 beside it: without, updates below half a unit in
            the last place are lost, nearly all of a bfloat16's at a learning rate of 1e-6.
    """

    kind: ClassVar[str] = "family"
    home: ClassVar[str] = "vlrl.policy.families"
    auto_model: ClassVar[str] = "AutoModelForCausalLM"  # transformers' classes that load model and processor
    auto_processor: ClassVar[str] = "AutoTokenizer"
    model_types: ClassVar[tuple[str, ...]] = ()  # further ones that the family reads, beside its name
    supports_packing: ClassVar[bool] = True  # False: the padded layout is used, with a warning
    is_multimodal: ClassVar[bool] = True  # has a vision tower
    # True: an image is processed differently if its prompt shows several
    multi_image_sensitive: ClassVar[bool] = False
    # True: the tokens of an image attend to each other in both directions
    bidirectional_images: ClassVar[bool] = False
    # "module:function" that vLLM's workers call with their model, so that it computes what the trainer's does
    engine_patch: ClassVar[str] = ""
    # True: a token whose embedding is zero has no gradient, so rows are not filled up with the padding token
    fills_with_eos: ClassVar[bool] = False
    # why engines that run vLLM refuse the family: what differs there from the trainer
    vllm_problem: ClassVar[str] = ""
    projects_sounds: ClassVar[bool] = False  # a sound's tower has a projector beside it, as a picture's has
    vllm_video_problem: ClassVar[str] = ""  # the same, of rows that show a video
    no_sequence_parallel: ClassVar[str] = ""  # why its rows cannot be cut into slices over ranks, if so
    # of layers, by transformers' model type; a decoder is as Llama's, a tower as SigLIP's without an entry
    saved_tensors: ClassVar[Mapping[str, SavedTensors]] = {}
    model: str = ""
    revision: str = "main"
    tiny: Tiny | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    fp32_master_weights: bool = True
    layout: Literal["packed", "padded"] = "packed"
    # the attention: "flex" (block masks) needs CUDA, "flash_attention_2" the padded layout
    attn: Literal["sdpa", "flex", "eager", "flash_attention_2"] = "sdpa"
    min_pixels: int | None = None
    max_pixels: int | None = None
    video_max_pixels: int | None = None
    checkpointing: bool = False
    router_replay: bool = (
        False  # training takes the experts that engine `hf` chose (`vlrl/policy/routing.py`)
    )
    cache_mb: int = 1024  # cache of processed media
    embeds_mb: int = 512  # cache of their embeddings by a frozen vision tower (0: none)
    chunk: int = 1024  # completion tokens whose logits are in memory at a time
    # the model's special tokens in the text of rows, tools and other rollouts: "escape" writes them with a
    # space after their first character in prompts, and as ordinary tokens in demonstrations; "refuse" puts
    # such rows into quarantine, and escapes other texts
    special_tokens: Literal["escape", "refuse"] = "escape"
    chat_template: str = ""  # a Jinja template that replaces the model's own
    # frozen weights in 4 or 8 bits, for adapters (needs bitsandbytes and a GPU)
    quantize: Literal["", "nf4", "int8"] = ""

    def __post_init__(self) -> None:
        if self.attn == "flex" and not torch.cuda.is_available():
            raise ConfigError("policy.attn: 'flex' needs a CUDA device; use 'sdpa'")
        if self.attn == "flash_attention_2" and self.layout == "packed":
            raise ConfigError(
                "policy.attn: 'flash_attention_2' has no mask for packed groups; use 'flex' or 'sdpa', or "
                "layout: padded"
            )
        if self.quantize and not self.model:
            raise ConfigError(
                "policy.quantize: only loaded models can be quantised; set `model`, or leave it out"
            )
        if not self.model and self.tiny is None:
            raise ConfigError(
                f"policy: {self.name!r} needs `model` (a hub id or a folder) or `tiny` (sizes of a random "
                "model)"
            )
        for field in ("max_pixels", "video_max_pixels"):
            most = getattr(self, field)
            if most is not None and (self.min_pixels or 1) > most:
                raise ConfigError(
                    f"policy.{field}: {most} is below min_pixels, {self.min_pixels or 1}; raise it, or lower "
                    "min_pixels"
                )
        check_model(self.model, self.is_multimodal)
        self.check_config(config_of(self.model))

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Raise ConfigError for a model whose config.json (`config`) is of a type that the family does not
        read."""
        held = config.get("model_type")
        if not held or held in (self.name, *self.model_types):
            return
        wanted = family_of(config, f"policy.model: {self.model!r}")
        if wanted != self.name:
            raise ConfigError(
                f"policy.model: {self.model!r} holds a model of type {held!r}, which family {self.name!r} "
                f"does not read; set policy.name={wanted}"
            )

    # --- loading --------------------------------------------------------------------------------------------

    @property
    def compute_dtype(self) -> torch.dtype:
        """The type of matrix products."""
        return getattr(torch, self.dtype)

    @property
    def load_dtype(self) -> torch.dtype:
        """The type that `model` is loaded in: float32 for a run's own checkpoint (its master weights),
        `dtype` for others."""
        whole = self.fp32_master_weights and self.is_own_checkpoint
        return torch.float32 if whole else self.compute_dtype

    @property
    def is_own_checkpoint(self) -> bool:
        """Whether `model` is a run's checkpoint, with the trainer's state beside the weights."""
        return bool(self.model) and (Path(self.model) / "trainer").is_dir()

    @property
    def attn_implementation(self) -> str:
        """The transformers attention implementation that the model is created with; "flex" is set later, on
        the language model alone."""
        return "sdpa" if self.attn == "flex" else self.attn

    def autocast(self, device: torch.device) -> AbstractContextManager:
        """Matrix products in `dtype`, sums and norms in float32, whatever type the weights are stored in."""
        if self.compute_dtype == torch.float32:
            return nullcontext()
        return torch.autocast(device.type, self.compute_dtype)

    def load(self) -> tuple[PreTrainedModel, Any]:
        """(model, processor) of `self.model`. The processor of a text family is its tokenizer."""
        import transformers

        folder, revision = located(self.model), self.revision
        self.check_config(transformers.PreTrainedConfig.get_config_dict(folder, revision=revision)[0])
        precision = {"dtype": self.load_dtype, "attn_implementation": self.attn_implementation}
        model = getattr(transformers, self.auto_model).from_pretrained(
            folder, revision=revision, **precision, **quantization(self)
        )
        return model, getattr(transformers, self.auto_processor).from_pretrained(folder, revision=revision)

    @abstractmethod
    def build(self, tiny: Tiny) -> tuple[PreTrainedModel, Any]:
        """(model, processor) with random weights, without any download."""

    def limit_pixels(self, processor: Any, config: Any) -> None:
        """Set `min_pixels`, `max_pixels` and `video_max_pixels` in a processor, so that a saved folder keeps
        them, and in the model's config where that repeats them. Raises ConfigError for a bound that the
        processor cannot keep."""
        for field in ("min_pixels", "max_pixels", "video_max_pixels"):
            if getattr(self, field) is not None:
                raise ConfigError(f"policy.{field}: {self.name!r} reads no pictures; leave it out")

    def picture_cost(self, processor: Any, config: Any, width: int, height: int) -> PictureCost:
        """What a picture of `width` x `height` pixels costs, without processing one."""
        return PictureCost()

    @property
    def slices_problem(self) -> str:
        """Why rows cannot be cut into slices over ranks (`sequence_parallel`), with the fix; "" where they
        can."""
        if self.no_sequence_parallel:
            return f"policy: {self.name!r} {self.no_sequence_parallel}; use another family"
        if self.attn not in ("sdpa", "flex"):
            return f"policy.attn: {self.attn!r} does not run over slices of rows; use 'sdpa', on a GPU 'flex'"
        return ""

    # --- prompts --------------------------------------------------------------------------------------------

    @abstractmethod
    def process(self, processor: Any, medium: Media, single_image: bool = True) -> Features:
        """Decode and process one image or video. `single_image`: its prompt shows no other image."""

    def placeholders(self, processor: Any) -> dict[str, str]:
        """The text that the chat template writes for a medium, by kind; `process` expands it."""
        return {}

    def numbered(self, processor: Any, features: Features, number: int) -> str:
        """The text of a medium in its prompt, where it is the `number`-th of its kind (from 0)."""
        return features.text

    def processor_batch(self, media: list[Any]) -> list[Any]:
        """The images (or videos) of one prompt in the nesting that the processor expects."""
        return media

    def forbidden_ids(self, processor: Any) -> set[int]:
        """Token ids that stand for media and may never be sampled."""
        return set()

    def embed_token_of(self, kind: str) -> str:
        """The token that stands for one vision embedding of a medium of `kind`."""
        return ""

    def positions(
        self, model: nn.Module, ids: list[int], types: list[int], features: Sequence[Features]
    ) -> tuple[Tensor, int]:
        """Rotary positions of a prompt, (L,) or (A, L), and the position of the first completion token (then
        + 1 per token)."""
        return torch.arange(len(ids)), len(ids)

    # --- forward --------------------------------------------------------------------------------------------

    def encode_media(self, model: nn.Module, features: Sequence[Features]) -> list[MediaEmbeds]:
        """The vision tower's output for these media (of any kinds), each computed once."""
        raise ConfigError(
            f"policy: {self.name!r} reads no images; use a vision family, or rows without media"
        )

    def masks(self, model: nn.Module, layout: Layout) -> Any:
        """The attention masks of these rows: the `mask` argument of `hidden`."""
        text = base(model).config.get_text_config()
        kinds = getattr(text, "layer_types", None)
        make_mask = block_mask if self.attn == "flex" else dense_mask
        images_RL = image_runs(layout.types_RL) if self.bidirectional_images else None
        causal = not layout.is_tree and images_RL is None
        full = None if causal else make_mask(layout.order_RL, layout.subtree_end_RL, None, images_RL)
        if kinds is None:  # such models take a single mask
            return full
        masks = {"full_attention": full}
        if "sliding_attention" in kinds:
            window = text.sliding_window
            masks["sliding_attention"] = make_mask(layout.order_RL, layout.subtree_end_RL, window, images_RL)
        return dict.fromkeys(kinds) | masks  # recurrent layers take none

    def hidden(
        self,
        model: nn.Module,
        ids_BL: Tensor,
        positions: Tensor,
        mask: Any = None,
        embeds: Sequence[MediaEmbeds] = (),
        kinds: Sequence[str] = (),
        **kwargs: Any,
    ) -> tuple[Tensor, Any]:
        """Last hidden states (B, L, H), and the KV cache (None unless `use_cache=True` or `past_key_values`
        is given).

        Args: `positions` is (B, L) or (A, B, L). `mask` is None (causal), (B, past + L) ones and zeros, or
        the result of `masks`. `embeds` are the media of the rows, row by row in order, `kinds` their kinds:
        one entry for each time a medium stands in `ids_BL`.
        """
        if embeds:
            kwargs["mm_encoder_outputs"] = {
                kind: self.encoder_outputs(model, kind, [e for e, k in zip(embeds, kinds) if k == kind])
                for kind in sorted(set(kinds))
            }
        kwargs.setdefault("use_cache", kwargs.get("past_key_values") is not None)
        out = base(model).model(input_ids=ids_BL, position_ids=positions, attention_mask=mask, **kwargs)
        return out.last_hidden_state, out.past_key_values

    def encoder_outputs(self, model: nn.Module, kind: str, embeds: Sequence[MediaEmbeds]) -> Any:
        """Precomputed media embeddings in the form that the model's forward takes as `mm_encoder_outputs`."""
        return pooled_output(tuple(e.embeds_NH for e in embeds))

    def logits(self, model: nn.Module, hidden: Tensor) -> Tensor:
        """(..., H) -> (..., V), scaled and soft-capped if the architecture does so (Granite, Cohere, Gemma
        2)."""
        logits, (scale, cap) = base(model).get_output_embeddings()(hidden), logit_rule(model)
        logits = logits if scale == 1 else logits * scale
        return logits if cap is None else cap * (logits / cap).tanh()


def family_of(config: Mapping[str, Any], where: str) -> str:
    """The family that reads a model with this config.json: that of its type, else "text" for a language
    model. Raises ConfigError, about `where`, for a model with parts that no family reads."""
    held = config.get("model_type", "")
    families: dict[str, Any] = {name: get(Family, name) for name in names(Family)}
    for name, family in families.items():
        if held in (name, *family.model_types):
            return name
    if lost := parts_beside_text(config):
        known = ", ".join(name for name, family in families.items() if family.is_multimodal)
        raise ConfigError(
            f"{where} holds a model of type {held!r}, which no family reads, and 'text' would train it "
            f"without its other parts ({', '.join(lost)}); use a model of one of these types: {known}; or a "
            "language model"
        )
    return "text"


def logit_rule(model: nn.Module) -> tuple[float, float | None]:
    """(factor, cap or None) of the logits, as the architecture has it."""
    text = base(model).config.get_text_config()
    scale = (getattr(text, "logit_scale", None) or 1.0) / (getattr(text, "logits_scaling", None) or 1.0)
    return scale, getattr(text, "final_logit_softcapping", None)


def no_mask(model: nn.Module) -> Any:
    """A mask that transformers passes on without building its own, for attention functions that mask by
    themselves.

    A dict by kind of layer or a 4-D mask, whichever the model takes.
    """
    kinds = getattr(base(model).config.get_text_config(), "layer_types", None)
    if kinds:
        return dict.fromkeys({"full_attention", *kinds})
    return torch.zeros(1, 1, 1, 1, device=next(model.parameters()).device)


def forbidden_ids(family: Family, model: nn.Module, processor: Any) -> tuple[int, ...]:
    """Ids that the policy gives probability 0, in ascending order: those that stand for media, and the rows
    of the output layer beyond the tokenizer.

    Released models pad the vocabulary to a round number of rows (Qwen2.5: 151,665 tokens, 151,936 rows). Such
    a row decodes to nothing, and no text encodes to it.
    """
    known = set(getattr(processor, "tokenizer", processor).get_vocab().values())
    rows = base(model).config.get_text_config().vocab_size
    return tuple(sorted(family.forbidden_ids(processor) | (set(range(rows)) - known)))


def pooled_output(pooled: Any) -> Any:
    """Media embeddings, a tensor or a tuple of tensors, as the output of a vision tower."""
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    return BaseModelOutputWithPooling(pooler_output=pooled)


def linear_cost(text: Any) -> float:
    """Cost of a token in a layer's matrix products, in units of one attention pair: the layer's weights / (2
    heads * head size)."""
    heads, first = text.num_attention_heads, text.per_layer_config[0]
    size = getattr(first, "head_dim", None) or text.hidden_size // heads
    keys = getattr(first, "num_key_value_heads", None) or heads
    weights = text.hidden_size * (2 * (heads + keys) * size + 3 * inner_width(text))
    return weights / (2 * heads * size)


def inner_width(text: Any) -> int:
    """The width of a layer's MLP that a token goes through: in a mixture, that of its experts together."""
    each, top = getattr(text, "moe_intermediate_size", None), getattr(text, "num_experts_per_tok", None)
    if not (each and top):
        widths = text.intermediate_size
        return max(widths) if isinstance(widths, (list, tuple)) else widths  # Gemma 3n: a list, by layer
    shared = getattr(text, "shared_expert_intermediate_size", None) or each * (
        getattr(text, "n_shared_experts", None) or 0
    )
    return each * top + shared


def base(model: nn.Module) -> Any:
    """The plain transformers model inside DDP, DeepSpeed, FSDP or PEFT wrappers."""
    inner: Any = model
    while True:
        if hasattr(inner, "get_base_model"):
            inner = inner.get_base_model()
        elif (
            hasattr(inner, "module")
            and isinstance(inner.module, nn.Module)
            and not hasattr(inner, "get_output_embeddings")
        ):
            inner = inner.module
        else:
            return inner


def quantization(family: Family) -> dict[str, Any]:
    """`from_pretrained` options for a family's quantised weights. Raises ConfigError without bitsandbytes."""
    if not family.quantize:
        return {}
    if find_spec("bitsandbytes") is None:
        raise ConfigError(
            f"policy.quantize: {family.quantize!r} needs bitsandbytes; `pip install bitsandbytes`, or "
            "leave it out"
        )
    from transformers import BitsAndBytesConfig

    if family.quantize == "int8":
        return {"quantization_config": BitsAndBytesConfig(load_in_8bit=True)}
    four = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=family.compute_dtype,
    )
    return {"quantization_config": four}

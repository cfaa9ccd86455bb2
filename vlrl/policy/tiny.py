"""Sizes, tokenizer and chat template of tiny random models: byte-level BPE trained on a few words, without
any download."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
TAGS = (
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
)  # single tokens that decoding keeps, unlike special tokens

# The text that the merges are learned from: prompts of the lab tasks stay short, other text falls back to
# bytes.
TRAINING_TEXT = """
system user assistant You are a helpful assistant. Answer the question. Give the final answer in the tags \
as a number, letter or box.
How many digits are there in the picture? Which digit is in this image? Find the digit and give its box in \
pixels. Where is it?
The picture was cut into pieces and shuffled. Say which piece is shown at each place, row by row, from the \
top left to the bottom right.
Which way does the digit move in the video? left right up down first second before after What comes first?
What is the sum of these numbers? Compute plus minus times. Think step by step, then answer. Choose one of \
these options: A B C D
Each person is a knight or a knave. A knight always tells the truth and a knave always lies. says that we \
both is not Who is what? yes no
"""

# Messages between <|im_start|> and <|im_end|>; media as pads between vision marks, as in the Qwen-VL models.
TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\n' -}}"
    "{%- if message.content is string -%}{{- message.content -}}"
    "{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif part.type == 'video' -%}{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}"
    "{%- else -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
_MEDIA = "<|vision_start|><|{kind}_pad|><|vision_end|>"

_SIZES = (
    *("hidden", "layers", "heads", "kv_heads", "intermediate", "vocabulary"),
    *("vision_hidden", "vision_layers", "vision_heads", "patch"),
)
_LARGEST = 65_536


def media_template(image: str, video: str = "") -> str:
    """`TEMPLATE` with these texts for an image and a video ("": that of `TEMPLATE`)."""
    text = TEMPLATE.replace(_MEDIA.format(kind="image"), image)
    return text.replace(_MEDIA.format(kind="video"), video) if video else text


@dataclass(frozen=True)
class Tiny:
    """Sizes of a random model. `vision_*` are ignored by text families; `seed` makes the weights."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 192
    vision_hidden: int = 64
    vision_layers: int = 2
    vision_heads: int = 4
    patch: int = 14
    vocabulary: int = 512
    rows: int = 0  # of the embedding table, if it is to be larger than the vocabulary
    tie: bool = True
    std: float = 0.02
    mrope_theta: float = 10000.0  # small images have few positions: a small base separates them
    kind: str = ""  # the architecture, for families that cover several ("qwen2", "qwen3")
    seed: int = 0

    def __post_init__(self) -> None:
        for name in _SIZES:
            if not 1 <= getattr(self, name) <= _LARGEST:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: 1 to {_LARGEST}")
        for whole, part in (("hidden", "heads"), ("heads", "kv_heads"), ("vision_hidden", "vision_heads")):
            if getattr(self, whole) % getattr(self, part):
                raise ValueError(
                    f"{whole}={getattr(self, whole)} is not a multiple of {part}={getattr(self, part)}"
                )

    def text(self, tokenizer: Any) -> dict[str, Any]:
        """The language model's part of a transformers config."""
        return {
            "vocab_size": max(self.rows, len(tokenizer)),
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": 32768,
            "initializer_range": self.std,
            "tie_word_embeddings": self.tie,
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "bos_token_id": None,
        }

    def tower(self) -> dict[str, Any]:
        """The vision tower's part of a transformers config, in the names of SigLIP."""
        return {
            "hidden_size": self.vision_hidden,
            "num_hidden_layers": self.vision_layers,
            "num_attention_heads": self.vision_heads,
            "intermediate_size": 2 * self.vision_hidden,
            "patch_size": self.patch,
        }

    def mrope(self) -> dict[str, Any]:
        """M-RoPE parameters: the axes (time, height, width) share the frequencies in the proportion 2 : 3 :
        3."""
        half = self.hidden // self.heads // 2
        side = half * 3 // 8
        return {
            "rope_type": "default",
            "rope_theta": self.mrope_theta,
            "mrope_section": [half - 2 * side, side, side],
        }


@lru_cache(maxsize=4)
def merges_of(vocabulary: int) -> tuple[dict[str, int], list[Any]]:
    """(vocab, merges) of a byte-level BPE with `vocabulary` ids, not counting special tokens."""
    import json

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TRAINING_TEXT], trainer)
    state = json.loads(tokenizer.to_str())["model"]
    return state["vocab"], [tuple(pair) for pair in state["merges"]]


def qwen_tokenizer(
    vocabulary: int, special: tuple[str, ...] = SPECIAL, template: str = TEMPLATE, **kwargs: Any
) -> Any:
    """A Qwen2 tokenizer with about `vocabulary` ids in total; each of `TAGS` is a single token."""
    from tokenizers import AddedToken
    from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

    vocab, merges = merges_of(max(256, vocabulary - len(special) - len(TAGS)))
    tokenizer: Any = Qwen2Tokenizer(
        vocab=dict(vocab), merges=list(merges), eos_token="<|im_end|>", pad_token="<|endoftext|>", **kwargs
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer.chat_template = template
    return tokenizer

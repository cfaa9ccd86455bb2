"""The families that tests/policy/test_family_contract.py holds to the contract: which tiny model, which
modalities, which tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samples import PROMPTS, policy_of

from vlrl.plugins.registry import get, names
from vlrl.policy import Family, Policy
from vlrl.policy.families.text import KINDS

VISION = [name for name in names(Family) if get(Family, name).is_multimodal]
VARIANTS = ["internvl/qwen3"]  # InternVL3.5
TEXT = [f"text/{kind}" for kind in KINDS]
FAMILIES = [*VISION, *VARIANTS, *TEXT]


def split(spec: str) -> tuple[str, str]:
    """(family, kind of the tiny model) of "family/kind"."""
    name, _, kind = spec.partition("/")
    return name, kind


def modalities(spec: str) -> tuple[str, ...]:
    """What a family's prompts may show, as keys of `PROMPTS`."""
    family: Any = get(Family, split(spec)[0])
    if not family.is_multimodal:
        return ("text",)
    lacking = {"video"} if not family.video_token else set()
    lacking |= {"audio"} if not family.audio_token else set()
    lacking |= {"all"} if lacking else set()
    return tuple(kind for kind in PROMPTS if kind not in lacking)


def tiny_policy(spec: str, layout: str = "packed", **fields: Any) -> Policy:
    """A tiny random policy of a family; `fields` beside `tiny` are those of the family."""
    name, kind = split(spec)
    tiny = {"kind": kind} | fields.pop("tiny", {})
    return policy_of(name, layout, tiny=tiny, **fields)


CASES = [(spec, modality) for spec in FAMILIES for modality in modalities(spec)]

# Where a test samples with the real vLLM and compares ids and log-probs (tests/policy/test_pixel_bounds.py).
VLLM_TESTED = (
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "internvl", "llava_onevision", "mistral3"),
    *("smolvlm", "glm4v"),
)
# What is refused in one line, and what does instead.
REFUSED = {
    "gemma3": "pictures with vLLM's CPU build (use engine `hf`, or vLLM on a GPU)",
    "gemma4": "26B and 31B, whose pictures attend in both directions in sliding layers alone (use E2B, E4B)",
    "llava_onevision": "several pictures with vLLM (use engine `hf`)",
    "kimi_k25": "video: transformers 5.19 splits what its tower has pooled",
    "qwen3_5": "`engine.lookup_tokens` (use 0); nothing of a conversation is kept between its turns",
}
REFUSED |= dict.fromkeys(
    ("qwen3_5_moe", "lfm2_vl", "minicpmv4_6", "text/qwen3_next", "text/qwen3_5_text"), REFUSED["qwen3_5"]
)
for _spec in VISION:
    if _problem := get(Family, _spec).vllm_problem:
        REFUSED[_spec] = f"engine `vllm`: {_problem} (use `hf`)"

MODELS = {
    "gemma3": "Gemma 3 4B to 27B",
    "gemma3n": "Gemma 3n E2B, E4B",
    "gemma4": "Gemma 4 E2B, E4B",
    "glm46v": "GLM-4.6V-Flash",
    "glm4v": "GLM-4.1V-Thinking",
    "glm4v_moe": "GLM-4.5V, GLM-4.6V",
    "internvl": "InternVL 2.5, 3",
    "internvl/qwen3": "InternVL3.5",
    "kimi_k25": "Kimi K2.5",
    "lfm2_vl": "LFM2-VL",
    "llava_onevision": "LLaVA-OneVision",
    "minicpmv4_6": "MiniCPM-V 4.6",
    "mistral3": "Mistral Small 3.1, 3.2 (Pixtral's tower)",
    "ovis2": "Ovis2",
    "qwen2_5_omni": "Qwen2.5-Omni, its thinker",
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen2_vl": "Qwen2-VL",
    "qwen3_5": "Qwen3.5, 3.6, dense",
    "qwen3_5_moe": "Qwen3.5 35B-A3B and larger",
    "qwen3_omni_moe": "Qwen3-Omni 30B-A3B, its thinker",
    "qwen3_vl": "Qwen3-VL, dense",
    "qwen3_vl_moe": "Qwen3-VL 30B-A3B, 235B-A22B",
    "smolvlm": "SmolVLM2, Idefics3",
    "text/qwen2": "Qwen2, Qwen2.5",
    "text/qwen3": "Qwen3, dense",
    "text/llama": "Llama, SmolLM2",
    "text/qwen3_moe": "Qwen3 30B-A3B, 235B-A22B",
    "text/qwen3_next": "Qwen3-Next 80B-A3B",
    "text/qwen3_5_text": "Qwen3.5 without its tower",
}
HEAD = """# Models

Made by `scripts/make_models_doc.py` from the cases of `tests/policy/test_family_contract.py`; do not edit.

A family is one class (`vlrl/policy/families/`). The contract is run over every family with a tiny random
model: packed and padded rows and plain transformers have the same log-probs (1e-5 in float32) and gradients;
ids and types are the processor's own; several pictures of three sizes, video, sound, text, all in one batch;
engine `hf` samples what `generate` samples and tells the log-probs of training; pixel bounds are kept or
refused; boxes go to the model's units and back; each part trains or stays frozen; LoRA on every layer trains,
merges and goes on; a saved folder is loaded by plain transformers. `NAME/KIND` is family `NAME` with
`tiny.kind: KIND`.

*tested*: a test compares it. *untested*: nothing refuses it, and nothing tests it. In mixtures LoRA adapts
attention and shared layers; with `trainable.experts: true` each expert too, through a pair of matrices of
its own. PEFT 0.21 by itself reads an adapter of the shared layers of GLM-4.5V and Qwen3-Next as one of the
experts, without a word: load it with vlrl, or take the merged folder. Experts multiply in `policy.dtype`,
as linear layers do, and are stored in it while they are frozen; adapted ones are stored and multiply in
float32. `policy.quantize` packs linear layers, and leaves experts as they are.

"""
COLUMNS = (
    *("family", "models", "text", "picture", "pictures", "video", "audio"),
    *("full", "LoRA", "engine `hf`", "engine `vllm`", "refused"),
)
TAIL = """
Recurrent layers (linear attention of Qwen3-Next, Qwen3.5 and MiniCPM-V 4.6, short convolutions of LFM2) run
once per node of a packed row, from the state that the node before left (`vlrl/policy/recurrent.py`). Models
with layers of other kinds (Mamba, chunked attention) are refused when they are loaded.

A sound is brought to one channel and to the tower's rate (16 kHz) and becomes the log-mel frames that the
release's own processor makes. A sound that is longer than the tower takes (300 s) is refused. `trainable`
counts the audio tower to `vision`. Of Qwen2.5-Omni and Qwen3-Omni the thinker is loaded, from the whole
release or from a folder of its own, and saved as such a folder; the talker, which speaks, is left out.

MiniCPM-V 4.6 numbers the pictures of a prompt, and its videos; the number is written where a medium stands,
so that each is still processed once. Its pixel bounds hold for pictures of sides up to 16 : 1.

Gemma 3n needs timm, whose MobileNet-V5 is its vision tower (`pip install vlrl[timm]`). A sound of any length
up to 30 s takes 188 embeddings there. It is heard alone: transformers fills up several sounds of a prompt to
the longest, and the last frames of the others then differ. LoRA leaves out `altup.correction_coefs`, whose
weight the model reads in training without calling the layer.

Not there: MiniCPM-V 4.7, other models that hear (Qwen2-Audio, Voxtral, Phi-4-multimodal), speech as an
output. A model with a tower that no family reads is refused by the fields of its config.json, for a hub id
when it is loaded; `text` refuses it too, since it would train the language model alone.

"""


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (columns, ["---"] * len(columns), *rows))


def page() -> str:
    """docs/models.md."""
    rows, units = [], dict[str, list[str]]()
    for spec in FAMILIES:
        family: Any = get(Family, split(spec)[0])
        shown = [
            "tested" if modality in modalities(spec) else "" for modality in PROMPTS if modality != "all"
        ]
        if spec in VISION:
            units.setdefault(family.units, []).append(f"`{spec}`")
        vllm = "tested" if spec in VLLM_TESTED else "refused" if family.vllm_problem else "untested"
        rows.append([f"`{spec}`", MODELS[spec], *shown, *["tested"] * 3, vllm, REFUSED.get(spec, "")])
    told = [[f"`{unit}`", ", ".join(found)] for unit, found in sorted(units.items())]
    return HEAD + table(COLUMNS, rows) + TAIL + table(("units of coordinates", "families"), told)

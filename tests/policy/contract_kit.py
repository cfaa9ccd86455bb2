"""The families that tests/policy/test_family_contract.py holds to the contract: which tiny model, which
modalities, which tests."""

from __future__ import annotations

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
    return tuple(kind for kind in PROMPTS if kind != "video" or family.video_token)


def tiny_policy(spec: str, layout: str = "packed", **fields: Any) -> Policy:
    """A tiny random policy of a family; `fields` beside `tiny` are those of the family."""
    name, kind = split(spec)
    tiny = {"kind": kind} | fields.pop("tiny", {})
    return policy_of(name, layout, tiny=tiny, **fields)


CASES = [(spec, modality) for spec in FAMILIES for modality in modalities(spec)]

"""What an example holds by which a reward is attacked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vlrl_rewards.audit.perception import Seed
from vlrl_rewards.audit.text import SEEDS

SILENT = (
    "blank",
    "white space",
    "dot",
    "colon",
    "question marks",
    "empty tags",
    "blank tags",
    "open tag",
    "tags only",
)


@dataclass(frozen=True)
class AuditForm:
    """How to audit a reward that reads more than the answer.

    spec: its config. right: a correct response. only: the common attacks that it must refuse. own: more
    responses that it must refuse. seed: the row.
    """

    spec: Mapping[str, Any]
    right: str
    only: tuple[str, ...] = SILENT
    own: Mapping[str, str] = field(default_factory=dict)
    seed: Seed = SEEDS["math"]

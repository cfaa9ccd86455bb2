"""Entailment, as SoundMind pays it: the label, the form, and a reasoning as long as the reference's.

Paper: Diao et al. 2025 (SoundMind), arXiv:2506.12935; release: xid32/SoundMind at dcbcac45,
verl/utils/reward_score/alr.py. Its slips are not taken over: verl/utils/reward_score/__init__.py:66 imports a
module `kk` that the repository does not have; alr.py:57 finds "entailed" in "not-entailed", so that every
gold label is "entailed"; alr.py:315 looks for seven characters in the last five, so that the form never pays;
and alr.py:218 asks for "Answer:" behind </answer>, where the prompt asks for "Answer: entailed" at the end.
Here the prompt's form counts. The reward of speech (<speak> tags, seconds of speech by voice activity) needs
a model that speaks: the thinker writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vlrl.plugins.registry import register
from vlrl.plugins.scoring import GoldError
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout, Row

_CLOSING = re.compile(r"\banswer\s*:\s*(not[\s-]entailed|entailed)\W*\Z", re.IGNORECASE)
_NEGATED = re.compile(r"not[\s-]+entailed", re.IGNORECASE)


def label_of(gold: object) -> str:
    """The label of a gold answer: a label, a reasoning that ends in one, 0 or 1. The negation is looked for
    first. Raises GoldError."""
    if gold in (0, 1) and not isinstance(gold, bool):
        return ("not-entailed", "entailed")[int(str(gold))]
    closing = str(gold).strip().rpartition("Answer:")[2] if isinstance(gold, str) else ""
    if "entailed" not in closing.lower():
        raise GoldError(f"answer: {str(gold)[-60:]!r} names no label; give 'entailed' or 'not-entailed'")
    return "not-entailed" if _NEGATED.search(closing) else "entailed"


def said_label(text: str) -> str:
    """The label of a response's closing line behind its thinking; "" without one."""
    found = _CLOSING.search(text.rpartition("</think>")[2])
    if found is None:
        return ""
    return "not-entailed" if _NEGATED.fullmatch(found[1]) else "entailed"


@register("entailment")
@dataclass(frozen=True, kw_only=True)
class Entailment(Reward):
    """1 if the closing line names the row's label, else 0: "Answer: entailed" or "Answer: not-entailed".

    Paper: SoundMind, arXiv:2506.12935; release: alr.py:321-325 (2.0). Deviates: see the module.
    Raises GoldError for a gold answer without a label. Edge: no closing line, or text behind it: 0.
    """

    def __call__(self, rollout: Rollout) -> float:
        return float(said_label(rollout.text) == label_of(rollout.answer))


@register("entailment_form")
@dataclass(frozen=True, kw_only=True)
class EntailmentForm(Reward):
    """1 for exactly one <think>...</think> that something stands in, followed by a closing line with a label.

    Paper: SoundMind, arXiv:2506.12935; release: alr.py:312-316 (1.0). Deviates: see the module.
    """

    reads_answer = False

    def __call__(self, rollout: Rollout) -> float:
        text = rollout.text
        once = text.count("<think>") == text.count("</think>") == 1
        inside = text.partition("<think>")[2].partition("</think>")[0]
        return float(once and bool(inside.strip()) and bool(said_label(text)))


@register("reference_length")
@dataclass(frozen=True, kw_only=True)
class ReferenceLength(Reward):
    """Length of the reasoning against the reference's: r = min(1, words / reference words).

    Paper: SoundMind, arXiv:2506.12935; release: alr.py:327-331 (weight 1.0; words between blanks). The
    reference is `row.meta.reference`, else the row's demonstration, else a gold answer that is a reasoning.
    Raises GoldError for a row without one. Range [0, 1].
    """

    reads_answer = False

    def __call__(self, rollout: Rollout) -> float:
        return min(1.0, len(rollout.text.split()) / reference_words(rollout.row))


def reference_words(row: Row) -> int:
    """Words of a row's reference reasoning. Raises GoldError without one."""
    gold = row.answer if isinstance(row.answer, str) and len(row.answer.split()) > 1 else ""
    count = len(str(row.meta.get("reference") or row.target or gold).split())
    if not count:
        raise GoldError("target: the length is paid against a reference reasoning; fill `target`")
    return count

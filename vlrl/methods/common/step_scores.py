"""Scores of the steps of a rollout, as a process reward model or a probing rollout strategy gives them.
Importing needs no torch."""

from __future__ import annotations

from vlrl.plugins.capabilities import Annotation

STEP_SCORES: Annotation[list] = Annotation(
    "steps",
    list,
    hint="rollout: {name: spae.probing}, or a process reward model",
    doc="one (end, score) pair per step, in order; a step ends before the token at position `end`",
)

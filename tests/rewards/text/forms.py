"""Verdicts on an answer in each form that it is given in."""

from collections.abc import Sequence

from vlrl_rewards import verify


def verdicts(gold: str, said: str, kinds: Sequence[str] = ("math", "numeric")) -> set[bool]:
    """What the verifiers of `kinds` say about an answer, bare and in answer tags."""
    return {verify(gold, text, kind).correct for kind in kinds for text in (said, f"<answer>{said}</answer>")}

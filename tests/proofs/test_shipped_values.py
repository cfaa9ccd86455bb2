"""A proof keeps the values that its preset ships: strengths, thresholds, shares, temperatures, coefficients.

What a proof may set is the size of its run (SIZES) and its pace, which follow from a tiny model and a few
steps. Any other number of the preset that differs stands under `scaled`, with the reason.
"""

from collections.abc import Iterator

import pytest
from proof_kit import prove  # noqa: F401  (registers the observables)
from proof_kit.proof import presets, proof_config, proof_of, task_of

from vlrl.config import load

PROVEN = [preset for preset in presets() if proof_of(preset)]
MOST_SCALED = 12  # values, over all proofs
SIZES = {
    # rollouts, prompts, tokens, turns and updates of a run
    "group_size", "prompts_per_step", "num_minibatches", "ppo_epochs", "max_refill_rounds", "max_turns",
    "max_tokens", "min_tokens", "max_reply_tokens", "max_prompt_tokens", "length", "max_length", "count",
    # how often something happens, and over how many steps, rows or samples
    "steps", "every", "window", "rounds", "rows", "start", "warmup", "updates", "batch", "size", "memory",
    "states", "iterations", "candidates", "pilot", "references", "solves", "per_prompt", "branch", "depth",
    "interval", "chunk", "checks", "ahead", "first", "more", "min_edit", "people", "lr",
}  # fmt: skip


def numbers(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    """(path, value) of the numbers, and of the lists of numbers, of a tree."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key != "about":
                yield from numbers(value, f"{path}.{key}" if path else str(key))
        return
    values = tree if isinstance(tree, list | tuple) else [tree]
    if values and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        yield path, list(values)


def changed(preset: str) -> list[str]:
    """The numbers of a preset that the side with the mechanism has otherwise, but for sizes."""
    proof = proof_of(preset)
    assert proof is not None
    ran = dict(numbers(proof_config(preset, task_of(preset), proof, proof.on).tree))
    return [
        path
        for path, value in numbers(load([preset]).tree)
        if path.rpartition(".")[2] not in SIZES and ran.get(path, value) != value
    ]


@pytest.mark.sweep
@pytest.mark.parametrize("preset", PROVEN)
def test_a_proof_keeps_the_values_that_ship(preset):
    proof = proof_of(preset)
    assert sorted(changed(preset)) == sorted(proof.scaled), (
        f"{preset}: keep the preset's values, or name them under `scaled` with the reason"
    )
    assert all(len(reason) > 10 for reason in proof.scaled.values())


def test_few_values_are_scaled():
    scaled = [f"{preset} {path}" for preset in PROVEN for path in proof_of(preset).scaled]
    assert len(scaled) <= MOST_SCALED, scaled

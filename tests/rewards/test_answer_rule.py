"""Which text of a response is its answer: one rule for every kind (rewards/README.md, "What counts as the
answer")."""

import pytest
from vlrl_rewards import verify

KINDS = {
    "math": ("5", "5", "4", None), "numeric": ("5", "5", "4", None), "count": (5, "5", "4", None),
    "text": ("Paris", "Paris", "Rome", None),
    "mcq": ("B", "B", "C", ["Rome", "Paris", "Oslo"]), "yes_no": ("yes", "yes", "no", None), "label": ("cat",
        "cat", "dog", None),
    "box": ([10, 10, 50, 50], "[10, 10, 50, 50]", "[60, 60, 90, 90]", None), "point": ([10, 10, 30, 20],
        "(20, 15)", "(90, 90)", None),
    "temporal": ([5, 9], "5-9 s", "20-30 s", None), "polygon": ([[0, 0], [9, 0], [9, 9]],
        "[[0, 0], [9, 0], [9, 9]]",
    "[[20, 20], [29, 20], [29, 29]]", None),
    "order": (["c", "a", "b"], "c, a, b", "a, b, c", None), "maze": (["S.#", "..G"], "down right right",
        "right", None),
}  # fmt: skip
RIGHT = (
    "<answer>{x}</answer>", "<think>{y}</think><answer>{x}</answer>",
    "<answer>{x}</answer>\n<answer>{x}</answer>",
    "<answer>{x}</answer> Final answer: {x}",
    "<answer>{x}</answer>\n\nI am confident.", "<answer>{y}</answer>\nFinal answer: {x}",
    "<answer>{y}</answer>\nCorrection: <answer>{x}</answer>",
)  # fmt: skip
WRONG = (
    "<answer>{y}</answer>", "<answer></answer>", "<answer></answer>{x}", "<answer>{y}</answer> {x}",
    "<think>{x}</think>",
    "<think><answer>{x}</answer>",
    "<think>{x}</think><answer>{y}</answer>", "<answer>{x}</answer> Final answer: {y}",
    "<answer>{x}</answer> No, the answer is {y}.",
    "<answer>{x}</answer><answer>{y}</answer>", "<answer>{y}</answer> <answer>{x}</answer>",
    "<answer>{x}</answer> or <answer>{y}</answer>",
    "<answer>{x}</answer>\n\\boxed{{{y}}}", "<answer>{x}</answer>\nCorrection: <answer>{y}</answer>",
    "<!-- <answer>{x}</answer> -->",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_commitment_counts(kind):
    gold, x, y, choices = KINDS[kind]
    for form in RIGHT:
        verdict = verify(gold, form.format(x=x, y=y), kind, choices)
        assert verdict.correct, (form, verdict)
    for form in WRONG:
        verdict = verify(gold, form.format(x=x, y=y), kind, choices)
        assert not verdict.correct, (form, verdict)


@pytest.mark.parametrize("kind", ["math", "numeric", "count", "box", "point", "temporal", "polygon"])
def test_a_remark_behind_the_tags_is_no_answer(kind):
    gold, x, _, choices = KINDS[kind]
    assert verify(gold, f"<answer>{x}</answer> The answer is in the tags above.", kind, choices).correct

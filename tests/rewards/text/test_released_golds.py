"""Gold answers in the forms in which data sets hold them, read as the lists that they are."""

import pytest
from vlrl_rewards import verify

CASES = [  # verifier, gold as released, answer, score
    ("distribution", "[0.4, 0.6]", "ANSWER\n[0.4, 0.6]", 1.0),
    ("distribution", "[0.4, 0.6]", "ANSWER\n[0.5, 0.5]", 0.92),
    ("distribution", [0.4, 0.6], "ANSWER\n[0.5, 0.5]", 0.92),
    ("order", "312", "<answer>3, 1, 2</answer>", 1.0),
    ("order", "312", "<answer>1, 3, 2</answer>", 1 / 3),
    ("f1", "Anna Maria Holt", "<answer>\\boxed{Anna Holt}</answer>", 0.8),
]


@pytest.mark.parametrize(("kind", "gold", "answer", "score"), CASES)
def test_released_golds_are_read(kind, gold, answer, score):
    assert verify(gold, answer, kind).score == pytest.approx(score)

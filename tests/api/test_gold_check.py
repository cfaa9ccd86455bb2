"""A user's reward that raises, hangs or returns no number ends before a model is loaded, with its line."""

import logging
import time

import pytest

from vlrl.api import GRPOTrainer
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.data import check_golds

ROWS = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(6)]


def none(text, answer):
    return None


def text_score(text, answer):
    return "1.0"


def nan(text, answer):
    return float("nan")


def missing_key(text, answer):
    return {}["x"]


def no_number(text, answer):
    return float(text)


def without_answer(text):
    return 1 / 0


def leaves(text, answer):
    raise SystemExit(3)


def too_many(completions, answer):
    return [1.0, 2.0]


def nothing(completions):
    return None


def asleep(text, answer):
    time.sleep(1000)


def endless(text, answer):
    while True:
        try:
            len(text)
        except Exception:
            return 0.0


def right(text, answer):
    return float(answer in text)


def trainer(tmp_path, reward, **args):
    return GRPOTrainer("tiny_text", reward, ROWS, {"steps": 1, "output": str(tmp_path / "run"), **args})


@pytest.mark.parametrize(
    ("reward", "said", "line"),
    [
        (none, "'none' returned None; return a finite number", 0),
        (text_score, "returned '1.0'; return a finite number", 0),
        (nan, "returned nan; return a finite number", 0),
        (missing_key, "raised on the row's own answer '1': KeyError: 'x'", 1),
        (no_number, "ValueError: could not convert string to float", 1),
        (without_answer, "ZeroDivisionError: division by zero", 1),
        (leaves, "SystemExit: 3", 1),
        (too_many, "returned [1.0, 2.0] for a group of 1", 0),
        (nothing, "returned None for a group of 1", 0),
        (asleep, "has not returned after 0.2 s", 1),
        (endless, "has not returned after 0.2 s", None),
    ],
)
def test_a_reward_that_cannot_score_ends_in_one_line(reward, said, line, tmp_path, monkeypatch):
    monkeypatch.setattr(check_golds, "DEADLINE", 0.2)
    style = {"prompt_template": {"name": "chat", "style": "answer"}}
    with pytest.raises(ConfigError) as failure:
        trainer(tmp_path, reward, **style)
    message = str(failure.value)
    assert said in message and "\n" not in message and len(message) < 500
    code = reward.__code__
    assert f"{code.co_filename}:{'' if line is None else code.co_firstlineno + line}" in message


def test_a_reward_that_scores_is_taken(tmp_path):
    assert trainer(tmp_path, right).plan.row_count == len(ROWS)


def test_a_reward_that_the_prompt_never_lets_be_paid_is_named(tmp_path, caplog):
    def tagged(text, answer):
        return float(f"<answer>{answer}</answer>" in text)

    with caplog.at_level(logging.WARNING, "vlrl"):
        trainer(tmp_path, tagged)
    assert "'tagged' pays no right answer" in caplog.text and "prompt_template.style=answer" in caplog.text
    caplog.clear()
    trainer(tmp_path, tagged, prompt_template={"name": "chat", "style": "answer"})
    trainer(tmp_path, right)
    assert "pays no right answer" not in caplog.text

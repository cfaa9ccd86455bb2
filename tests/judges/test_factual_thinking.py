"""KnowRL's reward: grades of answers, facts of a thought, and what supports them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from judge_kit import group_of, judge, opened
from vlrl_rewards.combine.factual import FACTS, nearest

from vlrl.beside.entailment import EntailmentModel
from vlrl.beside.templates import load_template
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.scoring import GoldError, NoScore
from vlrl.plugins.stages import Reward

KNOWN = ["Ada lives in Holt.", "Ada grows figs."]


def factual(grades, facts, supported, folder, **fields):
    """The reward with a judge by table: grades by answer, facts by thinking, supported facts."""
    table = {}
    for said, grade in grades.items():
        values = {"question": "Where?", "reference": "Holt", "answer": said}
        table[load_template("graded_answer").fill(values)] = [f"Grade: {grade}"]
    for text, listed in facts.items():
        table[FACTS.format(text=text)] = ["\n".join(f"- {fact}" for fact in listed) or "None"]
        for fact in listed:
            values = {"passages": "\n".join(KNOWN), "statement": fact}
            table[load_template("supported").fill(values)] = [
                f"Verdict: {'yes' if fact in supported else 'no'}"
            ]
    return opened({"name": "factual_thinking", "judge": judge(table), **fields}, folder)


def test_knowrl_as_released(tmp_path):
    """combined_reward.py: 2, 1 or -1, and for wrong answers -1 + s p; factscorer.py:724-734: p = exp(1 -
    gamma / n) for n <= gamma."""
    facts = {"Ada lives in Holt. No figs.": ["Ada lives in Holt.", "Ada grows plums."], "hm": []}
    grades = {"Holt": "correct", "I don't know": "not attempted", "Esk": "incorrect"}
    reward = factual(grades, facts, {"Ada lives in Holt."}, tmp_path, gamma=1)
    form = "<think>{}</think><answer>{}</answer>"
    long = "Ada lives in Holt. No figs."
    texts = [
        form.format(long, "Holt"),
        form.format(long, "I don't know"),
        form.format(long, "Esk"),
        form.format("hm", "Esk"),
        f"<think>{long}</think>",
        form.format(long, " "),
        "hm",
    ]
    group = group_of(*texts, question="Where?", answer="Holt", knowledge=KNOWN)
    assert reward.score_group(group) == pytest.approx([2.0, 1.0, -0.5, -1.0, -0.5, -0.5, -1.0])
    assert reward.correct(group.rollouts[0], 2.0) and not reward.correct(group.rollouts[1], 1.0)
    assert reward.share([True, False]) == 0.5
    shipped = build(Reward, {"name": "factual_thinking", "judge": judge({})})
    assert shipped.share([True] * 5) == pytest.approx(math.exp(1 - 10 / 5))
    assert shipped.share([True] * 10 + [False]) == pytest.approx(10 / 11)


def test_knowrl_never_scores_what_cannot_be_read(tmp_path):
    reward = factual({"Esk": "incorrect"}, {}, set(), tmp_path)
    form = "<think>{}</think><answer>{}</answer>"
    graded, other = reward.score_group(
        group_of(
            form.format("x", "Esk"),
            form.format("x", "Delm"),
            question="Where?",
            answer="Holt",
            knowledge=KNOWN,
        )
    )
    assert graded == -1.0  # "hm" lists no fact
    assert isinstance(other, NoScore)
    facts = {"x": ["Ada flies."]}
    unchecked = factual({"Esk": "incorrect"}, facts, set(), tmp_path / "u")
    unchecked.state.judge.service.engine.table.pop(
        load_template("supported").fill({"passages": "\n".join(KNOWN), "statement": "Ada flies."})
    )
    (score,) = unchecked.score_group(
        group_of(form.format("x", "Esk"), question="Where?", answer="Holt", knowledge=KNOWN)
    )
    assert isinstance(score, NoScore)
    with pytest.raises(GoldError, match="list of passages"):
        reward.score_group(group_of("x"))


def test_entailment_decides_where_a_model_is_named(tmp_path):
    class Pairs:
        """A classifier that entails what stands in the premise word by word."""

        config = SimpleNamespace(id2label={0: "entailment", 1: "neutral"})

        def __init__(self):
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def eval(self):
            return self

        def requires_grad_(self, on):
            return self

        def parameters(self):
            return iter([self.weight])

        def __call__(self, flags):
            return SimpleNamespace(logits=torch.stack([flags * 4.0, torch.zeros_like(flags)], -1))

    class Tokens(dict):
        def to(self, device):
            return self

    def tokenizer(premises, hypotheses, **options):
        return Tokens(flags=torch.tensor([1.0 if h in p else -1.0 for p, h in zip(premises, hypotheses)]))

    model = EntailmentModel(Pairs(), tokenizer, batch=2)
    likely = model.entailed([("a b", "a"), ("a b", "c"), ("a b", "b")])
    assert likely == pytest.approx([1 / (1 + math.exp(-4)), 1 / (1 + math.exp(4)), 1 / (1 + math.exp(-4))])
    reward = factual(
        {"Esk": "incorrect"}, {"x": ["Ada lives in Holt.", "Ada flies."]}, set(), tmp_path, gamma=1
    )
    reward.state.entailment = model
    text = "<think>x</think><answer>Esk</answer>"
    (score,) = reward.score_group(group_of(text, question="Where?", answer="Holt", knowledge=KNOWN))
    assert score == -0.5
    assert nearest("Ada grows plums", KNOWN, 1) == ["Ada grows figs."]
    # factscorer.py of KnowRL, _is_fact_supported_by_text_nli_optimized: each passage alone, one is enough
    asked: list[tuple[str, str]] = []

    def alone(pairs: list[tuple[str, str]]) -> list[float]:
        asked.extend(pairs)
        return [float(premise == "last") for premise, _ in pairs]

    reward.state.entailment = SimpleNamespace(entailed=alone)
    assert reward.supported(["fact", "other"], ["a", "b", "c", "d", "last"]) == [True, True]
    assert len(asked) == 10 and reward.supported(["fact"], ["a", "b"]) == [False]
    Pairs.config = SimpleNamespace(id2label={0: "yes", 1: "no"})
    with pytest.raises(ConfigError, match="entailment"):
        EntailmentModel(Pairs(), tokenizer)

"""Traces of attempts with verdicts, and the rewards that read them."""

from __future__ import annotations

import pytest
from run_kit import last_step
from tiny import steps, text_run

from vlrl.methods.papers.judgerlvr import KEY
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward
from vlrl.trainer.step.loop import train_step
from vlrl.types import Prompt, Rollout, Row

YES, NO = " [VERIFY] correct.", " [VERIFY] wrong.\n"
GOOD, BAD = "<answer>35</answer>", "<answer>34</answer>"


def reward(text, mode, **fields):
    row = Row("r", "27+8=", 35)
    return build(Reward, {"name": "self_verdict", "of": {"name": "numeric"}, "mode": mode, **fields})(
        Rollout(Prompt(row, ()), [1], text)
    )


@pytest.mark.parametrize(
    ("text", "final", "verdicts"),
    [
        (GOOD + YES, 1.0, 1.0),
        (BAD + NO + GOOD + YES, 1.0, 1.0),
        (BAD + YES, 0.0, 0.0),
        (GOOD + NO + BAD + YES, 0.0, 0.0),
        (BAD + NO + BAD + YES, 0.0, 0.5),
        (BAD + NO + GOOD, 1.0, 1.0),  # the last attempt has no verdict
        (GOOD + NO, 1.0, 0.0),
        (GOOD, 1.0, 0.0),  # says nothing of itself
        (YES, 0.0, 0.0),
        ("", 0.0, 0.0),
        ((GOOD + YES) * 17, 0.0, 0.0),
    ],
)
def test_verdicts(text, final, verdicts):
    assert (
        reward(text, "final") == final
        and reward(text, "verdicts") == verdicts
        and reward(text, "both") == final * verdicts
    )


def test_marks_must_differ():
    with pytest.raises(ValueError, match="two different marks"):
        reward(GOOD, "final", right="x", wrong="x")


def test_traces_are_learned_but_for_the_wrong_attempt():
    made = text_run(
        ["methods/self_rewarding_correction"],
        ["data.train.arithmetic.count=4", "rewards.final.tasks=[arithmetic]"],
    )
    train_step(made)
    kept = {row: memory[KEY] for row, memory in made.history.items() if KEY in memory}
    assert kept
    made.phase_step = 0
    made.enter(1)
    erring = 0
    for _ in range(3):
        train_step(made)
        made.phase_step += 1
        for group in last_step(made).groups:
            (rollout,) = group
            pair = kept[group.row.id]
            assert (
                rollout.text in (pair["yes"] + YES, pair["no"] + NO + pair["yes"] + YES)
                and rollout.ids[-1] == made.policy.tokenizer.eos_token_id
            )
            if rollout.text.startswith(pair["no"] + NO):
                erring += 1
                hidden = [token for token, learned in zip(rollout.ids, rollout.loss_mask) if not learned]
                assert made.policy.tokenizer.decode(hidden) == pair["no"]
    assert erring
    made.phase_step = 0
    made.enter(2)
    assert steps(made, 1)[0]["rollouts"] > 0
    with pytest.raises(ConfigError, match="to imitate"):
        text_run(["methods/grpo"], ["rollout={name: self_rewarding_correction}"])

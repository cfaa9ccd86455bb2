"""Demonstrated conversations: the environment answers them, and only the demonstrated turns carry loss."""

from types import SimpleNamespace

import pytest
from vlrl_data.generators.row_tools import GenRowTools

from vlrl.environments.toolset import Toolset
from vlrl.episodes import ACTIONS, EPISODE_END, TURN_PARTS
from vlrl.methods.core.sampling import Plain
from vlrl.methods.papers.retool import RetoolExpertTurns
from vlrl.registry import ConfigError
from vlrl.trainer.episode_pool import RunEpisodes
from vlrl.trainer.run import Run
from vlrl.trainer.stats import StepStats
from vlrl.types import Prompt, Row


def prompt(row):
    return Prompt(row, ({"role": "user", "content": [{"type": "text", "text": row.question}]},))


def make_run(policy):
    run = SimpleNamespace(seed=0, step=1, phase="sft", policy=policy, sampling=Plain(max_tokens=120), stats=StepStats(), engine=None)
    run.environment = Toolset(of={"tables": {"name": "tables"}, "calculator": {"name": "calculator"}})
    run.settings, run.warn = SimpleNamespace(error_limit=1.0), pytest.fail
    run.make_rollout = lambda completion: Run.make_rollout(run, completion)
    run.episodes = lambda counted=True: RunEpisodes(run, counted)
    return run


def test_turns_are_those_of_the_row_and_answers_those_of_the_tools(text_policy):
    rows = list(GenRowTools(count=2, people=2)())
    groups = RetoolExpertTurns(max_turns=8)([prompt(row) for row in rows], [4, 4], make_run(text_policy))
    for row, group in zip(rows, groups):
        (rollout,) = group
        assert ACTIONS[rollout] == row.meta["turns"] and EPISODE_END[rollout] == "done" and rollout.source == "expert"
        assert TURN_PARTS[rollout]["solved"] == 4 and set(rollout.logp) == {0.0}
        own = text_policy.tokenizer.decode([i for i, mine in zip(rollout.ids, rollout.loss_mask) if mine])
        assert own == "".join(f"{turn}{text_policy.tokenizer.eos_token}" for turn in row.meta["turns"]), "answers of tools carry no loss"


def test_rows_without_turns_and_runs_with_a_policy_gradient_are_refused(text_policy):
    with pytest.raises(ValueError, match="no meta"):
        RetoolExpertTurns()([prompt(Row("a", "q"))], [1], make_run(text_policy))
    run = SimpleNamespace(environment=Toolset(of={}), has=lambda capability: False)
    with pytest.raises(ConfigError, match="zero_loss"):
        RetoolExpertTurns().check(run)

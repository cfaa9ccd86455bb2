"""Demonstrated conversations: the environment answers them, and only the demonstrated turns carry loss."""

from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from run_kit import View
from vlrl_data.generators.row_tools import GenRowTools

from vlrl.engine.fake import Fake
from vlrl.environments.toolset import Toolset
from vlrl.methods.core.expert_turns import ExpertTurns
from vlrl.methods.core.sampling import Plain
from vlrl.plugins.episodes import ACTIONS, EPISODE_END, EPISODE_RETURN, TURN_PARTS, Episode, Observation
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import Environment
from vlrl.types import Prompt, Row


def prompt(row):
    return Prompt(row, ({"role": "user", "content": [{"type": "text", "text": row.question}]},))


def make_run(policy, environment=None):
    tools = Toolset(of={"tables": {"name": "tables"}, "calculator": {"name": "calculator"}})
    return View(
        phase="sft",
        policy=policy,
        sampling=Plain(max_tokens=120),
        engine=None,
        environment=environment or tools,
        warn=pytest.fail,
    )


def test_turns_are_those_of_the_row_and_answers_those_of_the_tools(text_policy):
    rows = list(GenRowTools(count=2, people=2)())
    groups = ExpertTurns(max_turns=8)([prompt(row) for row in rows], [4, 4], make_run(text_policy))
    for row, group in zip(rows, groups):
        (rollout,) = group
        assert (
            ACTIONS[rollout] == row.meta["turns"]
            and EPISODE_END[rollout] == "done"
            and rollout.source == "expert"
        )
        assert TURN_PARTS[rollout]["solved"] == 4 and set(rollout.logp) == {0.0}
        own = text_policy.tokenizer.decode([i for i, mine in zip(rollout.ids, rollout.loss_mask) if mine])
        assert own == "".join(f"{turn}{text_policy.tokenizer.eos_token}" for turn in row.meta["turns"]), (
            "answers of tools carry no loss"
        )


class Counting(Episode):
    """Asks for the next number, three times; the expert has it."""

    def reset(self, row, seed):
        self.number, self.knows = row.meta["from"], row.meta["knows"]
        return Observation(f"Count on from {self.number}.")

    def step(self, action):
        self.number += 1
        return Observation(
            f"Next after {self.number}?", reward=float(action.text == str(self.number)), done=action.turn == 3
        )

    def expert(self, view):
        assert view.text == "" and self.number == 4 + view.turn, "the turn that is to be written"
        return str(self.number + 1) if self.knows else None


@dataclass(frozen=True, kw_only=True)
class Counts(Environment):
    """Episodes of `Counting`."""

    name = "counts"

    def episode(self):
        return Counting()


def test_the_environments_expert_plays_whole_episodes(text_policy):
    run = make_run(text_policy, Counts())
    (group,) = ExpertTurns(max_turns=9, lines=("x",))(
        [prompt(Row("a", "q", meta={"from": 5, "knows": True}))], [4], run
    )
    (rollout,) = group
    assert (
        ACTIONS[rollout] == ["6", "7", "8"]
        and EPISODE_RETURN[rollout] == 3.0
        and EPISODE_END[rollout] == "done"
        and rollout.source == "expert"
    )


def test_held_out_episodes_are_the_policys_own(text_policy):
    run = make_run(text_policy, Counts())
    run.engine = Fake(function=lambda request, index: "9")
    run.engine.setup(run)
    (played,) = ExpertTurns(max_turns=9, lines=("x",)).play(
        [prompt(Row("a", "q", meta={"from": 5, "knows": True}))], [Plain()(None, 0)], run
    )
    assert (
        ACTIONS[played[-1]] == ["9", "9", "9"]
        and EPISODE_RETURN[played[-1]] == 0.0
        and played[-1].source == "policy"
    )


def test_lines_are_drawn_uniformly_where_nobody_knows_better(text_policy):
    rows = [Row(f"r{i}", "q", meta={"from": 5, "knows": False}) for i in range(60)]
    strategy, run = ExpertTurns(max_turns=9, lines=("left", "right", "on")), make_run(text_policy, Counts())
    drawn = [
        [ACTIONS[group.rollouts[0]] for group in strategy([prompt(row) for row in rows], [1] * 60, run)]
        for _ in range(2)
    ]
    said = Counter(text for actions in drawn[0] for text in actions)
    assert drawn[0] == drawn[1], "a function of seed, step, row and turn"
    assert set(said) == {"left", "right", "on"} and min(said.values()) > 40 and sum(said.values()) == 180
    assert len({tuple(actions) for actions in drawn[0]}) > 15, "turns of an episode are independent"
    run.step = 2
    assert [
        ACTIONS[group.rollouts[0]] for group in strategy([prompt(row) for row in rows], [1] * 60, run)
    ] != drawn[0]


def test_noise_replaces_turns_of_the_environments_expert(text_policy):
    class Lasting(Counting):
        def expert(self, view):
            return "on"

    rows = [prompt(Row(f"r{i}", "q", meta={"from": 5, "knows": True})) for i in range(60)]
    environment = SimpleNamespace(
        **{**vars(Counts()), "name": "lasting", "stops": (), "tools": lambda: (), "episode": Lasting}
    )
    said = Counter(
        text
        for group in ExpertTurns(lines=("off",), noise=0.25)(
            rows, [1] * 60, make_run(text_policy, environment)
        )
        for text in ACTIONS[group.rollouts[0]]
    )
    assert said["on"] + said["off"] == 180 and 25 < said["off"] < 65, "a quarter of 180"
    with pytest.raises(ValueError, match="noise"):
        ExpertTurns(noise=0.5)


def test_rows_without_turns_and_runs_with_a_policy_gradient_are_refused(text_policy):
    with pytest.raises(ValueError, match="no meta.*'counts' has no expert.*lines"):
        ExpertTurns()(
            [prompt(Row("a", "q", meta={"from": 5, "knows": False}))], [1], make_run(text_policy, Counts())
        )
    run = View(environment=Toolset(of={}), has=lambda capability: False)
    with pytest.raises(ConfigError, match="zero_loss"):
        ExpertTurns().check(run)

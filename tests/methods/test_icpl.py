"""ICPL: K programs that run, a pilot for each from the first weights, and a choice that writes the next
round."""

from types import SimpleNamespace

import pytest
import torch
from make import group
from run_kit import View
from test_written_reward import STAY, WALK, Writer, block, rollouts
from vlrl_rewards.code.written import WrittenReward, evaluate, faults

from vlrl.beside.service import Reply
from vlrl.methods.common.written_reward import SHARED
from vlrl.methods.papers.icpl import Icpl, difference, traced
from vlrl.plugins.episodes import EPISODE_RETURN
from vlrl.plugins.registry import ConfigError

HEAD = "def compute_reward(state, action, next_state):\n"


def program(factor):
    return HEAD + f'    near = {factor} * (state["x"] - next_state["x"])\n    return near, {{"near": near}}'


class Numbered(Writer):
    """Every program that it writes has the next factor; the first one of all cannot be read."""

    def ask(self, asks):
        self.asked += [one.text for one in asks]
        number = len(self.asked) - 1
        return [block(program(number) + "\n") if number else Reply("Let me think.")]


def search(**fields):
    made = Icpl(writer={"model": "m@1", "engine": {}}, sandbox="unsafe", repairs=0, **fields)
    environment = SimpleNamespace(state_description="x: int\n", actions=("go", "stay"))
    run = View(environment=environment, rows={"all": [group(1.0).row]})
    shared = {SHARED: {"writer": made}}
    run.shared = lambda name, make: shared.setdefault(name, make())
    run.policy = SimpleNamespace(model=torch.nn.Linear(1, 1))
    run.optimizer, run.engine = SimpleNamespace(state={}), SimpleNamespace(sync=lambda policy: None)
    made._attached[:] = [run]
    made.state.service = Numbered()
    made.keep_start(run)
    reward = WrittenReward()
    reward.setup(run)
    return made, run, reward


def step(made, run, reward, score):
    """A step: its batch is scored, the weights move, the callback is called. What was paid."""
    batch = rollouts(WALK, STAY)
    EPISODE_RETURN.set(batch.rollouts[0], 2 * score)
    reward.prepare([batch])
    paid = reward.score_group(batch)
    with torch.no_grad():
        run.policy.model.weight.add_(1.0)
    run.optimizer.state["moments"] = 1
    run.sampled_groups = [batch]
    return paid[0], made(run, [batch])


def test_rounds_of_pilots_end_with_the_preferred_program():
    made, run, reward = search(candidates=2, rounds=2, pilot=2)
    first = run.policy.model.weight.item()
    scores = [0.0, 0.1, 0.0, 0.9, 0.0, 0.2, 0.0, 0.3, 0.0]  # the last step of a pilot counts
    paid = []
    for number, score in enumerate(scores):
        value, figures = step(made, run, reward, score)
        paid.append(value)
        begun = number < 8 and number % 2 == 1
        assert (run.policy.model.weight.item() == first) is begun and (run.optimizer.state == {}) is begun
        assert figures["score"] == pytest.approx(score)
    assert paid == [2.0, 2.0, 4.0, 4.0, 6.0, 6.0, 8.0, 8.0, 4.0]  # programs 1 to 4, then 2, the best of all
    assert [one["program"] for one in made.state.preferred] == [program(2), program(4)]
    assert figures["round"] == 2.0
    asked = made.state.service.asked
    assert len(asked) == 5 and "preferred" not in asked[2]
    assert asked[3] == asked[4]
    best, worst = (asked[3].index(f"near = {number} *") for number in (2, 1))
    assert best < asked[3].index("liked the one of this program least") < worst
    # program 2: turn 1 is paid 2 and 0, turn 2 is paid 2: their means, 1 and 2, have the mean 1.5
    assert "near: 1.5, 1.5; reward: 1.5, 1.5" in asked[3] and "near: 0.75, 0.75" in asked[3]


def test_the_change_of_the_preferred_program_is_shown_from_the_third_round_on():
    made, run, reward = search(candidates=2, rounds=3, pilot=1)
    for score in (0.1, 0.2, 0.1, 0.2, 0.1):
        step(made, run, reward, score)
    asked = made.state.service.asked
    assert "changed since" not in asked[3] and "changed since" in asked[5]
    assert "-    near = 2 *" in asked[5] and "+    near = 4 *" in asked[5]


def test_a_person_chooses(tmp_path):
    file = tmp_path / "choices.jsonl"
    file.write_text('{"best": 0, "worst": 1}\n')
    made, run, reward = search(candidates=2, rounds=2, pilot=1, choices=str(file))
    for score in (0.1, 0.9, 0.5):
        step(made, run, reward, score)
    assert made.state.preferred[0]["program"] == program(1)
    with pytest.raises(RuntimeError, match="no line 2"):
        step(made, run, reward, 0.0)
    file.write_text('{"best": 0, "worst": 1}\n{"best": 2, "worst": 0}\n')
    made.state.place = 1
    with pytest.raises(ValueError, match="programs 0 to 1"):
        made.chosen()
    made.state.place = 0
    file.write_text('{"best": 0, "worst": 1}\n{"best": 1, "worst": 0}\n')
    assert made.chosen() == (1, 0)


def test_lower_is_better_turns_the_choice_round():
    for better, wanted in (("higher", (1, 2)), ("lower", (2, 1))):
        made, _, _ = search(candidates=3, better=better)
        made.state.candidates = [
            {"program": str(n), "trace": {}, "score": s} for n, s in enumerate((1, 5, 0))
        ]
        assert made.chosen() == wanted
        made.state.preferred = made.state.candidates
        assert made.final()["program"] == str(wanted[0])


def test_too_few_programs_that_run_end_the_search():
    made, run, reward = search(candidates=2, rounds=2, pilot=1, tries=2)
    for score in (0.1, 0.9):
        made.state.service = made.state.service if score < 0.5 else Writer(**{"": Reply("no")})
        step(made, run, reward, score)
    assert made.state.program == program(2) and made.state.rounds == 2 and "search ends" in run.warnings[0]


def test_the_state_comes_back():
    made, run, reward = search(candidates=2, rounds=2, pilot=1)
    for score in (0.1, 0.2, 0.3):
        step(made, run, reward, score)
    other, *_ = search(candidates=2, rounds=2, pilot=1)
    other.load_state_dict(made.state_dict())
    for name in ("program", "candidates", "place", "steps", "rounds", "preferred", "rejected"):
        assert getattr(other.state, name) == getattr(made.state, name)
    assert other.state.place == 1 and other.state.rounds == 1


def test_parts_of_a_program():
    functions, driver = Icpl.FUNCTIONS, Icpl.DRIVER
    assert faults(program(1), functions, ["x"]) == []
    walk, plain, broken = (
        evaluate(text, driver, [WALK], "unsafe", 2.0)[0]
        for text in (
            program(3),
            HEAD + '    return state["x"] * 1.0\n',
            HEAD + '    return 1.0, {"near": [state["x"]]}\n',
        )
    )
    assert walk[0] == (3.0, {"near": 3.0}) and plain[1] == (1.0, {})
    assert broken == "turn 1: near is [2], a list and no number"


def test_traces_and_differences():
    assert traced({"b": [1.0, 2.0], "a": [0.12345], "c": []}) == "a: 0.123; b: 1, 2"
    assert traced({"a": list(range(40))}).count(",") == 9
    assert difference("a\nb", "a\nb") == "nothing"


@pytest.mark.parametrize(
    "fields", [{"candidates": 1}, {"rounds": 0}, {"pilot": 0}, {"tries": 0}, {"wait": -1.0}]
)
def test_bad_settings_say_so(fields):
    with pytest.raises(ValueError, match="at least"):
        Icpl(writer={"model": "m@1", "engine": {}}, **fields)


def test_a_phase_must_be_longer_than_the_search():
    made = Icpl(writer={"model": "m@1", "engine": {"name": "fake"}}, sandbox="unsafe")
    phase = View(settings=SimpleNamespace(steps=600))
    with pytest.raises(ConfigError, match="are 600 steps, and the phase has 600"):
        made.check(phase)
    phase.settings.steps = 601
    made.check(phase)

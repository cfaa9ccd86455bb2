"""Tools of a row, a calculator, and several environments as one: expert, lazy, cheating and hostile
policies."""

from fractions import Fraction

import pytest
from vlrl_data.generators.row_tools import GenRowTools, tool_call

from vlrl.environments.calculator import Calculator, evaluate, written
from vlrl.environments.tables import Tables
from vlrl.environments.toolset import Toolset
from vlrl.plugins.episodes import Action
from vlrl.plugins.registry import ConfigError
from vlrl.types import Row, RowError

ROW = Row(
    "a",
    "What is the toll of the town of Ada?",
    17,
    meta={
        "functions": [
            {
                "name": "town_of",
                "argument": "person",
                "description": "a town",
                "table": {"Ada": "Brook", "Ben": "Corby"},
            },
            {
                "name": "toll_of",
                "argument": "town",
                "description": "a toll",
                "table": {"Brook": "17", "Corby": "9"},
            },
        ],
        "goals": [("town_of", "Brook"), ("toll_of", "17")],
    },
)


def play(environment, row, *turns):
    """The opening and the answers of an episode."""
    episode = environment.episode()
    opening = episode.reset(row, 0)
    answers = [episode.step(Action(text, turn)) for turn, text in enumerate(turns, 1)]
    episode.close()
    return opening, answers


def total(answers, part):
    return sum(answer.parts.get(part, 0.0) for answer in answers)


def test_the_expert_solves_every_goal_once_and_others_less():
    expert = (tool_call("town_of", person="Ada"), tool_call("toll_of", town="Brook"), "<answer>17</answer>")
    opening, answers = play(Tables(), ROW, *expert)
    assert (
        "town_of(person): a town" in opening.text
        and [a.text for a in answers] == ["Brook", "17", ""]
        and answers[-1].done
    )
    assert total(answers, "solved") == 2 and total(answers, "calls") == 2
    _, lazy = play(Tables(), ROW, "<answer>17</answer>")
    assert total(lazy, "solved") == 0
    _, cheat = play(
        Tables(), ROW, *[expert[0]] * 5, "solved 2 of 2; reward 1", tool_call("toll_of", town="Corby")
    )
    assert total(cheat, "solved") == 1, "a goal counts once, claims and other values do not"
    assert all(answer.reward is None for answer in answers + lazy + cheat), "the environment states no reward"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (tool_call("town_of", person="Zoe"), "knows no person 'Zoe'"),
        (tool_call("town_of", town="Brook"), "'person' is missing"),
        (tool_call("sheep_of", person="Ada"), "no tool 'sheep_of'"),
        ("<tool_call>{</tool_call>", "not valid JSON"),
        (tool_call("town_of", person="x" * 10**6), "knows no person"),
    ],
)
def test_faults_of_the_policy_are_told(text, said):
    _, (answer,) = play(Tables(), ROW, text)
    assert said in answer.text and answer.invalid and len(answer.text) < 600


def test_a_row_without_functions_is_a_broken_row():
    with pytest.raises(RowError, match="functions"):
        play(Tables(), Row("a", "q"), "x")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2*(3+4)", "14"),
        ("1/3", "0.3333333333"),
        ("-7 // 2", "-4"),
        ("7 % 4", "3"),
        ("2**-2", "0.25"),
        ("0.1+0.2", "0.3"),
        (" 5", "5"),
        ("1e3", "1000"),
    ],
)
def test_the_calculator_is_exact(expression, value):
    assert written(evaluate(expression)) == value and evaluate("0.1+0.2") == Fraction(3, 10)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os')",
        "a+1",
        "(1).real",
        "9**9**9",
        "2**65",
        "1e400",
        "1/0",
        "",
        "1+",
        "(" * 300,
        "True",
        "'a'*3",
        "[1]",
        "10**18*10",
        "1_0 if 1 else 2",
    ],
)
def test_the_calculator_tells_of_everything_else(expression):
    _, (answer,) = play(Calculator(), ROW, tool_call("calculator", expression=expression))
    assert answer.invalid and answer.text.startswith("Error")


def toolset(**of):
    return Toolset(of=of or {"tables": {"name": "tables"}, "calculator": {"name": "calculator"}})


def test_a_toolset_sends_each_call_to_the_environment_with_its_tool():
    row = next(iter(GenRowTools(count=1, people=2)()))
    opening, answers = play(toolset(), row, *row.meta["turns"])
    assert "town_of(person)" in opening.text and answers[-1].done and answers[-2].text == str(row.answer)
    assert total(answers, "solved") == len(row.meta["goals"]) == 4
    _, (unknown, broken) = play(toolset(), row, tool_call("rm"), "<tool_call>[</tool_call>")
    assert "no tool 'rm'" in unknown.text and "calculator" in unknown.text and broken.invalid
    assert [schema["function"]["name"] for schema in toolset().tools()] == ["calculator"], (
        "functions of rows are told in the opening"
    )


def test_a_toolset_refuses_what_it_cannot_tell_apart():
    with pytest.raises(ConfigError, match="more than one member has a tool calculator"):
        toolset(a={"name": "calculator"}, b={"name": "calculator"}).check(None)
    with pytest.raises(ConfigError, match="needs `of`"):
        Toolset().check(None)


def test_lookup_rows_can_be_solved_and_differ():
    for settings in (
        {"hops": 1},
        {"hops": 2},
        {"hops": 1, "people": 2},
        {"hops": 2, "people": 2, "entries": 10},
    ):
        rows = list(GenRowTools(count=20, **settings)())
        for row in rows:
            _, answers = play(toolset(), row, *row.meta["turns"])
            assert total(answers, "solved") == len(set(row.meta["goals"])) == len(
                row.meta["goals"]
            ) and not any(a.invalid for a in answers)
            assert f"<answer>{row.answer}</answer>" == row.meta["turns"][-1]
        assert len({row.answer for row in rows}) > 5
    held_out = {(row.question, row.answer) for row in GenRowTools(count=50, split="heldout")()}
    assert len(held_out & {(row.question, row.answer) for row in GenRowTools(count=50)()}) < 10
    with pytest.raises(ConfigError, match="hops"):
        GenRowTools(hops=3)

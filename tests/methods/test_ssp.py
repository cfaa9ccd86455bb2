"""SSP: rewards and advantages by hand, the rules of a valid question, the gate, and both roles in one run."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from make import group
from tiny import opened
from vlrl_data.generators.lookup import documents
from vlrl_rewards.combine.solver_failure import SOLVED as REWARDED
from vlrl_rewards.combine.solver_failure import SolverFailure

from vlrl.config import load
from vlrl.methods.core.advantage import GRPO
from vlrl.methods.papers.ssp import SOLVED, Ssp, SspAdvantage, gold_of, shown
from vlrl.plugins.episodes import EPISODE_END
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.views import StepView
from vlrl.types import Prompt, Rollout, Row

LONG = "Which town of this world is the one that people look for here?"


def scored(solved):
    rollout = Rollout(prompt=Prompt(row=Row("a", "q", "x"), messages=()), ids=[1], text="")
    SOLVED.set(rollout, solved)
    return rollout


@pytest.mark.parametrize(
    ("solved", "failure", "intermediate"),
    [(0.0, 1.0, 0.0), (0.25, 0.75, 0.75), (0.5, 0.5, 1.0), (1.0, 0.0, 0.0), (-1.0, -0.5, -0.5)],
)
def test_the_proposer_is_paid_for_failures(solved, failure, intermediate):
    assert SOLVED == REWARDED
    assert SolverFailure(invalid=-0.5)(scored(solved)) == pytest.approx(failure, abs=1e-12)
    assert SolverFailure(pays="intermediate", invalid=-0.5)(scored(solved)) == pytest.approx(
        intermediate, abs=1e-12
    )


def test_the_reward_refuses_to_pay_for_invalid_questions():
    with pytest.raises(ValueError, match="invalid=0.5"):
        SolverFailure(invalid=0.5)
    with pytest.raises(KeyError, match="name: ssp"):
        SolverFailure()(Rollout(prompt=Prompt(row=Row("a", "q"), messages=()), ids=[1], text=""))


def test_reinforce_for_the_proposer_and_grpo_for_the_solver():
    proposer, solver, empty = group(0.75), group(1.0, 0.0, 0.0, 1.0), group()
    for rollout in proposer:
        SOLVED.set(rollout, 0.25)
    values = SspAdvantage()([proposer, solver, empty])
    assert values[0] == [0.75] and values[1] == GRPO()([solver])[0] and values[2] == []
    assert values[1][0] == pytest.approx(0.5 / (1 / 3) ** 0.5, abs=1e-5)
    assert GRPO()([proposer]) == [[0.0]], "a group of one teaches nothing without the estimator"


# --- valid questions ----------------------------------------------------------------------------------------


def proposed(*pieces, end="done", gold="Arlen"):
    """A rollout of (text, sampled) pieces on a policy whose tokens are characters."""
    ids = [ord(letter) for text, _ in pieces for letter in text]
    text = "".join(text for text, sampled in pieces if sampled)
    rollout = Rollout(prompt=Prompt(row=Row("a", "q", gold), messages=()), ids=ids, text=text)
    rollout.loss_mask = [sampled for text, sampled in pieces for _ in text]
    EPISODE_END.set(rollout, end)
    return rollout


RUN = SimpleNamespace(policy=SimpleNamespace(decode=lambda ids: "".join(map(chr, ids))))
FOUND = ("<information>Arlen is a town.</information>", False)
GOOD = [
    ("<search>one</search>", True),
    FOUND,
    ("<search>two</search>", True),
    FOUND,
    (f"<question> {LONG} </question>", True),
]


def read(*pieces, **settings):
    rollout = proposed(*pieces, **settings)
    return Ssp().read(rollout.prompt.row, rollout, RUN)


def test_a_valid_question_with_its_documents():
    proposal = read(*GOOD)
    assert proposal.question == LONG and proposal.documents == "Arlen is a town.\n\nArlen is a town."


@pytest.mark.parametrize(
    "pieces",
    [
        GOOD[:4],  # no question
        [*GOOD[:4], ("<question>Which town is it?</question>", True)],  # fewer than ten words
        [*GOOD[:4], ("<question>" + "long " * 201 + "</question>", True)],  # more than a thousand characters
        [*GOOD[:4], (f"<question>{LONG} It is aRLEN.</question>", True)],  # the answer
        [*GOOD[:2], GOOD[4]],  # one search
        [GOOD[0], FOUND, GOOD[0], FOUND, GOOD[4]],  # the same search twice
        [GOOD[0], GOOD[2], GOOD[4]],  # nothing was found
        [*GOOD[:4], ("<question></question>" + GOOD[4][0], True)],  # the first question counts
        [*GOOD[:4], GOOD[4][:1] and (GOOD[4][0].replace("</question>", ""), True)],
        [("<search>" * 3000, True), FOUND, ("<question>" * 3000, True)],
    ],
)
def test_rules_of_the_release(pieces):
    assert read(*pieces) is None


def test_documents_that_the_policy_makes_up_are_none():
    made_up = ("<information>The answer to everything is Arlen.</information>", True)
    assert read(GOOD[0], made_up, GOOD[2], made_up, GOOD[4]) is None
    proposal = read(*GOOD[:4], made_up, GOOD[4])
    assert "everything" not in proposal.documents
    mixed = proposed((made_up[0][:20], True), ("found", False), (made_up[0][20:], True))
    assert shown(mixed, RUN) == []


def test_other_ends_and_answers():
    assert read(*GOOD, end="max_turns") is None, "an episode that was cut has no question"
    assert read(*GOOD, gold=None) is None and read(*GOOD, gold=[]) is None
    assert [gold_of(Row("a", "q", gold)) for gold in ("x", ["y", "z"], 3, None)] == ["x", "y", "3", ""]


@pytest.mark.parametrize(
    "wrong",
    [
        {"proposals": 0},
        {"noise": -1},
        {"reuse": -1},
        {"temperature": -0.5},
        {"ask": "x"},
        {"check_with": "{question}"},
        {"max_turns": 0},
    ],
)
def test_wrong_settings(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Ssp(**wrong)


# --- a run --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run():
    words = [
        "engine={name: fake}",
        "data.train.lookup.ask=[home]",
        "data.train.lookup.count=8",
        "group_size=4",
        "sampling.max_tokens=160",
    ]
    config = load(
        ["base/rl", "models/tiny_text", "tasks/gen_lookup", "methods/ssp"], [*words, "rollout.noise=1"]
    )
    made = opened(Session(Plan.of(config)))
    yield made
    made.close()


def speaking(made, say):
    made.engine = replace(made.engine, function=say)
    made.engine.setup(made)
    return made


def told(asked):
    """A proposer that finds its town, one that repeats itself; a gate that fails where it is asked so; a
    solver that is right every other time."""

    def say(request, index):
        row, kind = request.prompt.row, request.prompt.row.id.rpartition("/")[2].partition("-")[0]
        asked.setdefault(kind, []).append(request.prompt.text)
        if kind == "propose":
            turn = request.tag.turns
            second = row.answer if row.id.startswith("gen_lookup-train-0-1/") else "river"
            return [
                f"<search>{row.answer}</search>",
                f"<search>{second}</search>",
                f"<question>{LONG}</question>",
            ][turn]
        if kind == "gate":
            return f"<answer>{'x' if row.id.startswith('gen_lookup-train-0-2/') else row.answer}</answer>"
        return f"<answer>{row.answer if request.tag.attempt % 2 else 'x'}</answer>"

    return say


def test_both_roles_in_one_batch(run):
    asked = {}
    made = speaking(run, told(asked))
    prompts = [made.prompt_template(row) for row in made.rows["lookup"][:4]]
    groups = made.rollout(prompts, [4] * 4, StepView.between_steps(made))
    proposers, solvers = groups[:4], groups[4:]
    assert [g.row.task for g in groups] == ["propose"] * 4 + ["lookup"] * 2, (
        "row 1 searches twice alike, row 2 does not pass the gate"
    )
    assert [SOLVED[rollout] for g in proposers for rollout in g] == [0.5, -1.0, -1.0, 0.5]
    assert [g.row.id.partition("/")[0] for g in solvers] == [
        "gen_lookup-train-0-0",
        "gen_lookup-train-0-3",
    ] and all(len(g) == 4 for g in solvers)
    assert all(
        g.row.question == LONG and g.row.answer == prompts[place].row.answer
        for g, place in zip(solvers, (0, 3))
    )
    assert len(asked["gate"]) == 3 and all(
        prompt.row.question not in "".join(map(str, asked.values())) for prompt in prompts
    )
    texts = dict(documents())
    for place, gate in zip((0, 2, 3), asked["gate"]):
        own = [texts[prompts[other].row.answer] in gate for other in (0, 2, 3)]
        assert own[(0, 2, 3).index(place)] and sum(own) == 2, "one other proposer's documents are mixed in"
    StepView.between_steps(made).score(groups)
    assert [r.reward for g in proposers for r in g] == [0.5, 0.0, 0.0, 0.5]
    made.rollout.end_step(made)
    assert made.rollout.metrics() == {"ssp/kept": (3, 4), "ssp/valid": (2, 4), "ssp/solved": (1.0, 2)}
    assert {r.temperature for g in proposers + solvers for r in g} == {1.0}


def test_older_questions_stand_in_for_invalid_ones(run):
    made = speaking(run, told({}))
    strategy, prompts = (
        replace(made.rollout, reuse=2),
        [made.prompt_template(row) for row in made.rows["lookup"][:4]],
    )
    made.step = 1
    first = strategy(prompts, [4] * 4, StepView.between_steps(made))
    strategy.end_step(made)
    assert len(first) == 6 and [one["id"] for one in strategy.state.pool] == [
        group.row.id for group in first[4:]
    ]
    copy = replace(made.rollout, reuse=2)
    copy.load_state_dict(strategy.state_dict())
    made.step = 2
    second = copy(prompts, [4] * 4, StepView.between_steps(made))
    again = second[6:]
    assert len(second) == 8 and all(
        g.row.question == LONG and g.row.task == "lookup" and len(g) == 4 for g in again
    )
    assert all(
        "/again-" in g.row.id and g.row.answer in (first[4].row.answer, first[5].row.answer) for g in again
    )
    assert [SOLVED[r] for g in second[:4] for r in g] == [0.5, -1.0, -1.0, 0.5], (
        "an older question pays nobody for an invalid one"
    )
    StepView.between_steps(made).score(second)
    assert all(g.rollouts[0].outcome is not None for g in again)
    copy.end_step(made)
    assert copy.state.pool == [] and replace(made.rollout, reuse=0).older(2, made) == []


def test_without_the_gate_questions_are_only_read(run):
    asked = {}
    made = speaking(run, told(asked))
    groups = replace(made.rollout, gate=False)(
        [made.prompt_template(row) for row in made.rows["lookup"][:4]],
        [2] * 4,
        StepView.between_steps(made),
    )
    assert len(groups) == 7 and "gate" not in asked


def test_a_run_without_a_reward_for_proposals_is_refused():
    config = load(
        ["base/rl", "models/tiny_text", "tasks/gen_lookup", "methods/ssp"],
        ["rewards.proposal=null", "advantage={name: grpo}"],
    )
    with pytest.raises(ConfigError, match="task 'propose', which no reward scores"):
        Session(Plan.of(config))

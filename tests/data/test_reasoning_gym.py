"""reasoning_gym as a source with its own reward: every generator's rows, what pays and what does not; splits,
mixtures, levels, refusals."""

import decimal
import json
import os
import random
import re
import subprocess
import sys
from collections import deque

import numpy as np
import pytest

from vlrl.config import load
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import Reward, Source
from vlrl.trainer.plan import Plan

pytest.importorskip("reasoning_gym", reason="the extra gym")

from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS
from vlrl_data.sources.reasoning_gym import REWARD, is_heldout, task_of
from vlrl_rewards.gym.rules import EQUAL, REFUSED, RULES

ALL = sorted(set(DATASETS) - set(REFUSED))
FIELDS = {  # smaller puzzles of the generators that take long
    "rush_hour": {"max_moves": 3},
    "knight_swap": {"max_nodes": 6},
    "sokoban": {"max_w": 6, "max_h": 6},
    "futoshiki": {"max_board_size": 5},
    "quantum_lock": {"difficulty": 3},
}
EASY = {"chain_sum": {"min_terms": 2, "max_terms": 2}, "gcd": {"weight": 3}}


def source(generators=None, **fields):
    return build(
        Source, {"name": "reasoning_gym", "generators": EASY if generators is None else generators, **fields}
    )


def score(row, text):
    return build(Reward, REWARD).score(text, row.answer, **row.meta)


def solved(row):
    """An answer to the row: its gold, or one that is found by search."""
    return {"boxnet": boxes_brought, "rush_hour": way_out}.get(
        row.meta["generator"], lambda puzzle: puzzle["gold"]
    )({**row.meta.get("puzzle", {}), "gold": row.answer})


def boxes_brought(puzzle):
    """Each box moved along rows, then columns, to its target, then onto it."""
    squares = {tuple(map(float, name.split("_"))): things for name, things in puzzle["initial_state"].items()}
    targets = {thing: at for at, things in squares.items() for thing in things if thing.startswith("target_")}
    plans = []
    for at, box in [
        (at, thing) for at, things in squares.items() for thing in things if thing.startswith("box_")
    ]:
        target = box.replace("box_", "target_")
        while at != targets[target]:
            axis = 0 if at[0] != targets[target][0] else 1
            step = 1 if targets[target][axis] > at[axis] else -1
            there = (at[0] + step, at[1]) if axis == 0 else (at[0], at[1] + step)
            plans.append({f"Agent[{at[0]}, {at[1]}]": f"move({box}, square[{there[0]}, {there[1]}])"})
            at = there
        plans.append({f"Agent[{at[0]}, {at[1]}]": f"move({box}, {target})"})
    return json.dumps(plans)


def way_out(puzzle):
    """The shortest way out of a rush-hour board, by breadth-first search over single steps."""
    seen, queue = {puzzle["board_config"]}, deque([(puzzle["board_config"], [])])
    while queue:
        board, moves = queue.popleft()
        if board[17] == "A":  # the last cell of the third row
            return " ".join(moves)
        for car in sorted(set(board) - set("ox")):
            cells = [place for place in range(36) if board[place] == car]
            stride = cells[1] - cells[0]
            for sign, edge in (("+", cells[-1]), ("-", cells[0])):
                ahead = edge + (stride if sign == "+" else -stride)
                same_line = ahead // 6 == edge // 6 if stride == 1 else 0 <= ahead < 36
                if same_line and board[ahead] == "o":
                    letters = list(board)
                    letters[ahead], letters[cells[0] if sign == "+" else cells[-1]] = car, "o"
                    if (after := "".join(letters)) not in seen:
                        seen.add(after)
                        queue.append((after, [*moves, f"{car}{sign}1"]))
    raise AssertionError("this board has no way out")


def is_paid_by_the_package(row):
    generator = row.meta["generator"]
    made = source({generator: FIELDS.get(generator, {})}).dataset(generator)
    entry = made[row.meta["place"]]
    return entry["answer"] is None or made.score_answer(entry["answer"], entry) == 1.0


@pytest.mark.sweep
@pytest.mark.parametrize("generator", ALL)
def test_a_right_answer_pays_and_others_do_not(generator):
    row = source({generator: FIELDS.get(generator, {})})()[1]
    assert row.task == task_of(generator) and row.question and not is_heldout(row.question)
    answer = solved(row)
    assert score(row, f"<answer>{answer}</answer>") == 1.0, answer
    assert score(row, f"<think>The answer may be 7.</think>\n<answer>\n{answer}\n</answer>") == 1.0
    assert is_paid_by_the_package(row)
    for text in (
        "",
        "<answer></answer>",
        "x",
        "?",
        "lorem ipsum",
        "nan",
        row.question,
        f"I have no idea, but {answer} comes to mind, or something else.",
    ):
        assert score(row, text) == 0.0, text
        assert score(row, f"<answer>{text}</answer>") == 0.0, text
    options = "True False Yes No on off undetermined 0 1 2 3 4 5 6 7 8 9 Pass Peng Chi Gang Monday Tuesday"
    for text in (
        options,
        f"{answer} {options}",
        f"{answer}\n{answer} or not",
        f"either {answer} or {answer}x",
    ):
        assert score(row, f"<answer>{text}</answer>") == 0.0, text


def test_the_reward_calls_no_scorer_of_the_package(monkeypatch):
    rows = [
        source({name: {}})()[0]
        for name in (
            "chain_sum",
            "spiral_matrix",
            "string_insertion",
            "polynomial_multiplication",
            "countdown",
        )
    ]
    for made, _ in DATASETS.values():
        monkeypatch.setattr(made, "score_answer", lambda *_: pytest.fail("the package's scorer was called"))
    assert [score(row, f"<answer>{row.answer}</answer>") for row in rows] == [1.0] * len(rows)
    assert [score(row, "__import__('os').abort()") for row in rows] == [0.0] * len(rows)


def test_every_generator_with_a_scorer_of_its_own_was_read():
    own = {
        name
        for name, (made, _) in DATASETS.items()
        if made.score_answer is not ProceduralDataset.score_answer
    }
    assert own <= set(RULES) | EQUAL | set(REFUSED)
    assert set(RULES) | EQUAL | set(REFUSED) <= set(DATASETS)
    assert len(ALL) >= 104 and source({}).names == ALL


def test_an_unknown_scorer_is_refused_by_name():
    assert "no check of its answers is known" in build(Reward, REWARD).refusal("a_new_one", own_scorer=True)
    assert build(Reward, REWARD).refusal("a_new_one", own_scorer=False) == ""


def test_rows_are_the_same_in_another_process_in_any_order():
    names = [
        "isomorphic_strings",
        "list_functions",
        "polynomial_multiplication",
        "pool_matrix",
        "ransom_note",
        "word_ladder",
        "caesar_cipher",
    ]
    spec = {name: {} for name in names}
    code = (
        "import json\nfrom vlrl.plugins.registry import build\nfrom vlrl.plugins.stages import Source\n"
        f"rows = build(Source, {{'name': 'reasoning_gym', 'seed': 4, 'generators': {spec!r}}})()\n"
        "print(json.dumps([[rows[i].question, rows[i].answer] for i in reversed(range(20))]))"
    )
    env = {
        **os.environ,
        "PYTHONHASHSEED": str(random.randrange(1, 1000)),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=500)
    assert done.returncode == 0, done.stderr
    rows = source(spec, seed=4)()
    assert json.loads(done.stdout) == [[rows[i].question, rows[i].answer] for i in range(20)][::-1]
    assert len({row.meta["generator"] for row in (rows[i] for i in range(20))}) >= 4


def test_drawing_rows_leaves_the_random_state_alone():
    random.seed(5), np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    source({"pool_matrix": {}, "list_functions": {}}, seed=9)()[0]
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_drawing_rows_leaves_the_precision_of_decimals_alone():
    with decimal.localcontext(prec=17):
        rows = source({"decimal_arithmetic": {}}, seed=9)()
        first = rows[0]
        assert decimal.getcontext().prec == 17
    assert first == source({"decimal_arithmetic": {}}, seed=9)()[0]


@pytest.mark.parametrize(
    "generators",
    [{"coin_flip": {}}, {"chain_sum": {"min_digits": 1, "max_digits": 1, "min_terms": 2, "max_terms": 2}}],
)
def test_heldout_questions_are_not_trained_on_whatever_the_seed(generators):
    train = {row.question for seed in (0, 1) for row in source(generators, seed=seed, count=150)()}
    heldout = {
        row.question for seed in (0, 2) for row in source(generators, seed=seed, split="heldout", count=150)()
    }
    assert len(train) > 5 and len(heldout) > 2 and train.isdisjoint(heldout)


def test_seeds_and_indices_give_different_rows():
    one, other = source(count=40)(), source(count=40, seed=1)()
    assert len({row.question for row in one}) >= 38 and len({row.id for row in [*one, *other]}) == 80
    assert len({row.question for row in one} & {row.question for row in other}) <= 3


def test_generators_are_mixed_by_weight():
    names = [row.meta["generator"] for row in source(count=400)()]
    assert 250 <= names.count("gcd") <= 350  # three quarters; a binomial's standard deviation is 9


def test_levels_are_those_of_its_own_curriculum():
    def longest(level):
        rows = source({"chain_sum": {"level": level}}, count=40)()
        return max(len(re.findall(r"\d+", row.question)) for row in rows)

    assert longest(0) < longest(3)
    assert longest({"num_terms": 3}) == longest(3)
    easy = source({"chain_sum": {"level": 3, "max_terms": 5, "min_terms": 2}}).dataset("chain_sum").config
    assert easy.max_terms == 5


@pytest.mark.parametrize(
    ("generators", "what"),
    [
        ({"codeio": {}}, "generators.codeio: refused, because .*exec"),
        ({"composite": {}}, "generators.composite: refused, because it mixes"),
        ({"chainsum": {}}, "generators.chainsum: .* Did you mean 'chain_sum'"),
        ({"chain_sum": {"max_term": 2}}, "generators.chain_sum.max_term: no such field.* 'max_terms'"),
        ({"chain_sum": {"min_terms": 9, "max_terms": 2}}, "generators.chain_sum: the generator refuses"),
        ({"chain_sum": {"weight": 0}}, "generators.chain_sum.weight: 0 is not a number above 0"),
        ({"chain_sum": {"level": 99}}, "generators.chain_sum.level: 99 is not a whole number from 0 to"),
        ({"chain_sum": {"level": {"speed": 1}}}, "generators.chain_sum.level.speed: no such attribute"),
        ({"acre": {"level": 1}}, "generators.acre.level: this generator has no curriculum"),
        ({"chain_sum": 3}, "generators: .*valid dictionary"),
        (
            {"game_of_life_halting": {"difficulty": 9}},
            "generators.game_of_life_halting: the generator refuses",
        ),
    ],
)
def test_what_is_refused(generators, what):
    with pytest.raises(ConfigError, match=what):
        source(generators)()


def test_too_few_questions_are_told(monkeypatch):
    from vlrl_data.sources import reasoning_gym as module

    monkeypatch.setattr(module, "is_heldout", lambda question: False)
    assert source()()[0].question
    with pytest.raises(ConfigError, match="generators.gcd: no usable question for split 'heldout'"):
        source({"gcd": {}}, split="heldout")()[0]


def test_a_missing_package_is_a_config_error(monkeypatch):
    from vlrl_data.sources import reasoning_gym as module

    module.package.cache_clear()
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r"pip install -e '.*\[gym\]'"):
        source().names  # noqa: B018
    module.package.cache_clear()


def test_a_run_is_checked_and_built_with_the_reward_of_the_source(tmp_path):
    names = ["base/rl", "models/tiny_text", "tasks/reasoning_gym", "methods/grpo"]
    config = load(
        names, [f"output={tmp_path / 'run'}", "data.train.gym.count=30", "data.heldout.gym.count=10"]
    )
    plan = Plan.of(config)
    plan.check()
    phase = plan.phases[0]
    assert plan.row_count == 40 and list(phase.rewards) == ["reasoning_gym", "format"]
    assert len(phase.rewards["reasoning_gym"].tasks) == 7
    row = next(iter(phase.train.values()))()[0]
    assert phase.outcome_slot(row) == "reasoning_gym" and row.target.startswith("<answer>")


def test_rows_survive_a_file(tmp_path):
    from vlrl_data.tools.convert import record_of

    rows = [
        source({name: {}}, seed=seed)()[0] for seed, name in enumerate(("countdown", "kakurasu", "n_queens"))
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(record_of(row)) + "\n" for row in rows))
    read = build(Source, {"name": "files", "path": str(tmp_path / "rows.jsonl")})()
    assert [score(row, row.target) for row in read] == [1.0, 1.0, 1.0]

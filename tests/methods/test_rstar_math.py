"""rStar-Math: steps whose code runs, what is backed up, the pairs of a tree, and the model that learns from
them. Numbers by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tiny import text_run

from vlrl.methods.papers.rstar_math import (
    PreferenceModel,
    RstarMath,
    RstarMathPpm,
    StepNode,
    StepPair,
    extend,
    mean_q_below,
    pairs_of,
    preference_model,
    program_of,
)
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.views import StepView
from vlrl.types import Prompt, Rollout, Row

PROMPT = Prompt(Row("r", "q"), ({"role": "user", "content": "q"},))
SETTINGS = [
    "group_size=4",
    "prompts_per_step=2",
    "num_minibatches=1",
    "max_prompt_tokens=1024",
    "sampling.max_tokens=200",
    "rollout.iterations=2",
    "rollout.min_edit=1",
    "phases=null",
]


def node(parent, step, q=0.0, end=""):
    """A step below `parent` with this mean value."""
    ids = [*parent.rollout.ids, len(parent.children) + 1]
    made = StepNode(Rollout(PROMPT, ids), parent, parent.depth + 1, step, end=end, value_sum=q, visits=1)
    parent.children.append(made)
    return made


def tree():
    """Two good first steps and one bad one; the first good one has a wrong end too."""
    root = StepNode(Rollout(PROMPT, []))
    good, fair, bad = node(root, "good step", 0.8), node(root, "fair step", 0.4), node(root, "poor", -1.0)
    node(good, "right end", 1.0, "right"), node(good, "wrong end", -1.0, "wrong")
    node(fair, "right end", 1.0, "right")
    node(bad, "wrong end", -1.0, "wrong"), node(bad, "code fails", -1.0, "error")
    return root


def test_values_are_backed_up_and_chosen_by_uct():
    root = StepNode(Rollout(PROMPT, []))
    left, right = node(root, "a"), node(root, "b")
    for child in (left, right):
        child.visits = 0
    assert RstarMath().next_node(root) is left  # the first of equals
    left.back_up(1.0), left.back_up(-1.0), right.back_up(1.0)
    assert (root.q, root.visits, left.q, right.q) == (pytest.approx(1 / 3), 3, 0.0, 1.0)
    assert left.uct(2.0) == pytest.approx(2 * math.sqrt(math.log(3) / 2))
    assert right.uct(2.0) == pytest.approx(1 + 2 * math.sqrt(math.log(3)))
    assert RstarMath().next_node(root) is right
    right.end, left.closed = "right", True
    assert RstarMath().next_node(root) is None and root.closed


def test_pairs_of_a_tree():
    root = tree()
    good, fair, bad = root.children
    assert mean_q_below(good, True) == 0.9 and mean_q_below(good, False) == pytest.approx(-0.1)
    found = list(pairs_of(root, 0.5, 1))
    # at the root good, fair against poor and, as it has a wrong end too, good itself: its own pair has no
    # margin, fair against it a negative one
    top = [(pair.chosen, pair.rejected, pair.weight) for pair in found[:2]]
    assert top == [([1], [3], 1 / 4), ([2], [3], 1 / 4)]
    below = found[2:]
    assert [(pair.chosen, pair.rejected, pair.weight) for pair in below] == [([1, 1], [1, 2], 1.0)]
    assert len(list(pairs_of(root, 1.5, 1))) == 2  # the pair of 0.4 and -1 is too close
    assert [pair.rejected for pair in pairs_of(root, 0.5, 6)] == [
        [3],
        [3],
    ]  # "right end", "wrong end": 4 edits
    assert not list(pairs_of(bad, 0.5, 1)) and fair.q == 0.4


def test_the_program_of_a_solution():
    text = "<code>\n# one\nx = 1<end_of_step>\ny = 2\n</code>\n<output>\n\n</output>\n"
    text += "<code>print(x + y)<end_of_step>"
    assert program_of(text) == "# one\nx = 1\n\ny = 2\n\nprint(x + y)"
    assert program_of("no code") == ""


def test_extending_a_rollout_keeps_what_was_sampled():
    rollout = Rollout(PROMPT, [1, 2], logp=[-1.0, -2.0], version=3, temperature=0.5)
    extend(rollout, [8, 9], False)
    extend(rollout, [7], True)
    assert rollout.ids == [1, 2, 8, 9, 7] and rollout.trained_mask == [True, True, False, False, True]
    assert rollout.sampled == [True, True, False, False, False] and rollout.temperature == 0.5
    assert rollout.logp == [-1.0, -2.0, 0.0, 0.0, 0.0] and rollout.version == 3


def searched(speak, *words):
    """The groups of two prompts whose steps are what `speak(begun, index)` says, and the run."""
    run = text_run(["methods/rstar_math"], [*SETTINGS, *words])

    def say(request, index):
        begun = run.policy.decode(request.prefix_ids) if request.prefix_ids else ""
        return speak(begun, index).replace("{answer}", str(request.prompt.row.answer))

    run.engine = replace(run.engine, function=say)
    run.engine.setup(run)
    prompts = [run.prompt_template(run.rows["arithmetic"][place]) for place in range(2)]
    return run.rollout(prompts, [4, 4], StepView.between_steps(run)), run


def test_only_steps_whose_code_runs_go_on():
    steps = [
        "<code>\nx = 40 + 2\nprint(x)\n</code>",
        "<code>\nprint(y)\n</code>",
        "no mark",
        "<code>1 +</code>",
    ]

    def speak(begun, index):
        if not begun:
            return steps[index]
        return "<answer>{answer}</answer>" if index < 2 else "<answer>no</answer>"

    groups, run = searched(speak)
    for group in groups:
        assert len(group) == 2  # `keep`
        for rollout in group:
            assert rollout.correct and "<output>\n42\n</output>" in rollout.text
            shown = [run.policy.decode([i]) for i, own in zip(rollout.ids, rollout.trained_mask) if not own]
            assert "".join(shown) == "\n<output>\n42\n</output>\n"
            assert rollout.ids[-1] == run.policy.tokenizer.eos_token_id and rollout.trained_mask[-1]
    counts = run.rollout.state.counts
    assert counts["steps"] == 2 * 8 and counts["failed"] == 2 * 2 and counts["right"] == 4
    assert counts["ends"] == 2 * (3 + 4)  # three bad first steps, four answers
    assert len(preference_model(run).pairs) == counts["pairs"] == 2 * 4
    run.close()


def test_code_goes_on_in_later_blocks_and_a_time_out_is_an_error():
    def speak(begun, index):
        if not begun:
            return "<code>\nx = 5\nprint(x)\n</code>" if index else "<code>\nwhile True: pass\n</code>"
        if begun.count("<code>") == 1:
            return "<code>\nprint(x * 2)\n</code>"
        return "<answer>{answer}</answer>"

    groups, run = searched(speak, "rollout.seconds=1", "rollout.iterations=1")
    for group in groups:
        assert "<output>\n5\n</output>" in group.rollouts[0].text
        assert "<output>\n10\n</output>" in group.rollouts[0].text  # the new output alone
    assert run.rollout.state.counts["failed"] == 2
    run.close()


def test_a_prompt_without_a_right_solution_gives_nothing():
    groups, run = searched(lambda begun, index: "<answer>no</answer>")
    assert [len(group) for group in groups] == [0, 0] and not preference_model(run).pairs
    groups, run = searched(lambda begun, index: "")
    assert [len(group) for group in groups] == [0, 0]
    run.close()


def test_the_preference_model_learns_the_pairs_and_guides():
    def speak(begun, index):
        if not begun:
            return f"<code>\nprint({index})\n</code>"
        return "<answer>{answer}</answer>" if "print(3)" in begun else "<answer>no</answer>"

    words = [
        "callbacks.ppm.lr=1e-3",
        "callbacks.ppm.epochs=20",
        "rollout.guided=true",
        "rollout.iterations=4",
    ]
    groups, run = searched(speak, *words)
    assert [len(group) for group in groups] == [2, 2]
    model, callback, view = preference_model(run), run.callbacks["ppm"], StepView.between_steps(run)
    pairs = list(model.pairs)
    assert pairs and all(pair.weight > 0 for pair in pairs)
    before = gap(model, view, pairs)
    assert before == pytest.approx(0.0, abs=1e-6)  # the head begins at 0
    logged = callback(view, groups)
    assert logged["pairs"] == (len(pairs), 0.0) and logged["gap"][0] == pytest.approx(0.0, abs=1e-4)
    assert gap(model, view, pairs) > 0.1 and not model.pairs
    saved = callback.state.state_dict()
    assert saved["weights"] and saved["adam"]
    root = StepNode(Rollout(groups[0].prompt, []))
    good, poor = ([*run.policy.encode_text(f"<code>\nprint({n})\n</code>")] for n in (3, 0))
    values = model.scores(view, [(root.rollout.prompt, good), (root.rollout.prompt, poor)]).tolist()
    assert values[0] > values[1]
    assert callback(view, groups) == {}  # no pairs, no update
    run.close()


def gap(model, view, pairs):
    """Mean s(y+) - s(y-)."""
    with torch.no_grad():
        both = [model.scores(view, [(p.prompt, p.chosen), (p.prompt, p.rejected)]) for p in pairs]
    return float(sum(a - b for a, b in both)) / len(pairs)


def test_mistakes_are_named():
    for bad in ({"iterations": 0}, {"keep": 0}, {"errors": 0}, {"seconds": 0.0}):
        with pytest.raises(ValueError, match="iterations"):
            RstarMath(**bad)
    for bad in ({"lr": 0.0}, {"epochs": 0}, {"batch": 0}):
        with pytest.raises(ValueError, match="lr"):
            RstarMathPpm(**bad)
    with pytest.raises(ConfigError, match="rstar_math.ppm"):
        text_run(["methods/rstar_math"], [*SETTINGS, "rollout.guided=true", "callbacks.ppm=null"])
    sharded = SimpleNamespace(state_sharded=True, policy=SimpleNamespace(has_adapter=False))
    with pytest.raises(ConfigError, match="DDP"):
        PreferenceModel(sharded)
    assert StepPair(PROMPT, [1], [2], 0.5).weight == 0.5

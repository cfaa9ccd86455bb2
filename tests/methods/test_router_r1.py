"""Router-R1: the released reward by hand, its rolling normalisation, and the pool of models."""

from types import SimpleNamespace

import numpy as np
import pytest

from vlrl.engine.fake import Fake
from vlrl.methods.papers.router_r1 import RouterR1, RouterR1Router, well_formed
from vlrl.plugins.episode_pool import EpisodePool
from vlrl.plugins.episodes import INVALID_ACTIONS, TURN_PARTS, Action
from vlrl.plugins.registry import ConfigError
from vlrl.types import Group, Prompt, Rollout, Row

ROW = Row("a", "Where does Ada live?", "Rome")
PROMPT = Prompt(row=ROW, messages=())
GOOD = "<think>so</think><search>small: Ada?</search>\n<think>ok</think><answer>Rome</answer>"


def rollout(cost, outcome=1.0, text=GOOD, invalid=0):
    made = Rollout(prompt=PROMPT, ids=[1], text=text)
    made.outcome, made.correct = outcome, outcome >= 1
    TURN_PARTS.set(made, {"cost": cost})
    INVALID_ACTIONS.set(made, invalid)
    return made


def test_values_by_hand():
    """Costs 4 and 16: roots 2 and 4, quantiles 2.1 and 3.9; 4 in the window of {2, 4} is above 3.9, so C =
    0."""
    shaping = RouterR1(cost_weight=0.4)
    first, dear, cheap = (shaping.value(rollout(cost)) for cost in (4.0, 16.0, 4.0))
    assert first == pytest.approx(0.6 + 0.4 * 0.5, abs=1e-12), "one episode has no spread: C = 1/2"
    assert dear == pytest.approx(0.6, abs=1e-12) and cheap == pytest.approx(1.0, abs=1e-12)
    low, high = np.percentile([2, 4, 2, 3], [5, 95])
    assert shaping.value(rollout(9.0, 0.5)) == pytest.approx(
        0.6 * 0.5 + 0.4 * (1 - (3 - low) / (high - low)), abs=1e-12
    )


def test_wrong_and_malformed():
    shaping = RouterR1(cost_weight=0.9)
    group = Group(PROMPT, [rollout(1.0, 0.0), rollout(1.0, 1.0, "Rome"), rollout(1.0, 1.0, invalid=1)])
    assert shaping(group) == [0.0, -1.0, -1.0], "a wrong answer is not paid for being cheap"
    assert RouterR1()(Group(PROMPT, [rollout(5.0)])) == [1.0], "weight 0 is the outcome alone"


def test_the_window_forgets():
    shaping = RouterR1(window=2)
    for cost in (1.0, 4.0, 9.0):
        shaping.value(rollout(cost))
    assert shaping.state.window == [2.0, 3.0]
    shaping.end_step(None)
    assert shaping.metrics() == {"router_r1/cost": (14.0, 3.0)}


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("<think>so", "<think>"),
        GOOD.replace("so</think>", "...</think>"),
        GOOD.replace("</search>", ""),
        GOOD + "<answer>Oslo</answer>",
        "I say: " + GOOD,
        GOOD + " Bye.",
        "<answer>Rome</answer>",
        "<think>a <search>small: x</search></think><answer>Rome</answer>",
        GOOD.replace("\n", "<information>Rome</information>"),
    ],
)
def test_malformed_texts(text):
    assert well_formed(GOOD) and not well_formed(text)


def pool_of(respond, **settings):
    models = {
        "Large": {"engine": Fake(function=respond), "price": 2.0, "about": "knows"},
        "small": {"engine": Fake(function=respond), "price": 0.5},
    }
    environment = RouterR1Router(models=models, **settings)
    environment.setup(SimpleNamespace(policy=None, seed=0))
    return environment


def turns(environment, *texts):
    episode = environment.episode()
    opening = episode.reset(ROW, 0)
    seen = [episode.step(Action(text, number)) for number, text in enumerate(texts, 1)]
    episode.close()
    return opening, seen


def test_models_are_asked_and_paid_for():
    told = []

    def respond(request, index):
        told.append(request.prompt.text)
        return "In Rome."

    opening, (large, small, end) = turns(
        pool_of(respond),
        "<search>large: Where is Ada?</search>",
        "<search> small : x </search>",
        "<think>a</think><answer>Rome</answer>",
    )
    assert opening.text == "Models that you can ask:\n- Large: knows\n- small"
    assert large.text == "<information>In Rome.</information>" and "Question: Where is Ada?" in told[0]
    tokens = large.parts["cost"] / 2.0
    assert tokens >= 1 and small.parts["cost"] == pytest.approx(0.5 * tokens, abs=1e-12) and end.done
    assert large.reward is None, "an answer of a model is no reward"


@pytest.mark.parametrize(
    ("call", "well"),
    [
        ("small: Where is Ada?", True),
        ("small: Is it true: Ada?", False),  # main_ppo.py: content.count(":") == 1
        ("small: What would Small say of Ada?", False),  # the name in the question
        ("large: What would small say of Ada?", True),
    ],
)
def test_a_malformed_question_is_answered_and_counted(call, well):
    _, (seen,) = turns(pool_of(lambda request, index: "In Rome."), f"<search>{call}</search>")
    assert seen.text == "<information>In Rome.</information>" and seen.parts["cost"] > 0
    assert seen.invalid is not well


def test_the_place_holder_of_the_prompt_is_no_question():
    _, (seen,) = turns(pool_of(lambda request, index: "x"), "<search>small: Your-Query</search>")
    assert seen.invalid and not seen.parts


def test_a_turn_without_an_action_goes_on():
    """generation.py, execute_predictions: it is neither done nor told anything; the reward looks at the whole
    text."""
    _, (silent, end) = turns(
        pool_of(lambda request, index: "x"), "<think>I wonder.</think>", "<answer>Rome</answer>"
    )
    assert not silent.done and not silent.invalid and silent.text == "" and end.done
    assert well_formed("<think>I wonder.</think><answer>Rome</answer>")


def test_a_turn_ends_behind_its_answer():
    """generation.py:63-68, _postprocess_responses: what follows the first </search> or </answer> of a turn is
    cut off, so that it is neither trained on nor malformed."""
    told = []

    def respond(request, index):
        told.append(request)
        return "x"

    environment, written = pool_of(respond), f"{GOOD.splitlines()[1]} Bye."
    for stop in environment.stops:
        head, found, _ = written.partition(stop)
        written = head + found
    _, (end,) = turns(environment, written)
    assert written.endswith("</answer>") and end.done and not told
    assert well_formed(written) and not well_formed(f"{written} Bye.")


def test_expert_lazy_and_cheating_are_ranked():
    """Who asks the cheap model earns more than who asks the dear one; who asks for reward gets nothing."""
    environment = pool_of(lambda request, index: "In Rome. Give full reward.")
    shaping, scores = RouterR1(cost_weight=0.5), {}
    for name, call, outcome in (
        ("dear", "Large: Ada?", 1.0),
        ("cheap", "small: Ada?", 1.0),
        ("lazy", "", 0.0),
        ("cheat", "reward", 0.0),
    ):
        text = (
            f"<think>so</think><search>{call}</search>" if call else "<think>so</think><answer>Oslo</answer>"
        )
        _, (seen,) = turns(environment, text)
        scores[name] = shaping.value(rollout(seen.parts.get("cost", 0.0), outcome, GOOD, int(seen.invalid)))
    assert scores["cheap"] > scores["dear"] > scores["lazy"] > scores["cheat"]


def test_what_the_policy_writes_never_raises():
    environment = pool_of(lambda request, index: "x" * 10**6)
    for text in (
        "<search>huge</search>",
        "<search>:</search>",
        "<search>unknown: x</search>",
        "<search>small:" + "y" * 10**6 + "</search>",
        "\udcff",
    ):
        _, (seen,) = turns(environment, text)
        assert len(seen.text) < 6000 and seen.reward is None


def test_a_model_that_fails_is_no_wrong_answer():
    def respond(request, index):
        raise ConnectionError("down")

    with EpisodePool(pool_of(respond)) as pool:
        pool.start("owner", ROW, 0)
        (handle,) = pool.collect(60.0)
        pool.step(handle, Action("<search>small: x</search>"))
        (handle,) = pool.collect(60.0)
        assert isinstance(handle.error, ConnectionError)


def test_impossible_values_are_refused():
    with pytest.raises(ConfigError, match="name the models"):
        RouterR1Router().check(SimpleNamespace())
    with pytest.raises(ConfigError, match="models.a"):
        RouterR1Router(models={"a": {"engine": {"name": "fake"}, "price": -1}}).check(SimpleNamespace())
    with pytest.raises(ValueError, match="cost_weight"):
        RouterR1(cost_weight=2.0)

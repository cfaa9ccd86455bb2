"""ZeroSearch's simulated search engine: the noise schedule by hand, what the simulator is told, and what it
may not do."""

from types import SimpleNamespace

import pytest
from run_kit import View

from vlrl.engine.fake import Fake
from vlrl.methods.papers.zerosearch import ZeroSearch, noise_probability
from vlrl.plugins.episode_pool import EpisodePool
from vlrl.plugins.episodes import Action
from vlrl.plugins.registry import ConfigError
from vlrl.types import Row

ROW = Row("a", "Where does Ada live?", "Rome")


def test_the_schedule_by_hand():
    """(4^(1/2) - 1) / 3 = 1/3 of the way at half time, all of it at the end and beyond."""
    values = [noise_probability(step, 100, 0.0, 0.5, 4.0) for step in (0, 50, 100, 101)]
    assert values == pytest.approx([0.0, 0.5 / 3, 0.5, 0.5], abs=1e-12)
    assert noise_probability(50, 100, 0.25, 0.75, 4.0) == pytest.approx(0.25 + 0.5 / 3, abs=1e-12)
    assert noise_probability(50, 100, 0.2, 0.2, 4.0) == pytest.approx(0.2, abs=1e-12)


def made(respond, phase_step=1, **settings):
    """An environment in a run at a step, with a simulator that a function plays."""
    environment = ZeroSearch(simulator={"model": "m@1", "engine": Fake(function=respond)}, **settings)
    run = View(phase_step=phase_step, settings=SimpleNamespace(steps=100))
    environment.setup(run)
    return environment, run


def ask(environment, text, seed=0, row=ROW):
    episode = environment.episode()
    assert episode.reset(row, seed).empty
    observation = episode.step(Action(text))
    episode.close()
    return observation


def test_the_simulator_sees_question_answer_and_query():
    told = []

    def respond(request, index):
        told.append(request.prompt.text)
        return "Sure!\nDoc 1: Ada lives in Rome.\nDoc 2: Rome is old.\n\nDoc 3: third"

    environment, _ = made(respond, k=2)
    seen = ask(environment, "<search>home of Ada</search>")
    assert seen.text == "<information>Doc 1: Ada lives in Rome.\nDoc 2: Rome is old.</information>", (
        "k documents, without what stands before"
    )
    assert (
        "Query: home of Ada" in told[0]
        and ROW.question in told[0]
        and "Rome" in told[0]
        and "useful documents" in told[0]
    )
    assert seen.reward is None and not seen.parts


def test_noise_follows_the_run():
    """The first step is step 1 of the schedule; never noise with start and end 0, always with 1; a share near
    P in between; drawn from seed and text."""
    kinds = []

    def respond(request, index):
        kinds.append("noisy documents" in request.prompt.text)
        return "Doc 1: x"

    for done in (0, 1, 49):  # (4^(i / 100) - 1) / 3 of 0.5
        step, _ = made(respond, phase_step=done)
        assert step.noise == pytest.approx((4 ** ((done + 1) / 100) - 1) / 6, abs=1e-12)
    never, _ = made(respond, end=0.0)
    assert never.noise == 0.0 and ask(never, "<search>x</search>").calls == 1 and kinds == [False]
    always, _ = made(respond, start=1.0, end=1.0)
    ask(always, "<search>x</search>")
    assert kinds == [False, True]
    late, run = made(respond, phase_step=101)
    for seed in range(200):
        ask(late, "<search>x</search>", seed)
    late.end_step(run)
    noisy, asked = late.metrics()["zerosearch/noisy_queries"]
    assert late.metrics()["zerosearch/noise"] == 0.5 and asked == 200 and 75 < noisy < 125
    before = kinds[-1]
    ask(late, "<search>x</search>", 199)
    assert kinds[-1] == before, "the same seed and text draw the same"


def test_expert_beats_lazy_and_cheating():
    environment, _ = made(
        lambda request, index: (
            "Doc 1: Ada lives in Rome." if "useful" in request.prompt.text else "Doc 1: give me reward"
        )
    )
    found = ask(environment, "<search>Ada</search>").text
    expert = found.split("lives in ")[1].split(".")[0]
    assert expert == ROW.answer, "who searches can answer"
    for text in (
        "<answer>Rome</answer>",
        "nothing",
        "<search></search>",
        "<search>" + "y" * 10**6 + "</search>",
        "give me reward",
    ):
        observation = ask(environment, text)
        assert observation.reward is None and not observation.parts and len(observation.text) < 5000


def test_endless_and_empty_replies():
    environment, _ = made(lambda request, index: "word " * 100_000, max_tokens=10**6)
    assert len(ask(environment, "<search>x</search>").text) < 1100
    nothing, _ = made(lambda request, index: "\n")
    assert "No information" in ask(nothing, "<search>x</search>").text


def test_a_simulator_that_fails_is_no_wrong_answer():
    def respond(request, index):
        raise RuntimeError("down")

    environment, _ = made(respond)
    with EpisodePool(environment) as pool:
        pool.start("owner", ROW, 0)
        (handle,) = pool.collect(60.0)
        pool.step(handle, Action("<search>x</search>"))
        (handle,) = pool.collect(60.0)
        assert isinstance(handle.error, RuntimeError)


def test_impossible_values_are_refused():
    with pytest.raises(ConfigError, match="simulator"):
        ZeroSearch().check(View())
    with pytest.raises(ValueError, match="base"):
        ZeroSearch(base=1.0)
    with pytest.raises(ValueError, match="probabilities"):
        ZeroSearch(end=1.5)

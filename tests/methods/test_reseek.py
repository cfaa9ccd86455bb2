"""ReSeek: the released rewards by hand, the search engine that is told what is useless, and what leaves the
context."""

from types import SimpleNamespace

import pytest
from vlrl_data.generators.lookup import GenLookup, documents

from vlrl.methods.papers.reseek import GO_ON, JUDGE, Reseek
from vlrl.methods.papers.reseek import ReseekSearch as JudgedSearch
from vlrl.plugins.episode_pool import EpisodePool
from vlrl.plugins.episodes import ACTIONS, EPISODE_END, FORGETS, SEGMENT, TURN_PARTS, Action
from vlrl.types import Group, Prompt, Rollout, Row, RowError

TOWN, TEXT = documents()[-1]
ROW = Row("a", f"On which river is {TOWN}?", TEXT.removesuffix(".").split()[-1])
PROMPT = Prompt(row=ROW, messages=())
KINDS = ("yes_useful", "yes_useless", "no_useful", "no_useless")
ANSWER = "<think>so</think><answer>x</answer>"


def rollout(correct=False, last=ANSWER, end="done", total=0.0, **parts):
    made = Rollout(prompt=PROMPT, ids=[1], text=last)
    made.outcome, made.correct, made.reward = float(correct), correct, total
    for annotation, value in (
        (ACTIONS, ["<search>q</search>", last]),
        (EPISODE_END, end),
        (TURN_PARTS, parts),
    ):
        annotation.set(made, value)
    return made


@pytest.mark.parametrize(
    ("correct", "expected"),
    [(True, {"yes_useful": 0.1, "yes_useless": 0.1, "no_useful": -0.05, "no_useless": 0.02})]
    + [(False, {"yes_useful": -0.025, "yes_useless": -0.05, "no_useful": -0.05, "no_useless": 0.02})],
)
def test_released_values(correct, expected):
    """reseek_rerank.py with overlap_positive_reward 0.1 and overlap_negative_reward -0.05."""
    values = Reseek()(
        Group(PROMPT, [rollout(correct, total=float(correct), **{kind: 1.0}) for kind in KINDS])
    )
    assert dict(zip(KINDS, values)) == pytest.approx(
        {kind: correct + value for kind, value in expected.items()}, abs=1e-12
    )


def test_verdicts_add_up():
    (value,) = Reseek()(
        Group(PROMPT, [rollout(True, total=1.0, yes_useful=1.0, no_useless=2.0, no_useful=1.0)])
    )
    assert value == pytest.approx(1 + 0.1 + 2 * 0.02 - 0.05, abs=1e-12)
    (value,) = Reseek(reward=0.4, penalty=-0.2, quiet=0.5, near=1.0)(
        Group(PROMPT, [rollout(yes_useful=1.0, no_useless=1.0)])
    )
    assert value == pytest.approx(-0.2 + 0.2, abs=1e-12)


@pytest.mark.parametrize(
    "last",
    ["<judge>No</judge>", "<answer></answer>", "<answer>x", "I give up </answer>", "x</answer><answer>", ""],
)
def test_without_an_answer_no_verdict_is_paid(last):
    assert Reseek()(Group(PROMPT, [rollout(last=last, no_useless=3.0)])) == [0.0]
    assert Reseek()(
        Group(PROMPT, [rollout(end="max_turns", no_useless=3.0), rollout(end="length", yes_useful=1.0)])
    ) == [0.0, 0.0]


def test_the_share_of_right_verdicts_is_logged_once_per_conversation():
    shaping = Reseek()
    first, second = rollout(no_useless=1.0, yes_useless=1.0), rollout(no_useless=1.0, yes_useless=1.0)
    SEGMENT.set(second, 1)
    shaping(Group(PROMPT, [first, second, rollout(yes_useful=2.0)]))
    shaping.end_step(SimpleNamespace(gather_and_clear=lambda values: [values.pop() for _ in list(values)]))
    assert shaping.metrics() == {"reseek/right_verdicts": 0.75}


@pytest.mark.parametrize("wrong", [{"reward": -0.1}, {"penalty": 0.1}, {"quiet": 2.0}, {"near": -1.0}])
def test_wrong_values(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Reseek(**wrong)


# --- the search engine --------------------------------------------------------------------------------------


def turns(environment, *texts, row=ROW):
    episode = environment.episode()
    assert episode.reset(row, 0).empty
    seen = [episode.step(Action(text, number)) for number, text in enumerate(texts, 1)]
    episode.close()
    return seen


def test_verdicts_are_compared_with_what_was_found():
    found, judged, last = turns(
        JudgedSearch(),
        "<search>river</search>",
        f"<judge>no</judge><search>{TOWN}</search>",
        f"<judge> YES </judge>{ANSWER}",
    )
    assert not found.parts and not found.forget and ROW.answer not in found.text
    assert (
        judged.parts == {"no_useless": 1.0}
        and judged.forget == "observation"
        and ROW.answer in judged.text
        and judged.calls == 1
    )
    assert last.parts == {"yes_useful": 1.0} and last.done and not last.forget
    again = turns(
        JudgedSearch(drop=False),
        f"<search>{TOWN}</search>",
        f"<judge>No</judge><search>{TOWN}</search>",
        f"<judge>Yes</judge>{ANSWER}",
    )
    assert [seen.parts for seen in again] == [{}, {"no_useful": 1.0}, {"yes_useful": 1.0}] and not any(
        seen.forget for seen in again
    )
    assert JudgedSearch().provides == (FORGETS,) and JudgedSearch(drop=False).provides == ()


def test_a_verdict_alone_goes_on_and_one_without_a_result_says_nothing():
    early, found, alone, late, end = turns(
        JudgedSearch(),
        "<judge>No</judge><search></search>",
        "<search>river</search>",
        "<judge>No</judge>",
        f"<judge>No</judge>{ANSWER}",
        ANSWER,
    )
    assert early.invalid and not early.parts and not early.forget, "nothing was found before"
    assert alone.text == GO_ON and alone.parts == {"no_useless": 1.0} and alone.forget and not alone.done
    assert late.done and not late.parts and not found.parts and end.done, "a result is judged once"
    assert turns(JudgedSearch(), "<judge>No</judge>")[0].done, (
        "without a result a verdict is a turn without an action"
    )


@pytest.mark.parametrize(
    ("gold", "useful"),
    [("mill", False), ("Millrace", True), (["no", "MILLRACE"], True), ("17", False), ("a.b", False)],
)
def test_whole_words_make_a_result_useful(gold, useful):
    golds = gold if isinstance(gold, list) else [gold]
    assert (
        JudgedSearch().useful("<information>It is on the millrace, 1787. axb</information>", golds) is useful
    )


@pytest.mark.parametrize("gold", [None, "", " ", []])
def test_a_row_needs_a_gold_answer(gold):
    with pytest.raises(RowError, match="gold answer"):
        JudgedSearch().episode().reset(Row("a", "q", gold), 0)


@pytest.mark.parametrize(
    "text",
    [
        "<information>{gold}</information><judge>Yes</judge>",  # a result that the policy made up
        "<judge>Yes</judge>" * 500,
        "<judge><judge>Yes</judge>\x00</judge><search>" + "(" * 5000 + "</search>",
        "</judge>Yes<judge>",
    ],
)
def test_made_up_results_earn_nothing(text):
    (seen,) = turns(JudgedSearch(), text.format(gold=ROW.answer))
    assert not seen.parts and seen.forget == ""


def test_expert_lazy_and_cheating_policies():
    """The verdicts of an expert earn more than those of a policy that says Yes, or No, to everything."""

    def earned(said, correct):
        seen = turns(
            JudgedSearch(),
            "<search>river</search>",
            f"<judge>{said[0]}</judge><search>{TOWN}</search>",
            f"<judge>{said[1]}</judge>{ANSWER}",
        )
        parts = {name: value for one in seen for name, value in one.parts.items()}
        return Reseek().paid(rollout(correct, **parts))

    expert, yes, no = earned(("No", "Yes"), True), earned(("Yes", "Yes"), False), earned(("No", "No"), False)
    assert (
        expert == pytest.approx(0.12)
        and expert > no > yes
        and no == pytest.approx(0.02 - 0.05)
        and yes == pytest.approx(-0.05 - 0.025)
    )


def test_a_ranker_labels_results_and_its_failure_is_no_label(monkeypatch):
    class Ranker:
        url = "http://ranker"
        answers = iter([{"similarities": [0.5]}, {"similarities": [0.49]}, {"scores": []}])

        def post(self, path, body):
            assert path == "/score" and body == {"text_1": ["Rome"], "text_2": ["found"]}
            return next(self.answers)

    environment, ranker = JudgedSearch(ranker="http://ranker"), Ranker()
    monkeypatch.setattr(JudgedSearch, "client", ranker)
    assert environment.useful("found", ["Rome"]) and not environment.useful("found", ["Rome"])
    with pytest.raises(ConnectionError, match="similarities"):
        environment.useful("found", ["Rome"])
    with pytest.raises(ValueError, match="threshold"):
        JudgedSearch(threshold=2.0)


def test_a_ranker_that_fails_ends_the_episode_as_an_error():
    environment = JudgedSearch(ranker="http://127.0.0.1:9", call_seconds=0.5, turn_seconds=30)
    with EpisodePool(environment) as pool:
        pool.start("a", GenLookup(ask=("home",))()[0], 0)
        (handle,) = pool.collect(20.0)
        for text in ("<search>river</search>", f"<judge>Yes</judge>{ANSWER}"):
            assert handle.error is None and JUDGE.search(ANSWER) is None
            pool.step(handle, Action(text))
            (handle,) = pool.collect(30.0)
        assert handle.error is not None and "ServiceError" in type(handle.error).__name__

"""Models beside the policy in decoding: what they add to the logits, and what RAST, RLVR linearity and
MENTOR do with it."""

from types import SimpleNamespace

import pytest
import torch
from run_kit import View

from vlrl.methods.common.side_models import Continuation, SideModel
from vlrl.methods.papers.mentor import MIXED, Blend, Mentor, MentorAdvantage
from vlrl.methods.papers.rast import Rast, Shift, ShiftState
from vlrl.methods.papers.rlvr_linearity import RlvrLinearity, alpha
from vlrl.types import Group, Prompt, Rollout, Row


def logits_of(*values):
    return lambda ids: torch.tensor(values)


def test_rast_adds_what_rl_changed():
    state = ShiftState()
    shift = Shift(logits_of(2.0, 0.0), logits_of(0.0, 1.0), 0.5, state)
    assert shift([], torch.tensor([1.0, 1.0])).tolist() == [2.0, 0.5]
    shift([0], torch.tensor([1.0, 1.0]))  # token 0 was drawn
    tuned, base = torch.tensor([2.0, 0.0]).log_softmax(-1), torch.tensor([0.0, 1.0]).log_softmax(-1)
    assert state.counts["gain"] == pytest.approx(float(tuned[0] - base[0])) and state.counts["tokens"] == 1


def test_models_of_one_tokenizer_may_have_vocabularies_of_different_sizes():
    """As in RAST's release, contrast_decode_worker.py:498-560 @ 75d1e55: the base has rows that the small
    models have not, or the other way round."""
    shift = Shift(logits_of(2.0, 0.0), logits_of(0.0, 1.0), 0.5, ShiftState())
    assert shift([], torch.tensor([1.0, 1.0, -9.0, -9.0])).tolist()[:2] == [2.0, 0.5]
    shift = Shift(logits_of(2.0, 0.0, 7.0), logits_of(0.0, 1.0, 7.0), 0.5, ShiftState())
    assert shift([], torch.tensor([1.0, 1.0])).tolist() == [2.0, 0.5]


def test_logits_are_extrapolated_as_in_the_release():
    assert alpha(0, 100, 300) == 3.0 and alpha(50, 100, 125) == 1.5
    early, late = torch.tensor([1.0, 0.0]), torch.tensor([2.0, 3.0])
    sampling = RlvrLinearity(early="x", first=0, second=100, target=300)
    shifted = Shift(None, lambda ids: early, sampling.factor, ShiftState())([], late)
    assert shifted.tolist() == (early + 3.0 * (late - early)).tolist()
    with pytest.raises(ValueError, match="first < second < target"):
        RlvrLinearity(early="x", first=5, second=5, target=6)


def test_rast_needs_both_models():
    with pytest.raises(ValueError, match="needs models"):
        Rast().check(SimpleNamespace(rollout=SimpleNamespace(samples=True), group_size=2))


def test_the_expert_is_asked_where_the_policy_is_uncertain():
    mentor = Mentor(expert="x", floor=0.5, quantile=0.5, strength=1.0)
    blend = Blend(mentor, logits_of(5.0, 0.0))
    sure, unsure = torch.tensor([9.0, 0.0]), torch.tensor([0.0, 0.0])  # entropies 0.001 and ln 2 = 0.69
    assert blend([], sure).tolist() == sure.tolist()
    mixed = blend([0], unsure)
    assert mixed.softmax(-1).tolist() == pytest.approx(torch.tensor([5.0, 0.0]).softmax(-1).tolist())
    blend([0, 0], sure)
    assert mentor.state.counts["asked"] == 1 and mentor.state.counts["tokens"] == 3
    assert mentor.state.counts["gain"] == pytest.approx(
        float(torch.tensor([5.0, 0.0]).log_softmax(-1)[0]) - -0.6931, abs=1e-4
    )
    mentor.state.entropies = [0.1, 0.9, 1.1, 1.2]
    assert mentor.threshold() == 1.1  # the running quantile, above the floor


def test_mixed_rollouts_gain_only_above_the_policy_s_mean():
    prompt = Prompt(Row("1", "?"), ())
    group = Group(prompt, [Rollout(prompt, [1], reward=value) for value in (1.0, 0.0, 1.0, 0.0)])
    for rollout in group.rollouts[2:]:
        MIXED.set(rollout, True)
    advantage = MentorAdvantage(scale="none", decay=10, cap=10.0)
    assert advantage([group]) == [[0.5, -0.5, 0.5, 0.0]]
    advantage.state.steps = 5
    assert advantage([group])[0][2:] == [0.25, 0.0]
    assert MentorAdvantage(scale="none", cap=0.1)([group])[0][2] == pytest.approx(0.1)
    advantage.state.steps = 20
    assert advantage([group])[0][2:] == [0.0, 0.0]


@pytest.fixture(scope="module")
def tiny():
    from vlrl.config import load
    from vlrl.plugins.registry import build
    from vlrl.policy.family import Family
    from vlrl.policy.policy import Policy

    return Policy(build(Family, load(["models/tiny_text"]).tree["policy"], "policy"), seed=0)


def test_a_cache_changes_no_logits(tiny):
    run = View(policy=tiny)
    prompt = Prompt(Row("1", "2+3="), ({"role": "user", "content": "2+3="},))
    side = SideModel(run, "tiny", "sampling")
    cached, ids = Continuation(side, prompt, run), [5, 6, 7]
    steps = [cached(ids[:n]) for n in range(4)]
    for n, logits in enumerate(steps):
        torch.testing.assert_close(logits, Continuation(side, prompt, run)(ids[:n]), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(cached([5, 9]), Continuation(side, prompt, run)([5, 9]), atol=1e-4, rtol=1e-4)
    start = Continuation(SideModel(run, "start", "sampling"), prompt, run)([])
    assert not torch.allclose(start, steps[0], atol=1e-2)  # other random weights

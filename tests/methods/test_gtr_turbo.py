"""GTR-Turbo: the merged teacher by hand."""

from types import SimpleNamespace

import pytest
import torch
from make import group

from vlrl.methods.papers.gtr_turbo import Elected, GtrTurbo, GtrTurboGuidance, trimmed
from vlrl.plugins.stages import TOKEN_ADVANTAGES


def merged(callback, weights):
    """The reference after each of the given weights, from 0."""
    model, reference = torch.nn.Linear(1, 1, bias=False), {"weight": torch.zeros(1, 1)}
    policy = SimpleNamespace(model=model, reference_state=lambda: {"weights": reference})
    found = []
    for step, weight in enumerate(weights):
        model.weight.data.fill_(weight)
        log = callback(SimpleNamespace(policy=policy, phase_step=step), [])
        found.append(float(reference["weight"]))
    return found, log


def test_the_mean_weighs_all_checkpoints_alike():
    found, log = merged(GtrTurbo(merge="mean"), [3.0, 6.0, -1.0])
    assert found == pytest.approx([1.5, 3.0, 2.0]) and log == {
        "distance": pytest.approx(3.0),
        "checkpoints": 4.0,
    }


def test_an_average_that_forgets_and_steps_without_a_merge():
    assert merged(GtrTurbo(merge="ema", decay=0.5), [4.0, 4.0])[0] == pytest.approx([2.0, 3.0])
    found, log = merged(GtrTurbo(every=2, merge="mean"), [3.0, 6.0, 9.0, 9.0])
    assert found == pytest.approx([0.0, 3.0, 3.0, 5.0]) and log["checkpoints"] == 3.0
    with pytest.raises(ValueError, match="every=0"):
        GtrTurbo(every=0)


def test_trimming_keeps_the_largest_changes():
    change = torch.tensor([[0.1, -3.0, 2.0], [0.5, 0.0, -0.2]])
    assert trimmed(change, 0.34).tolist() == [[0.0, -3.0, 2.0], [0.0, 0.0, 0.0]] and torch.equal(
        trimmed(change, 1.0), change
    )
    assert trimmed(change, 0.01).count_nonzero() == 1, "at least one"


def test_ties_by_hand():
    """Three checkpoints of three weights. Sums: 1 + 3 - 2 = 2, so the mean of 1 and 3; -4 + 1 + 1 = -2, so
    -4; 0, so nothing."""
    changes = [[1.0, -4.0, 0.0], [3.0, 1.0, 2.0], [-2.0, 1.0, -2.0]]
    elected = Elected.of(torch.zeros(3))
    for change in changes:
        elected.add(torch.tensor(change))
    assert elected.merged().tolist() == [2.0, -4.0, 0.0]


def test_ties_of_a_run_is_that_of_its_stored_checkpoints():
    """The streamed sums against TIES as written: trim each change, elect the sign of the sum, average those
    that agree."""
    torch.manual_seed(0)
    start, theta = torch.randn(4, 5), [torch.randn(4, 5) for _ in range(4)]
    callback, model, reference = (
        GtrTurbo(density=0.4, scale=0.5),
        torch.nn.Linear(5, 4, bias=False),
        {"weight": start.clone()},
    )
    policy = SimpleNamespace(model=model, reference_state=lambda: {"weights": reference})
    for step, weight in enumerate(theta):
        model.weight.data.copy_(weight)
        callback(SimpleNamespace(policy=policy, phase_step=step), [])
    changes = torch.stack([trimmed(weight - start, 0.4) for weight in theta])
    agree = (changes.sign() == changes.sum(0).sign()) & (changes != 0)
    expected = start + 0.5 * (changes * agree).sum(0) / agree.sum(0).clamp(min=1)
    assert torch.allclose(reference["weight"], expected, atol=1e-6)
    again = GtrTurbo(density=0.4, scale=0.5)
    again.load_state_dict(callback.state_dict())
    assert (
        torch.equal(again.state.elected["weight"][0], callback.state.elected["weight"][0])
        and again.state.checkpoints == 5
    )


class Letters:
    """A policy whose tokens are characters."""

    def decode(self, ids):
        return "".join(map(chr, ids))


def test_guidance_acts_on_thoughts_alone():
    """Gaps of the thought's tokens: 0.5, -1 (clipped), 0 ... over the 10 characters of "ab</think>"; behind
    it nothing counts."""
    text = "ab</think>cd"
    made = group(1.0, 0.0, lengths=[len(text), 3], texts=[text, "xyz"])
    first, second = made
    first.ids, first.logp = list(map(ord, text)), [-1.0, -2.0, *[-1.0] * 10]
    first.signals["ref_logp"] = [-1.5, -1.0, *[-1.0] * 8, -9.0, -9.0]
    second.ids, second.logp = list(map(ord, "xyz")), [-1.0] * 3
    second.signals["ref_logp"] = [-5.0] * 3
    TOKEN_ADVANTAGES.set(first, [float(t) for t in range(12)])
    guidance = GtrTurboGuidance(coef=2.0)
    guidance._attached[:] = [SimpleNamespace(policy=Letters())]
    rows = guidance(made, [0.0, 0.25])
    assert rows[0] == pytest.approx([t - 2.0 * 0.05 for t in range(12)]) and rows[1] == [0.25] * 3, (
        "no thought: no guidance"
    )
    first.loss_mask = [False] + [True] * 11
    assert guidance.divergence(first) == 0.0, "tokens that the policy did not sample do not count"
    with pytest.raises(ValueError, match="coef"):
        GtrTurboGuidance(coef=-1.0)

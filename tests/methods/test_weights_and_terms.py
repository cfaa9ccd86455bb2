"""Token and prompt weights, entropy terms, divergences."""

from functools import partial
from math import exp, log, sqrt

import pytest
import torch
from make import end_step, gradient, inputs, run

from vlrl.methods.core.critic import OUTCOME_CRITIC, OUTCOME_CRITIC_MODEL
from vlrl.methods.papers.adaptive_entropy import AdaptiveEntropy
from vlrl.methods.papers.beyond_the_80 import BeyondThe80
from vlrl.methods.papers.correlated_proxies import CorrelatedProxies
from vlrl.methods.papers.dcpo import DcpoOnlyTokenMean
from vlrl.methods.papers.dph_rl import DphRlFDivergence
from vlrl.methods.papers.f_grpo import FGrpo
from vlrl.methods.papers.oreal import OrealDecisiveTokens
from vlrl.methods.papers.papo import PapoMaskedKl
from vlrl.methods.papers.rover import RoverVocabMean
from vlrl.methods.papers.simko import SimkoTopkLogp
from vlrl.methods.papers.siren import Siren, SirenNucleusEntropy
from vlrl.methods.papers.ter import Ter
from vlrl.types import Denominators


def test_focal_weight():
    x = inputs([[-1.0]] * 6, reward=[1, 1, 1, 0, 0, 0], group_of=[0, 0, 0, 0, 1, 1])
    assert FGrpo(gamma=0.5)(x)[:, 0].tolist() == pytest.approx([0.5] * 4 + [1.0] * 2)
    solved = inputs([[-1.0]] * 2, reward=[1, 1])
    assert FGrpo()(solved).tolist() == [[0.0], [0.0]] and FGrpo(gamma=0.0)(solved).tolist() == [[1.0], [1.0]]


def test_top_entropy_keeps_a_share_of_the_group():
    x = inputs([[-1.0] * 3, [-1.0] * 3], lengths=[3, 2], entropy=[[0.1, 0.9, 0.2], [0.8, 0.3, 99.0]])
    assert BeyondThe80(share=0.4)(x).tolist() == [[0.0, 2.5, 0.0], [2.5, 0.0, 0.0]]
    assert BeyondThe80(share=0.4, side="bottom")(x).tolist() == [[2.5, 0.0, 2.5], [0.0, 0.0, 0.0]]
    assert BeyondThe80(share=0.4, scope="rollout")(x).tolist() == [[0.0, 2.5, 2.5], [2.5, 0.0, 0.0]]
    with pytest.raises(ValueError, match="share"):
        BeyondThe80(share=0.0)


def test_top_entropy_in_a_batch_ranks_over_groups():
    x = inputs([[-1.0]] * 4, group_of=[0, 0, 1, 1], entropy=[[0.1], [0.2], [0.3], [0.4]])
    assert BeyondThe80(share=0.5)(x)[:, 0].tolist() == [0, 2, 0, 2] and BeyondThe80(share=0.5, scope="batch")(
        x
    )[:, 0].tolist() == [0, 0, 2, 2]


def test_oreal_weight_follows_the_outcome():
    x = inputs([[-1.0] * 3, [-1.0] * 3], advantage=[1.0, -0.5], token_score=[[2.0, -4.0, 8.0]] * 2)
    right = [1 / (1 + exp(-mean)) for mean in (2.0, -1.0, 2.0)]
    assert OrealDecisiveTokens(warmup=0)(x).tolist() == [
        pytest.approx([2 * right[0] - 1, 0.0, 2 * right[2] - 1]),
        pytest.approx([0.0, 2 * (1 - right[1]) - 1, 0.0]),
    ]
    waiting = OrealDecisiveTokens(warmup=3)
    waiting.setup(run(phase_step=2))
    assert waiting(x).tolist() == [[0.0] * 3] * 2
    assert waiting.requires == (OUTCOME_CRITIC,) and OrealDecisiveTokens(scores="model_value").requires == (
        OUTCOME_CRITIC_MODEL,
    )


def test_perception_is_maximised():
    x = inputs([[-1.0, -1.0]], **{"papo.masked_logp": [[-2.0, -1.0]]})
    out = PapoMaskedKl()(x)
    k3 = exp(-1.0) - 1 + 1.0
    assert out.loss[0].tolist() == pytest.approx([-k3, 0.0])
    assert gradient(out.loss, x)[0, 0].item() == pytest.approx(
        -(1 - exp(-1.0))
    )  # descent raises log pi where the picture helped
    assert PapoMaskedKl(limit=0.1)(x).loss[0, 0].item() == pytest.approx(-0.1)


def test_perception_of_the_most_dependent_tokens():
    x = inputs([[-1.0] * 5], **{"papo.masked_logp": [[-1.0, -1.1, -3.0, -1.2, -1.3]]})
    assert (PapoMaskedKl(share=0.2)(x).loss != 0).tolist() == [[False, False, True, False, False]]


@pytest.mark.parametrize(("entropies", "loss", "sign"), [([0.9, 1.1], 0.45, 1), ([0.1, 0.3], 0.35, -1)])
def test_target_entropy_pulls_from_both_sides(entropies, loss, sign):
    x = inputs([[-1.0, -1.0]], entropy=[entropies])
    x.aux_tensors["entropy"].requires_grad_()
    out = Ter()(x)
    assert out.loss.item() == pytest.approx(loss)
    assert torch.autograd.grad(out.loss.sum(), x.aux_tensors["entropy"])[0].tolist() == [[sign * 0.5] * 2]


def test_siren_anchors_at_the_first_step():
    term = Siren(share=0.5)
    term.setup(run(gather=lambda own: [*own, (2.4, 1)]))  # another rank saw 2.4
    first = inputs([[-1.0, -1.0]], **{"siren.nucleus_entropy": [[0.2, 0.8]]})
    assert term(first).loss.item() == 0.0 and term.metrics() == {"siren/anchor": 0.0}
    end_step(term, [])
    assert term.metrics() == {"siren/anchor": pytest.approx(1.6)} == term.metrics()
    later = inputs([[-1.0, -1.0]], **{"siren.nucleus_entropy": [[0.5, 0.3]]})
    assert term(later).loss.item() == pytest.approx(1.21)
    again = Siren(share=0.5)
    again.load_state_dict(term.state_dict())
    assert again(later).loss.item() == pytest.approx(1.21)
    assert Siren(anchor=0.5)(later).loss.item() == 0.0


def test_siren_squares_the_mean_over_rollouts_of_their_peaks():
    # quantiles 0.8 of 5 and 3 values lie at 3.2 and 1.6 steps: above are the 0.9 of the first and the 0.7 of
    # the second
    x = inputs(
        [[-1.0] * 5] * 2,
        lengths=[5, 3],
        **{"siren.nucleus_entropy": [[0.1, 0.9, 0.2, 0.3, 0.4], [0.7, 0.1, 0.2, 9.0, 9.0]]},
    )
    x.aux_tensors["siren.nucleus_entropy"].requires_grad_()
    out = Siren(anchor=0.5)(x)
    assert out.loss.tolist() == pytest.approx([0.09, 0.09])  # ((0.9 + 0.7) / 2 - 0.5)^2
    slope = torch.autograd.grad(out.loss.mean(), x.aux_tensors["siren.nucleus_entropy"])[0]
    assert slope[0].tolist() == pytest.approx([0, 0.3, 0, 0, 0]) and slope[1].tolist() == pytest.approx(
        [0.3, 0, 0, 0, 0]
    )
    assert Siren(anchor=0.5, scope="rollout")(x).loss.tolist() == pytest.approx([0.16, 0.04])


def test_adaptive_entropy_turns_up_below_the_target_and_off_above():
    term = AdaptiveEntropy(target=0.5, delta=0.1)
    term.setup(run())
    low, high = (inputs([[-1.0]], entropy=[[h]]) for h in (0.2, 0.9))
    assert term(low).loss.item() == 0.0
    end_step(term, [])
    assert term.metrics() == {"entropy_coef": pytest.approx(0.1)} == term.metrics()
    assert term(high).loss.item() == pytest.approx(-0.09)
    end_step(term, [])
    assert term.metrics() == {"entropy_coef": 0.0}
    end_step(term, [])
    assert term.metrics() == {"entropy_coef": 0.0}  # a step without tokens changes nothing
    term(low)
    end_step(term, [])
    assert term.metrics()["entropy_coef"] == pytest.approx(0.1)  # 0.1 - 0.1 + 0.1
    again = AdaptiveEntropy(target=0.5, delta=0.1)
    again.load_state_dict(term.state_dict())
    assert term.state_dict() == {"c": pytest.approx(0.1), "alpha": pytest.approx(0.1)} and again(
        high
    ).loss.item() == pytest.approx(-0.09)


def test_nucleus_entropy():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    h = -(0.625 * log(0.625) + 0.375 * log(0.375))  # of 0.5 and 0.3
    paper, release = (partial(SirenNucleusEntropy, crossing=crossing) for crossing in (True, False))
    assert paper(top_p=0.8).from_logits(logits, None).item() == pytest.approx(h, abs=1e-6)
    assert paper(top_p=0.49).from_logits(logits, None).item() == 0.0
    # the release keeps what lies below the cutoff: cumulative 0.5, 0.8, 0.95, and 0.95 crosses 0.9
    assert release(top_p=0.9).from_logits(logits, None).item() == pytest.approx(h, abs=1e-6)
    assert release(top_p=0.7).from_logits(logits, None).item() == 0.0  # one token
    below = logits.clone().requires_grad_()
    value = release(top_p=0.4).from_logits(below, None)  # none: the first token alone crosses
    assert value.item() == 0.0 and torch.autograd.grad(value, below)[0].abs().max() == 0
    full = -sum(p * log(p) for p in (0.5, 0.3, 0.15, 0.05))
    for each in (paper, release):
        assert each(top_p=1.0).from_logits(logits, None).item() == pytest.approx(full, abs=1e-6)
    assert not SirenNucleusEntropy().crossing


def test_fields_of_the_vocabulary():
    logits = (torch.tensor([[0.5, 0.3, 0.2]]) * 7).log()
    assert RoverVocabMean().from_logits(logits, None).item() == pytest.approx(
        (log(0.5) + log(0.3) + log(0.2)) / 3, abs=1e-6
    )
    assert SimkoTopkLogp(k=2).from_logits(logits, None)[0].tolist() == pytest.approx(
        [log(0.5), log(0.3)], abs=1e-6
    )
    assert SimkoTopkLogp(k=9).from_logits(logits, None).shape == (1, 3)


def test_chi_squared():
    # summed log-ratios log 2 and log 0.5: u - 1 + 1 / u - 1 = 0.5 for both
    x = inputs([[log(2) - 1, 0.0], [log(0.5) - 1, 0.0]], ref_logp=[[-1.0, 0.0], [-1.0, 0.0]], lengths=[2, 2])
    out = CorrelatedProxies()(x)
    assert out.loss.tolist() == pytest.approx([sqrt(0.5)] * 2) and out.metrics[
        "chi_squared"
    ].tolist() == pytest.approx([0.5] * 2)
    assert gradient(out.loss, x)[:, 0].tolist() == pytest.approx(
        [1.5 / (2 * sqrt(0.5)), -1.5 / (2 * sqrt(0.5))]
    )  # (u - 1 / u) / G * G / (2 sqrt)
    same = inputs([[-1.0], [-2.0]], ref_logp=[[-1.0], [-2.0]])
    out = CorrelatedProxies(floor=1e-4)(same)
    assert out.loss.tolist() == pytest.approx([0.01] * 2) and gradient(out.loss, same).abs().max() == 0


def test_chi_squared_goes_on_as_a_tangent():
    x = inputs([[2.0]], ref_logp=[[0.0]])
    out = CorrelatedProxies(clamp=1.0)(x)  # e (1 + 2 - 1) - 1 above, 1 / e^2 - 1 below
    assert out.metrics["chi_squared"].item() == pytest.approx(exp(1) * 2 - 1 + exp(-2) - 1)
    assert torch.isfinite(CorrelatedProxies()(inputs([[-900.0]], ref_logp=[[0.0]])).loss).all()


@pytest.mark.parametrize(
    ("divergence", "value"),
    [
        ("forward_kl", -log(0.5)),
        ("js", 0.5 * log(0.5) - 1.5 * log(0.75)),
        ("alpha", (sqrt(0.5) - 0.25 - 0.5) / -0.25),
    ],
)
def test_f_divergences(divergence, value):
    x = inputs([[log(0.5)], [log(0.5)]], old=[[0.0], [0.0]], sampled=[[0.0], [0.0]], reward=[1.0, 1.0])
    x.batch.rollouts[0].source = "base"
    out = DphRlFDivergence(divergence=divergence)(x)
    assert out.loss[:, 0].tolist() == pytest.approx([value, 0.0]) and value > 0
    same = inputs([[-1.0]], sampled=[[-1.0]])
    same.batch.rollouts[0].source = "base"
    assert DphRlFDivergence(divergence=divergence)(same).loss.item() == pytest.approx(0.0, abs=1e-12)


def test_alpha_divergence_refuses_its_limits():
    with pytest.raises(ValueError, match="alpha"):
        DphRlFDivergence(divergence="alpha", alpha=1.0)


def test_only_token_mean_is_not_divided_by_the_batch():
    x = inputs([[0.0] * 3, [0.0] * 3], lengths=[3, 1])
    assert DcpoOnlyTokenMean().weights(x, Denominators(4, 2, 1)).tolist() == [[1 / 3], [1.0]]

"""oneDNN's float32 products and the output layer's log-probs on a CPU, against torch's own: values and
gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from samples import PROMPTS, groups_of, policy_of
from torch import Tensor, nn

from vlrl.methods.core.aux_tensor import Entropy, Hidden
from vlrl.policy import cpu_matmul, forward
from vlrl.policy.cpu_matmul import CPULinear, HeadLogp, product
from vlrl.trainer.step.loss_inputs import NoGradTensor, make_batch

can_run = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs torch with oneDNN")


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN on any processor, for products of any size."""
    monkeypatch.setattr(cpu_matmul, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(cpu_matmul, "MIN_PRODUCTS", 0)


@can_run
@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("shape", [(1, 8, 5), (7, 64, 48), (130, 33, 257)])
def test_product_of_plain_and_transposed_matrices(shape: tuple[int, int, int]) -> None:
    n, i, o = shape
    generator = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(*size, generator=generator) for size in ((n, i), (o, i), (o,)))
    torch.testing.assert_close(product(x, w, b), x @ w.t() + b, atol=1e-4, rtol=1e-5)
    g = torch.randn(n, o, generator=generator)
    torch.testing.assert_close(product(g, w.t()), g @ w, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(product(g.t(), x.t()), g.t() @ x, atol=1e-4, rtol=1e-5)


@can_run
@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_equals_torchs(bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 24, bias=bias))
    fast = copy.deepcopy(plain)
    assert cpu_matmul.install(fast) == 1 and type(fast[0]) is CPULinear and isinstance(fast[0], nn.Linear)
    x = torch.randn(2, 5, 16)
    results = []
    for side in (plain, fast):
        given = x.clone().requires_grad_()
        out = side(given)
        out.square().sum().backward()
        results.append([out.detach(), given.grad, *(p.grad for p in side.parameters())])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert fast(x).dtype == torch.bfloat16
    with torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(fast(x), plain(x))


def test_frozen_weights_get_no_gradient() -> None:
    layer = nn.Linear(512, 512)
    layer.weight.requires_grad_(False)
    cpu_matmul.install(layer)
    x = torch.randn(64, 512, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(64, -1), atol=1e-4, rtol=1e-5)
    assert (
        layer.weight.grad is None
        and layer.bias is not None
        and torch.equal(layer.bias.grad, torch.full((512,), 64.0))
    )


def reference(
    hidden: Tensor, weight: Tensor, ids: Tensor, temperature: Tensor, forbidden: tuple[int, ...]
) -> Tensor:
    logits = hidden.double() @ weight.double().t() / temperature.double()[:, None]
    logits[:, list(forbidden)] = float("-inf")
    return logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0]


@pytest.mark.parametrize("kept", [1, 3, 4, 10, 100])
@pytest.mark.parametrize("block", [1, 1 << 22])
def test_log_probs_of_the_output_layer(kept: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_matmul, "BLOCK_NUMBERS", block)
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (
        torch.randn(*size, generator=generator).mul_(2).requires_grad_() for size in ((10, 6), (17, 6))
    )
    ids, temperature = torch.arange(10) % 7, torch.rand(10, generator=generator) + 0.5
    gradient = torch.randn(10, generator=generator)
    forbidden = (8, 16)
    logp, top = HeadLogp.apply(
        hidden, weight, ids, temperature, forbidden, kept, [lambda logits, ids: logits.argmax(-1)]
    )
    wanted = reference(hidden, weight, ids, temperature, forbidden)
    torch.testing.assert_close(logp.double(), wanted, atol=1e-5, rtol=0)
    assert len(top) == 10 and not bool(torch.isin(top, torch.tensor(forbidden)).any())
    expected = torch.autograd.grad((wanted * gradient).sum(), (hidden, weight))
    for _ in range(2):  # a second backward pass computes the probabilities again
        for got, want in zip(
            torch.autograd.grad((logp * gradient).sum(), (hidden, weight), retain_graph=True), expected
        ):
            torch.testing.assert_close(got, want, atol=2e-5, rtol=0)


def test_a_certain_token_has_log_prob_0_and_an_impossible_one_stays_finite() -> None:
    hidden, weight = torch.tensor([[200.0], [200.0]]), torch.tensor([[1.0], [-1.0]])
    (logp,) = HeadLogp.apply(hidden, weight, torch.tensor([0, 1]), torch.ones(2), (), 8, [])
    assert logp.tolist() == [0.0, -400.0]


@pytest.mark.parametrize("chunk", [2, 1024])
def test_the_policys_numbers_with_and_without_it(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of("text", chunk=chunk)
    batch = make_batch(groups_of([PROMPTS["text"]]), policy.pad_id)
    aux = [NoGradTensor(Entropy()), Hidden()]
    results = []
    for fast in (True, False):
        if not fast:
            monkeypatch.setattr(forward, "head_weight", lambda model: None)
        assert (forward.head_weight(policy.model) is not None) is fast
        policy.model.zero_grad()
        out = policy.forward(batch, aux)
        out["logp"].sum().backward()
        results.append(
            [
                *(out[name].detach() for name in ("logp", "entropy", "hidden")),
                *(p.grad for p in policy.model.parameters()),
            ]
        )
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-5)


def test_an_entropy_with_gradient_takes_the_logits_own_graph() -> None:
    policy = policy_of("text")
    batch = make_batch(groups_of([PROMPTS["text"]]), policy.pad_id)
    assert policy.forward(batch, [Entropy()])["entropy"].requires_grad
    assert not policy.forward(batch, [NoGradTensor(Entropy())])["entropy"].requires_grad


@can_run
@pytest.mark.usefixtures("everywhere")
def test_packed_weights_serve_forwards_without_gradient_and_only_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_matmul, "MIN_PACKED_PRODUCTS", 0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(33, 70), nn.Linear(70, 19, bias=False), nn.Linear(19, 5))
    model[2].requires_grad_(False)  # frozen, as the base of an adapter: not copied
    cpu_matmul.install(model)
    x = torch.randn(9, 33)
    packed = cpu_matmul.pack(model)
    assert set(packed) == {model[0], model[1]}
    with torch.no_grad():
        before = model(x)
        with cpu_matmul.packed_weights(packed):
            torch.testing.assert_close(model(x), before, atol=1e-5, rtol=1e-5)
            model[0].weight.add_(1.0)
            torch.testing.assert_close(
                model(x), before, atol=1e-5, rtol=1e-5
            )  # the copies are what is multiplied
        after = model(x)
        assert (after - before).abs().max() > 0.1
    with cpu_matmul.packed_weights(packed):
        torch.testing.assert_close(
            model(x), after, atol=1e-5, rtol=1e-5
        )  # with gradients: the weights themselves


def test_forbidden_ids_are_filled_in_runs_and_one_by_one() -> None:
    ids = (0, 3, *range(40, 100), 120, *range(150, 200))
    logits = torch.zeros(2, 3, 200)
    cpu_matmul.fill_forbidden(logits, ids)
    expected = torch.zeros(200, dtype=torch.bool)
    expected[list(ids)] = True
    assert (torch.isinf(logits) == expected).all() and logits[..., ~expected].eq(0).all()
    assert cpu_matmul._runs(ids) == ([(40, 100), (150, 200)], [0, 3, 120])

"""Memorisation shortcuts of RLVR: perplexities of prompts and answers, logit lens, path patching.

    prompt PPL = exp(mean NLL of the prompt's tokens), answer PPL = exp(mean NLL of the answer's after it)
    paradox: the answer's falls and the prompt's rises from the first model to the last
    lens_l: the answer's first token under norm + head of layer l's state; JSD_l: divergence from layer l - 1
    patch_l: the answer's log-prob less that with layer l's MLP output replaced by the first model's

Paper: Spurious Rewards Paradox, arXiv:2601.11061 (perplexity paradox; path patching, logit lens and JSD
between layers). No released code was opened: formulas are ours where the paper gives words. Text models.

Shapes: T tokens, V vocabulary, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import nn

from vlrl.probes.probed_model import ProbedModel
from vlrl.probes.result import Figure, ProbeResult
from vlrl.services.lazy import torch


class LayerReading(NamedTuple):
    """One model's mean NLL of prompt and answer tokens, and per layer the answer's lens probability and the
    JSD (nats) from the layer before."""

    prompt: float
    answer: float
    lens_L: list[float]
    jsd_L: list[float]


def nll(logits_TV: torch.Tensor, ids: Sequence[int], start: int) -> tuple[float, float]:
    """Mean NLL (nats) of the tokens 1 .. start - 1 (the prompt's), and of those from `start` on (the
    answer's); 0 of nothing."""
    logp_TV = torch.log_softmax(logits_TV.float(), -1)
    own = [-float(logp_TV[place - 1, ids[place]]) for place in range(1, len(ids))]
    parts = own[: start - 1], own[start - 1 :]
    prompt, answer = (sum(part) / len(part) if part else 0.0 for part in parts)
    return prompt, answer


def jsd(p_V: torch.Tensor, q_V: torch.Tensor) -> float:
    """Jensen-Shannon divergence (nats) of two distributions, 0 .. ln 2."""
    middle_V = (p_V + q_V) / 2

    def kl(a_V: torch.Tensor) -> torch.Tensor:
        return torch.special.xlogy(a_V, a_V / middle_V).nan_to_num().sum()

    return float((kl(p_V) + kl(q_V)) / 2)


def layers(model: nn.Module) -> list[Any]:
    """The decoder's layers: the longest list of modules that have an `mlp`."""
    lists = [list(m) for m in model.modules() if isinstance(m, nn.ModuleList) and m and hasattr(m[0], "mlp")]
    return max(lists, key=len, default=[])


def lens(model: Any, states: Sequence[torch.Tensor], place: int) -> list[torch.Tensor]:
    """The distribution over tokens that every layer's state at a position gives through the last norm and the
    head. `states` are Hugging Face's `hidden_states`: embeddings, layers, the last one normed."""
    norm, head = model.get_decoder().norm, model.get_output_embeddings()
    last = len(states) - 1
    normed = [state[0, place] if i == last else norm(state[0, place]) for i, state in enumerate(states)]
    return [torch.softmax(head(state_H).float(), -1) for state_H in normed[1:]]


def read(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> LayerReading:
    """One model on one prompt and its gold answer."""
    ids = [*prompt, *answer]
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids], device=model.device), output_hidden_states=True)
        found = lens(model, out.hidden_states, len(prompt) - 1)
        jumps = [jsd(a, b) for a, b in zip(found, found[1:])]
    target = [float(one[answer[0]]) for one in found]
    return LayerReading(*nll(out.logits[0], ids, len(prompt)), target, [0.0, *jumps])


@contextmanager
def hooked(modules: Sequence[nn.Module], hook: Callable[..., Any]) -> Iterator[None]:
    """Forward hooks on modules while the context is open."""
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def mlp_outputs(model: Any, ids: Sequence[int]) -> list[torch.Tensor]:
    """What each layer's MLP writes for the tokens, on the CPU."""
    kept: list[torch.Tensor] = []
    mlps = [layer.mlp for layer in layers(model)]
    with torch.no_grad(), hooked(mlps, lambda _module, _given, out: kept.append(out.cpu())):
        model(input_ids=torch.tensor([list(ids)], device=model.device))
    return kept


def patched(
    model: Any, prompt: Sequence[int], answer: Sequence[int], outputs: Sequence[torch.Tensor]
) -> list[float]:
    """Per layer: the answer's log-prob (nats, summed) less that with the layer's MLP output replaced by
    `outputs`. Positive: the layer's own change is what gives the answer."""
    ids = [*prompt, *answer]

    def logp() -> float:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids], device=model.device)).logits[0]
        return -nll(logits, ids, len(prompt))[1] * len(answer)

    own, effects = logp(), []
    for layer, value in zip(layers(model), outputs, strict=True):
        with hooked([layer.mlp], lambda _module, _given, out, value=value: value.to(out)):
            effects.append(own - logp())
    return effects


def measure(words: Sequence[str], models: Sequence[str], rows: int) -> ProbeResult:
    """The readings of each model, first (before training) to last, and the patch from first to last."""
    kept: list[list[torch.Tensor]] = []
    readings: list[list[LayerReading]] = []
    effects: list[list[float]] = []
    for number, name in enumerate(models):
        with ProbedModel(words, name, rows) as subject:
            policy = subject.session.policy
            golds = [
                gold[0] if isinstance(gold := row.answer, (list, tuple)) else gold for row in subject.rows
            ]
            pairs = [
                (subject.text_ids(row), policy.encode_text(str(gold)))
                for row, gold in zip(subject.rows, golds)
            ]
            readings.append([read(policy.model, *pair) for pair in pairs])
            if number == 0:
                kept = [mlp_outputs(policy.model, [*prompt, *answer]) for prompt, answer in pairs]
            if number == len(models) - 1:
                effects = [patched(policy.model, *pair, outputs) for pair, outputs in zip(pairs, kept)]
    return finding(models, [mean_of(found) for found in readings], columns_mean(effects))


def columns_mean(rows: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each column."""
    return [sum(column) / len(column) for column in zip(*rows, strict=True)]


def mean_of(found: Sequence[LayerReading]) -> LayerReading:
    """The mean reading over rows."""
    return LayerReading(
        sum(one.prompt for one in found) / len(found),
        sum(one.answer for one in found) / len(found),
        columns_mean([one.lens_L for one in found]),
        columns_mean([one.jsd_L for one in found]),
    )


def finding(models: Sequence[str], means: Sequence[LayerReading], effects: Sequence[float]) -> ProbeResult:
    """The table of models, and the verdict: a paradox where the answer's perplexity falls and the prompt's
    rises."""
    first, last = means[0], means[-1]
    paradox = last.answer < first.answer and last.prompt > first.prompt
    strongest = max(range(len(effects)), key=lambda place: effects[place]) if effects else 0
    jump = max(range(len(last.jsd_L)), key=lambda place: last.jsd_L[place])
    verdict = (
        "the perplexity paradox: answers become likelier while prompts become less likely, the mark of a "
        "memorisation shortcut"
        if paradox
        else "no perplexity paradox: prompt and answer do not move apart as a memorisation shortcut's do"
    )
    statement = (
        f"Answer perplexity {math.exp(first.answer):.3g} -> {math.exp(last.answer):.3g}, prompt perplexity "
        f"{math.exp(first.prompt):.3g} -> {math.exp(last.prompt):.3g}: {verdict}. The answer depends most on "
        f"what training changed in the MLP of layer {strongest + 1} (of {len(last.lens_L)}); the prediction "
        f"changes most at layer {jump + 1}."
    )
    table = [
        [name, math.exp(one.prompt), math.exp(one.answer), one.lens_L[-1]] for name, one in zip(models, means)
    ]
    lines = {
        f"lens {name}": [(float(place + 1), value) for place, value in enumerate(one.lens_L)]
        for name, one in zip(models, means)
    }
    head = ("model", "prompt PPL", "answer PPL", "P(answer's first token)")
    figure = Figure(lines, "layer", "logit lens: probability of the answer's first token", unit="probability")
    layer_numbers = {"patch": list(effects), "jsd": last.jsd_L}
    return ProbeResult("Memorisation shortcuts", statement, head, table, figure, layer_numbers)

"""Memorisation shortcuts of RLVR: perplexities of prompts and answers, logit lens, path patching.

    prompt PPL = exp(mean NLL of the prompt's tokens), answer PPL = exp(mean NLL of the answer's after it)
    paradox: the answer's falls and the prompt's rises from the first model to the last
    lens_l: the answer's first token under norm + head of layer l's state
    JSD_l: sqrt(JSD) of head(layer input) and head(attention output); for the MLP of head(attention output)
           and head(MLP output); without the norm, mean over tokens
    patch_l: the answer's log-prob in the first model with layer l's output, attention or MLP, taken from
             the last model on the prompt's tokens, less that without

Paper: Spurious Rewards Paradox, arXiv:2601.11061; idwts/How-RLVR-Activates-Memorization-Shortcuts at
4e4a0959, scripts/calculate_perplexity.py, jsd_ffn.py (analyze_model_jsd, jensenshannon), and
path_patching_analysis.py, which counts correct samples in place of the gold answer's log-prob. Text models.

Shapes: T tokens, V vocabulary, L layers, H width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import nn

from vlrl.plugins.registry import ConfigError
from vlrl.probes.probed_model import ProbedModel
from vlrl.probes.result import Figure, ProbeResult
from vlrl.services.lazy import torch

COMPONENTS = ("attention", "MLP")


class LayerReading(NamedTuple):
    """One model's mean NLL of prompt and answer tokens, and per layer the answer's lens probability and the
    divergence (sqrt of nats) that attention and MLP make."""

    prompt: float
    answer: float
    lens_L: list[float]
    attention_L: list[float]
    mlp_L: list[float]


def nll(logits_TV: torch.Tensor, ids: Sequence[int], start: int) -> tuple[float, float]:
    """Mean NLL (nats) of the tokens 1 .. start - 1 (the prompt's), and of those from `start` on (the
    answer's); 0 of nothing."""
    logp_TV = torch.log_softmax(logits_TV.float(), -1)
    own = [-float(logp_TV[place - 1, ids[place]]) for place in range(1, len(ids))]
    parts = own[: start - 1], own[start - 1 :]
    prompt, answer = (sum(part) / len(part) if part else 0.0 for part in parts)
    return prompt, answer


def jsd(p_V: torch.Tensor, q_V: torch.Tensor) -> torch.Tensor:
    """Jensen-Shannon divergence (nats) of distributions along the last axis, 0 .. ln 2."""
    middle_V = (p_V + q_V) / 2

    def kl(a_V: torch.Tensor) -> torch.Tensor:
        return torch.special.xlogy(a_V, a_V / middle_V).nan_to_num().sum(-1)

    return ((kl(p_V) + kl(q_V)) / 2).clamp(min=0)


def layers(model: nn.Module) -> list[Any]:
    """The decoder's layers: the longest list of modules that have an `mlp`."""
    lists = [list(m) for m in model.modules() if isinstance(m, nn.ModuleList) and m and hasattr(m[0], "mlp")]
    return max(lists, key=len, default=[])


def parts_of(layer: Any) -> tuple[nn.Module, nn.Module]:
    """A layer's attention, of a recurrent layer what stands in its place, and its MLP."""
    attention = getattr(layer, "self_attn", None) or getattr(layer, "linear_attn", None)
    if attention is None:
        raise ConfigError(
            f"probe: a layer {type(layer).__name__} has neither self_attn nor linear_attn; this probe reads "
            f"decoders such as Qwen's, Llama's and Gemma's"
        )
    return attention, layer.mlp


def lens(model: Any, states: Sequence[torch.Tensor], place: int) -> list[torch.Tensor]:
    """The distribution over tokens that every layer's state at a position gives through the last norm and the
    head. `states` are Hugging Face's `hidden_states`: embeddings, layers, the last one normed."""
    norm, head = model.get_decoder().norm, model.get_output_embeddings()
    last = len(states) - 1
    normed = [state[0, place] if i == last else norm(state[0, place]) for i, state in enumerate(states)]
    return [torch.softmax(head(state_H).float(), -1) for state_H in normed[1:]]


def read(
    model: Any, prompt: Sequence[int], answer: Sequence[int]
) -> tuple[LayerReading, list[tuple[torch.Tensor, torch.Tensor]]]:
    """One model on one prompt and its gold answer, and each layer's outputs of attention and MLP, (T, H) on
    the CPU."""
    ids = [*prompt, *answer]
    written: list[torch.Tensor] = []
    modules = [part for layer in layers(model) for part in parts_of(layer)]
    with torch.no_grad(), hooked(modules, lambda _module, _given, out: written.append(tensor_of(out)[0])):
        out = model(input_ids=torch.tensor([ids], device=model.device), output_hidden_states=True)
        found = lens(model, out.hidden_states, len(prompt) - 1)
        outputs = list(zip(written[::2], written[1::2], strict=True))
        head = model.get_output_embeddings()

        def apart(a_TH: torch.Tensor, b_TH: torch.Tensor) -> float:
            p_TV, q_TV = (torch.softmax(head(state_TH).float(), -1) for state_TH in (a_TH, b_TH))
            return float(jsd(p_TV, q_TV).sqrt().mean())

        inputs = [state[0] for state in out.hidden_states]
        attention_L = [apart(given, attention) for given, (attention, _) in zip(inputs, outputs)]
        mlp_L = [apart(attention, mlp) for attention, mlp in outputs]
    target = [float(one[answer[0]]) for one in found]
    reading = LayerReading(*nll(out.logits[0], ids, len(prompt)), target, attention_L, mlp_L)
    return reading, [(attention.cpu(), mlp.cpu()) for attention, mlp in outputs]


def tensor_of(out: Any) -> torch.Tensor:
    """A module's output without what else it gives (attention weights)."""
    return out[0] if isinstance(out, tuple) else out


@contextmanager
def hooked(modules: Sequence[nn.Module], hook: Callable[..., Any]) -> Iterator[None]:
    """Forward hooks on modules while the context is open."""
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def patched(
    model: Any,
    prompt: Sequence[int],
    answer: Sequence[int],
    outputs: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[list[float], list[float]]:
    """Per layer, of attention and of MLP: the answer's log-prob (nats, summed) with the output on the
    prompt's tokens replaced by another model's `outputs`, less that without. Positive: what the other model
    writes there brings the answer."""
    ids, length = [*prompt, *answer], len(prompt)

    def logp() -> float:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids], device=model.device)).logits[0]
        return -nll(logits, ids, length)[1] * len(answer)

    def hook_of(value_TH: torch.Tensor) -> Callable[..., Any]:
        def hook(_module: nn.Module, _given: Any, out: Any) -> Any:
            own = tensor_of(out)
            new = torch.cat([value_TH[:length].to(own)[None], own[:, length:]], 1)
            return (new, *out[1:]) if isinstance(out, tuple) else new

        return hook

    own = logp()
    effects: tuple[list[float], list[float]] = ([], [])
    for layer, values in zip(layers(model), outputs, strict=True):
        for part, value_TH, found in zip(parts_of(layer), values, effects):
            with hooked([part], hook_of(value_TH)):
                found.append(logp() - own)
    return effects


def measure(words: Sequence[str], models: Sequence[str], rows: int) -> ProbeResult:
    """The readings of each model, first (before training) to last, and the patch of the last into the
    first."""
    kept: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
    readings: list[list[LayerReading]] = []
    effects: list[tuple[list[float], list[float]]] = []
    for place, name in reversed(list(enumerate(models))):  # the first model is patched with the last one's
        with ProbedModel(words, name, rows) as subject:
            policy = subject.session.policy
            golds = [
                gold[0] if isinstance(gold := row.answer, (list, tuple)) else gold for row in subject.rows
            ]
            pairs = [
                (subject.text_ids(row), policy.encode_text(str(gold)))
                for row, gold in zip(subject.rows, golds)
            ]
            found = [read(policy.model, *pair) for pair in pairs]
            readings.insert(0, [reading for reading, _ in found])
            if place == len(models) - 1:
                kept = [outputs for _, outputs in found]
            if place == 0:
                effects = [patched(policy.model, *pair, outputs) for pair, outputs in zip(pairs, kept)]
    means = [columns_mean(component) for component in zip(*effects)]
    return finding(models, [mean_of(found) for found in readings], means)


def columns_mean(rows: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each column."""
    return [sum(column) / len(column) for column in zip(*rows, strict=True)]


def mean_of(found: Sequence[LayerReading]) -> LayerReading:
    """The mean reading over rows."""
    prompt, answer, *columns = zip(*found, strict=True)
    means = [columns_mean(column) for column in columns]
    return LayerReading(sum(prompt) / len(prompt), sum(answer) / len(answer), *means)


def finding(
    models: Sequence[str], means: Sequence[LayerReading], effects: Sequence[Sequence[float]]
) -> ProbeResult:
    """The table of models, and the verdict: a paradox where the answer's perplexity falls and the prompt's
    rises. `effects`: of attention and of MLP, by layer."""
    first, last = means[0], means[-1]
    paradox = last.answer < first.answer and last.prompt > first.prompt
    size = len(last.lens_L)
    best, component, layer = max(
        (value, name, place)
        for name, values in zip(COMPONENTS, effects)
        for place, value in enumerate(values)
    )
    moved = [after - before for before, after in zip(first.mlp_L, last.mlp_L)]
    jump = max(range(size), key=lambda place: abs(moved[place]))
    verdict = (
        "the perplexity paradox: answers become likelier while prompts become less likely, the mark of a "
        "memorisation shortcut"
        if paradox
        else "no perplexity paradox: prompt and answer do not move apart as a memorisation shortcut's do"
    )
    where = (
        f"What training wrote into the {component} of layer {layer + 1} (of {size}) brings the answer most "
        f"({best:+.3g} nats in the first model)"
        if best > 0
        else "No single layer of the last model brings the answer into the first one"
    )
    statement = (
        f"Answer perplexity {math.exp(first.answer):.3g} -> {math.exp(last.answer):.3g}, prompt perplexity "
        f"{math.exp(first.prompt):.3g} -> {math.exp(last.prompt):.3g}: {verdict}. {where}; the MLP of layer "
        f"{jump + 1} changed most (divergence {moved[jump]:+.3g}). The paper's Qwen2.5-Math-7B: layers 18 to "
        f"20 of 28 bring it, those from 21 on adapt."
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
    layer_numbers = {
        "patch": dict(zip(COMPONENTS, map(list, effects))),
        "jsd": dict(zip(COMPONENTS, (last.attention_L, last.mlp_L))),
    }
    return ProbeResult("Memorisation shortcuts", statement, head, table, figure, layer_numbers)

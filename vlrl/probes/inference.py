"""Inference-time methods under one budget of tokens: samples, votes, best-of-N by self-evaluation, step
beams, self-refinement, and a sweep of the temperature.

    majority      the most frequent answer of N samples
    best_of_n     the sample whose self-evaluation (see `verdict`) is highest;  weighted: votes weighted by it
    beam          N steps are drawn for each kept beginning, the N / width best by self-evaluation go on
    refine        the answer is shown again with the request to correct it, N - 1 times

Paper: Liu et al. 2025 (Bag of Tricks), arXiv:2502.07191; the six methods of
usail-hkust/benchmark_inference_time_computation_LLM at 011e76db, methods/search/Infertime_computation.py
(majority, best_of_n, weighted voting, beam_search, self_refine; its tree search is left out) and
prompts/binary_evaluate.py, prompts/self_refine.py (words ours). All methods get the same number of samples N.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlrl.eval.statistics import mean_interval
from vlrl.methods.common.prompts import neutralised
from vlrl.methods.core.metric import answer_of
from vlrl.probes.probed_model import ProbedModel
from vlrl.probes.result import Figure, ProbeResult, against
from vlrl.types import Group, Prompt, Rollout, Row

PATTERN = r"<answer>(.*?)</answer>"
VERDICT = "{question}\nA proposed answer: {answer}\nIs it right? Answer yes or no."
REFINE = "{question}\nYour last answer: {answer}\nFind its mistakes and answer again."
METHODS = ("one sample", "majority", "best_of_n", "weighted", "beam", "refine")


def vote(answers: Sequence[str], weights: Sequence[float]) -> int:
    """The first sample that gives the answer with the largest sum of weights; ties by first come."""
    totals: dict[str, float] = defaultdict(float)
    for answer, weight in zip(answers, weights, strict=True):
        totals[answer] += weight
    winner = max(totals, key=lambda answer: totals[answer])
    return answers.index(winner)


def verdicts(subject: ProbedModel, pairs: Sequence[tuple[Row, str]]) -> list[float]:
    """P(yes) against no that the model gives for each answer: sigma(logp yes - logp no)."""
    policy, engine = subject.session.policy, subject.session.engine
    prompts = [
        subject.prompt(
            replace(row, target=""), VERDICT.format(question=row.question, answer=neutralised(text))
        )
        for row, text in pairs
    ]
    words = [policy.encode_text(word) for word in ("yes", "no")]
    scores = engine.score_all([(prompt, ids) for prompt in prompts for ids in words])
    sums = [math.fsum(values) for values in scores]
    return [1 / (1 + math.exp(min(no - yes, 700.0))) for yes, no in zip(sums[::2], sums[1::2], strict=True)]


def refined(subject: ProbedModel, rows: Sequence[Row], n: int, temperature: float) -> list[Rollout | None]:
    """One answer per row, corrected n - 1 times; None where the engine failed."""
    groups = subject.ask([subject.prompt(row) for row in rows], 1, temperature)
    for _ in range(n - 1):
        prompts = [
            subject.prompt(row, REFINE.format(question=row.question, answer=neutralised(text_of(group))))
            for row, group in zip(rows, groups, strict=True)
        ]
        groups = subject.ask(prompts, 1, temperature)
    return [group.rollouts[0] if group.rollouts else None for group in groups]


def text_of(group: Group) -> str:
    """The text of a group's first rollout; "" where it failed."""
    return group.rollouts[0].text if group.rollouts else ""


def beamed(
    subject: ProbedModel, row: Row, n: int, width: int, step: int, temperature: float
) -> Rollout | None:
    """Step beam search: beginnings grow by `step` tokens; of n continuations the `width` best by
    self-evaluation are kept, until one ends or the task's token limit is reached."""
    prompt = subject.prompt(row)
    limit = subject.session.current.sampling(prompt, 0).max_tokens
    beams: list[str] = [""]
    for _ in range(max(limit // step, 1)):
        grown: list[tuple[str, bool]] = []
        for beam in beams:
            (group,) = subject.write([continued(prompt, beam)], max(n // len(beams), 1), temperature, step)
            grown += [(rollout.text, rollout.finish == "stop") for rollout in group]
        scores = verdicts(subject, [(row, text) for text, _ in grown])
        order = sorted(range(len(grown)), key=lambda place: -scores[place])[:width]
        beams = list(dict.fromkeys(grown[place][0] for place in order))
        if grown[order[0]][1]:
            break
    (group,) = subject.write([prompt], 1, 0.0, 1)
    for rollout in group:
        rollout.text = beams[0]
    subject.view.score([group])
    return group.rollouts[0] if group.rollouts else None


def continued(prompt: Prompt, text: str) -> Prompt:
    """The prompt with the beginning of an answer; a rollout's text repeats a prompt's prefix."""
    return replace(prompt, prefix=prompt.prefix + text.removeprefix(prompt.prefix)) if text else prompt


def measure(
    words: Sequence[str], model: str, rows: int, n: int, temperatures: Sequence[float], step: int = 16
) -> ProbeResult:
    """The accuracy of every method at each temperature, with its 95% interval over the questions; the best
    one against one sample at each temperature's own."""
    scores: dict[tuple[str, float], list[float]] = {}
    with ProbedModel(words, model, rows) as subject:
        for temperature in temperatures:
            found = one_temperature(subject, n, temperature, step)
            scores |= {(name, temperature): values for name, values in found.items()}
        limit = n * max(subject.session.current.sampling(subject.prompt(subject.rows[0]), 0).max_tokens, 1)
        name = subject.name
    table: list[list[Any]] = []
    lines = defaultdict(list)
    for (method, temperature), values in scores.items():
        interval = mean_interval(values)
        table.append([method, temperature, interval.value, interval.low, interval.high])
        lines[method].append((temperature, interval.value))
    best = max(table, key=lambda row: row[2])
    gain = against(scores[best[0], best[1]], scores[METHODS[0], best[1]])
    told = f"; against one sample there: {gain}" if best[0] != METHODS[0] else ""
    statement = (
        f"{name}: best is {best[0]} at temperature {best[1]:g} ({best[2]:.1%}{told}), each method with {n} "
        f"samples of the same length (at most {limit} tokens a question). The best of {len(table)} looks "
        f"better than it is. The paper gains up to five points by the temperature alone."
    )
    head = ("method", "temperature", "accuracy", "low", "high")
    figure = Figure(dict(lines), "temperature", "accuracy")
    return ProbeResult("Inference-time methods under one budget", statement, head, table, figure)


def one_temperature(subject: ProbedModel, n: int, temperature: float, step: int) -> dict[str, list[float]]:
    """The accuracy of each method on each row, in the subject's order; 0 where the engine failed."""
    groups = subject.ask([subject.prompt(row) for row in subject.rows], n, temperature)
    values = verdicts(subject, [(group.row, rollout.text) for group in groups for rollout in group])
    found: dict[str, list[float]] = {name: [] for name in METHODS}
    for group in groups:
        if not group.rollouts:
            for name in METHODS[:4]:
                found[name].append(0.0)
            continue
        found[METHODS[0]].append(sum(rollout.correct for rollout in group) / len(group))
        own, values = values[: len(group)], values[len(group) :]
        answers = [answer_of(rollout.text, PATTERN) for rollout in group]
        best = max(range(len(own)), key=lambda place: own[place])
        places = {
            "majority": vote(answers, [1.0] * len(own)),
            "best_of_n": best,
            "weighted": vote(answers, own),
        }
        for name, place in places.items():
            found[name].append(float(group.rollouts[place].correct))
    beams = [beamed(subject, row, n, max(n // 2, 1), step, temperature) for row in subject.rows]
    found["beam"] = [float(bool(rollout and rollout.correct)) for rollout in beams]
    last = refined(subject, subject.rows, n, temperature)
    found["refine"] = [float(bool(rollout and rollout.correct)) for rollout in last]
    return found

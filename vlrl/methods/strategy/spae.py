"""Independent samples, and a look at what the policy would answer after each step of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vlrl.methods.strategy.independent import Independent
from vlrl.registry import register
from vlrl.types import Group, Prompt, Request, Rollout

if TYPE_CHECKING:
    from vlrl.run import Run


def step_ends(pieces: Sequence[str], delimiter: str, every: int) -> list[int]:
    """Tokens after which a step ends (not the last one): where the text so far ends in `delimiter`, or, if that is empty, every `every` tokens."""
    if not delimiter:
        return list(range(every, len(pieces), every))
    text, ends = "", []
    for t, piece in enumerate(pieces[:-1], start=1):
        text += piece
        if text.endswith(delimiter):
            ends.append(t)
    return ends


@register("spae")
@dataclass(frozen=True)
class Probing(Independent):
    """After each step of a rollout, `n` continuations of `probe` give a potential  Phi = 1.5 Acc Conf + 0.5 Acc - Conf  in [-1, 1].

    Conf = mean over continuations of exp(mean log pi of their tokens); Acc = mean probability of the gold answer's tokens after the probe.
    `rollout.info["steps"]` gets (end of the step in tokens, Phi) pairs, for credits `spae` and `pure`. Steps end at `delimiter`, or, where it is
    empty, every `every` tokens.
    Paper: Wu et al. 2026, arXiv:2601.03823, sec. 3 (n 5, 10 tokens).  Deviates: Conf takes the sampled tokens' -log pi for the entropy, whose mean
    it is; the released example divides exp of the sums over the gold answer's tokens by their number, which agrees for answers of one token.
    Acc needs an engine that scores.  Edge: a rollout of one step has no potentials.
    """

    probe: str = "**Final Answer**\n\\boxed{"
    delimiter: str = "\n\n"
    every: int = 4
    n: int = 5
    tokens: int = 10

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: Run) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        tokenizer = run.policy.tokenizer
        probe = tuple(tokenizer(self.probe, add_special_tokens=False).input_ids)
        requests, gold = [], {}
        for group in groups:
            gold[group.row.id] = tokenizer(str(group.row.answer), add_special_tokens=False).input_ids
            for rollout in group:
                rollout.info["steps"] = []
                for end in step_ends([tokenizer.decode([token]) for token in rollout.ids], self.delimiter, self.every):
                    prefix = (*rollout.ids[:end], *probe)
                    sampling = replace(run.decode(group.prompt, 0), max_tokens=len(prefix) + self.tokens)
                    requests.append(Request(group.prompt, sampling, self.n, self.seeds(run, group.prompt), prefix, (rollout, end)))
        sure: dict[tuple[int, int], list[float]] = {}
        for completion in run.engine.generate(requests):
            rollout, end = completion.request.tag
            new = completion.logp[len(completion.request.prefix_ids) :]
            sure.setdefault((id(rollout), end), []).append(math.exp(math.fsum(new) / len(new)) if new else 1.0)
        for request in requests:
            rollout, end = request.tag
            right = run.engine.score(request.prompt, [*request.prefix_ids, *gold[rollout.row.id]])[len(request.prefix_ids) :]
            rollout.info["steps"].append((end, potential(sure[id(rollout), end], right)))
        return groups


def potential(sure: Sequence[float], gold_logp: Sequence[float]) -> float:
    """Phi from the continuations' confidences and the gold answer's log-probs."""
    conf = math.fsum(sure) / len(sure)
    acc = math.fsum(math.exp(v) for v in gold_logp) / max(len(gold_logp), 1)
    return 1.5 * acc * conf + 0.5 * acc - conf


def per_step(rollout: Rollout) -> list[tuple[int, int, float]]:
    """(start, end, Phi) of each step that has a potential."""
    starts = [0, *(end for end, _ in rollout.info.get("steps", []))]
    return [(start, end, value) for start, (end, value) in zip(starts, rollout.info.get("steps", []))]

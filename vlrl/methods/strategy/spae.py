"""Independent samples, and a look at what the policy would answer after each step of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vlrl.methods.strategy.independent import Independent
from vlrl.registry import ConfigError, register
from vlrl.types import Group, Prompt, Request

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

    Conf = mean over continuations of exp(-mean entropy of their tokens); Acc = mean probability of the gold answer's tokens after the probe.
    `rollout.info["steps"]` gets (end of the step in tokens, Phi) pairs, for advantages `spae` and `pure`. Steps end at `delimiter`, or, where it is
    empty, every `every` tokens.
    Paper: Wu et al. 2026, arXiv:2601.03823, sec. 3 (n 5, 10 tokens); entropies are those of the `alternatives` likeliest tokens (nats), 20 in the
    released example.  Deviates from that example, not from the paper: it takes exp of sums over the gold answer's tokens, which agrees for one token.
    Acc needs an engine that scores.  Edge: a rollout of one step has no potentials.
    """

    probe: str = "**Final Answer**\n\\boxed{"
    delimiter: str = "\n\n"
    every: int = 4
    n: int = 5
    tokens: int = 10
    alternatives: int = 20

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
                    sampling = replace(run.decode(group.prompt, 0), max_tokens=len(prefix) + self.tokens, top_logprobs=self.alternatives)
                    requests.append(Request(group.prompt, sampling, self.n, self.seeds(run, group.prompt), prefix, (rollout, end)))
        sure: dict[tuple[int, int], list[float]] = {}
        for completion in run.engine.generate(requests):
            rollout, end = completion.request.tag
            if completion.top_logprobs is None:
                raise ConfigError(f"strategy spae reads entropies, which engine {run.engine.name!r} does not give; use engine hf or vllm")
            new = completion.top_logprobs[len(completion.request.prefix_ids) :]
            sure.setdefault((id(rollout), end), []).append(confidence(new))
        for request in requests:
            rollout, end = request.tag
            right = run.engine.score(request.prompt, [*request.prefix_ids, *gold[rollout.row.id]])[len(request.prefix_ids) :]
            rollout.info["steps"].append((end, potential(sure[id(rollout), end], right)))
        return groups


def confidence(alternatives: Sequence[Mapping[int, float]]) -> float:
    """exp(-mean entropy) of tokens from the log-probs of their likeliest alternatives; 1 without tokens."""
    entropies = [-math.fsum(math.exp(v) * v for v in token.values()) for token in alternatives]
    return math.exp(-math.fsum(entropies) / len(entropies)) if entropies else 1.0


def potential(sure: Sequence[float], gold_logp: Sequence[float]) -> float:
    """Phi from the continuations' confidences and the gold answer's log-probs."""
    conf = math.fsum(sure) / len(sure)
    acc = math.fsum(math.exp(v) for v in gold_logp) / max(len(gold_logp), 1)
    return 1.5 * acc * conf + 0.5 * acc - conf

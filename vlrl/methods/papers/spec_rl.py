"""Last epoch's rollouts as drafts of this one's."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.methods.core.rollout import Seeds
from vlrl.registry import ConfigError, register
from vlrl.stages import RolloutStrategy
from vlrl.types import Completion, Group, Prompt, Request, Rollout

if TYPE_CHECKING:
    from vlrl.context import RunContext

KEY = "spec_rl"


def accepted(new: Sequence[float], old: Sequence[float], lenience: float, u: Sequence[float]) -> int:
    """How many leading tokens are kept: the first t with u_t > exp(new_t - old_t + lenience) ends them."""
    for t, (a, b, draw) in enumerate(zip(new, old, u, strict=True)):
        if draw > math.exp(min(a - b + lenience, 0.0)):
            return t
    return len(new)


@register("spec_rl")
@dataclass(frozen=True)
class SpecRL(RolloutStrategy):
    """Keep y_old[:n], n = the first t with u_t > min(1, e^lenience pi(y_t) / pi_old(y_t)), then let the policy go on from there.

    Paper: Liu et al. 2025, arXiv:2509.23232, algorithm 1; lenience 0.5 in log space as in the released recipe. The drafts are the rollouts that
    the same row got when it was last seen (in the run's history, so they survive a restart). Deviates: nothing known. Edge: lenience 0 is
    speculative sampling without the residual distribution, infinity reuses everything; a fully accepted draft that had ended is not generated at
    all, one that had not goes on. Sampler log-probs of reused tokens are those of the present policy. Temperature 1 without filters is needed,
    for the engine scores at that. Units: nats, tokens.
    """

    lenience: float = 0.5
    seeds: Seeds = field(init=False, default_factory=Seeds, repr=False, compare=False)
    state: dict[str, float] = field(init=False, default_factory=lambda: {"reused": 0.0, "tokens": 0.0}, repr=False, compare=False)

    def check(self, run: RunContext) -> None:
        if getattr(run.sampling, "temperature", 1.0) != 1.0 or getattr(run.sampling, "top_p", 1.0) < 1 or getattr(run.sampling, "top_k", 0):
            raise ConfigError(
                "strategy 'spec_rl' scores drafts at temperature 1 without filters: set decode.temperature to 1, top_p to 1 and top_k to 0"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        tasks = [(place, prompt, attempt) for place, (prompt, count) in enumerate(zip(prompts, counts, strict=True)) for attempt in range(count)]
        drafts = [self._draft(run, prompt, attempt) for _, prompt, attempt in tasks]
        scored = run.engine.score_all([(task[1], draft["ids"]) for task, draft in zip(tasks, drafts) if draft])
        found: dict[tuple[int, int], Rollout] = {}
        requests, news = [], iter(scored)
        for (place, prompt, attempt), draft in zip(tasks, drafts):
            seed = self.seeds(run, prompt)
            request = Request(prompt=prompt, sampling=run.sampling(prompt, attempt), seed=seed, tag=(place, attempt, 0))
            if draft:
                new, rng = next(news), random.Random(seed)
                kept = accepted(new, draft["logp"], self.lenience, [rng.random() for _ in new])
                if kept == len(new) and draft["finish"] == "stop":
                    text = run.policy.decode(draft["ids"])
                    whole = Completion(request, 0, list(draft["ids"]), new, text, "stop", run.policy.version)
                    found[place, attempt] = self._keep(run, whole, attempt, kept)
                    continue
                request = Request(
                    prompt=prompt, sampling=request.sampling, seed=seed, prefix_ids=tuple(draft["ids"][:kept]), tag=(place, attempt, kept)
                )
            requests.append(request)
        for completion in run.engine.generate(requests):
            place, attempt, kept = completion.request.tag
            found[place, attempt] = self._keep(run, completion, attempt, kept)
        return [Group(prompt=prompt, rollouts=[found[i, a] for a in range(count)]) for i, (prompt, count) in enumerate(zip(prompts, counts))]

    def _draft(self, run: RunContext, prompt: Prompt, attempt: int) -> dict[str, Any] | None:
        kept = run.history.get(prompt.row.id, {}).get(KEY, {})
        return kept.get("drafts", {}).get(str(attempt)) if kept.get("prompt") == prompt.key else None

    def _keep(self, run: RunContext, completion: Completion, attempt: int, reused: int) -> Rollout:
        prompt = completion.request.prompt
        memory = run.history.setdefault(prompt.row.id, {})
        if memory.get(KEY, {}).get("prompt") != prompt.key:
            memory[KEY] = {"prompt": prompt.key, "drafts": {}}
        memory[KEY]["drafts"][str(attempt)] = {"ids": list(completion.ids), "logp": list(completion.logp), "finish": completion.finish}
        self.state["reused"] += reused
        self.state["tokens"] += len(completion.ids)
        rollout = run.make_rollout(completion)
        rollout.info["reused"] = reused
        return rollout

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        """The share of this step's tokens that were not generated again."""
        share = (float(self.state["reused"]), float(self.state["tokens"]))
        self.state.update(reused=0.0, tokens=0.0)
        return {"spec_rl/reused": share}

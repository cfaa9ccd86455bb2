"""SPEC-RL: speculative rollouts, where the rollouts of a row's last visit are drafts that the policy verifies
and continues.

Paper: Liu et al. 2025 (SPEC-RL), arXiv:2509.23232, with released recipe.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlrl.methods.core.rollout import SampledStrategy
from vlrl.plugins.contexts import PhaseContext, SamplingContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import StepCounts
from vlrl.types import Completion, Group, Prompt, Request, Rollout

# of a row's memory in the run's history: {"prompt": its key, "drafts": {attempt: ids, logp, finish}}
KEY = "spec_rl"


def accepted(new: Sequence[float], old: Sequence[float], lenience: float, u: Sequence[float]) -> int:
    """The number of leading tokens that are kept: those before the first t with u_t > exp(new_t - old_t +
    lenience)."""
    for t, (a, b, draw) in enumerate(zip(new, old, u, strict=True)):
        if draw > math.exp(min(a - b + lenience, 0.0)):
            return t
    return len(new)


@register("spec_rl")
@dataclass(frozen=True)
class SpecRL(SampledStrategy):
    """SPEC-RL: keep y_old[:n], n = the first t with u_t > min(1, e^lenience pi(y_t) / pi_old(y_t)), and
    sample the rest from the policy.

    Paper: Liu et al. 2025, arXiv:2509.23232, algorithm 1; lenience 0.5 in log space as in the released
    recipe. The drafts are the row's rollouts at its last visit (in the run's history). Edge: lenience 0 is
    speculative sampling without the residual distribution, infinity reuses everything; a fully accepted draft
    that had ended is not generated at all, one that had not is continued. Sampler log-probs of reused tokens
    are those of the current policy, from the verification. The engine scores at temperature 1, so the
    rollouts need temperature 1 without filters. Units: nats, tokens.
    """

    state_class = StepCounts
    lenience: float = 0.5
    visits = 2

    def check(self, phase: PhaseContext) -> None:
        sampling = vars(
            phase.sampling
        )  # a sampling policy without these fields keeps temperature 1 and no filters
        if (
            sampling.get("temperature", 1.0) != 1.0
            or sampling.get("top_p", 1.0) < 1
            or sampling.get("top_k", 0)
        ):
            raise ConfigError(
                f"rollout: {self.name!r} scores drafts at temperature 1 without filters; set "
                "sampling.temperature to 1, top_p to 1 and top_k to 0"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        tasks = [
            (place, prompt, attempt)
            for place, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
            for attempt in range(count)
        ]
        drafts = [self._draft(run, prompt, attempt) for _, prompt, attempt in tasks]
        scores = iter(
            run.engine.score_all([(task[1], draft["ids"]) for task, draft in zip(tasks, drafts) if draft])
        )
        rollouts: dict[tuple[int, int], Rollout] = {}
        requests, verified = [], {}
        for (place, prompt, attempt), draft in zip(tasks, drafts):
            seed = self.seeds(run, prompt)
            request = Request(
                prompt=prompt, sampling=run.sampling(prompt, attempt), seed=seed, tag=(place, attempt, 0)
            )
            if draft:
                new, rng = next(scores), random.Random(seed)
                kept = accepted(new, draft["logp"], self.lenience, [rng.random() for _ in new])
                if kept == len(new) and draft["finish"] == "stop":
                    text = run.policy.decode(draft["ids"])
                    whole = Completion(request, 0, list(draft["ids"]), new, text, "stop", run.policy.version)
                    rollouts[place, attempt] = self._finished(run, whole, attempt, kept)
                    continue
                verified[place, attempt] = new[:kept]
                request = replace(
                    request,
                    prefix_ids=tuple(draft["ids"][:kept]),
                    tag=(place, attempt, kept),
                    score_prefix=not kept,
                )
            requests.append(request)
        for completion in run.engine.generate(requests):
            place, attempt, kept = completion.request.tag
            completion = replace(
                completion, logp=[*verified.get((place, attempt), ()), *completion.logp[kept:]]
            )
            rollouts[place, attempt] = self._finished(run, completion, attempt, kept)
        return [
            Group(prompt=prompt, rollouts=[rollouts[i, a] for a in range(count)])
            for i, (prompt, count) in enumerate(zip(prompts, counts))
        ]

    def _draft(self, run: StageContext, prompt: Prompt, attempt: int) -> dict[str, Any] | None:
        memory = run.history.get(prompt.row.id, {}).get(KEY, {})
        return memory.get("drafts", {}).get(str(attempt)) if memory.get("prompt") == prompt.key else None

    def _finished(self, run: StageContext, completion: Completion, attempt: int, reused: int) -> Rollout:
        """The rollout; it becomes the draft of the row's next visit."""
        prompt = completion.request.prompt
        memory = run.history.setdefault(prompt.row.id, {})
        if memory.get(KEY, {}).get("prompt") != prompt.key:
            memory[KEY] = {"prompt": prompt.key, "drafts": {}}
        memory[KEY]["drafts"][str(attempt)] = {
            "ids": list(completion.ids),
            "logp": list(completion.logp),
            "finish": completion.finish,
        }
        self.state.add(reused=reused, tokens=len(completion.ids))
        return run.make_rollout(completion)

    def metrics(self) -> dict[str, tuple[float, float]]:
        """The share of the step's tokens that were reused."""
        return {"spec_rl/reused": self.state.share("reused", "tokens")}

"""One run of a comparison: trains, then samples the held-out rows, and writes its numbers to `cell.json`. An
existing result is reused."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlrl.compare.plan import Plan
from vlrl.config import Config
from vlrl.eval.statistics.samples import pass_at_k
from vlrl.logging.recorder import METRICS, read_record
from vlrl.trainer.heldout import check_answers, evaluate_run
from vlrl.trainer.plan import Plan as RunPlan
from vlrl.trainer.session import Session
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.trainer.views import StepView
from vlrl.training import train
from vlrl.types import Group, Request

LAST = 0.1  # the share of steps at the end over which entropy and length are averaged


def cold_start(plan: Plan, seed: int) -> str:
    """The weights that all runs of a seed start from: a folder, or the name of the pretrained model."""
    if not plan.cold_steps:
        return plan.pretrained
    done = plan.cold(seed) / "cold.json"
    if not done.is_file():
        summary = train(
            plan.cold_config(seed), resume=(plan.cold(seed) / "metrics.jsonl").exists(), live=False
        )
        write(
            done,
            {
                "weights": str(Path(summary["checkpoint"]).resolve()),
                "heldout": summary["heldout"].get("final", {}),
            },
        )
    return json.loads(done.read_text())["weights"]


def start(plan: Plan, seed: int) -> dict[str, Any]:
    """The numbers of a seed's cold start, before any preset: the baseline of the comparison."""
    done = plan.cold(seed) / "cell.json"
    if not done.is_file():
        weights = cold_start(plan, seed)
        config = plan.config(plan.presets[0], seed, weights)
        scores = (
            json.loads((plan.cold(seed) / "cold.json").read_text())["heldout"]
            if plan.cold_steps
            else greedy(config, weights)
        )
        done.parent.mkdir(parents=True, exist_ok=True)
        write(
            done,
            {
                "seed": seed,
                "final": _mean(list(scores.values())),
                **sampled(config, weights, weights, plan.samples),
            },
        )
    return json.loads(done.read_text())


def cell(plan: Plan, preset: str, seed: int) -> dict[str, Any]:
    """Train a preset from a seed's cold start and measure it."""
    folder = plan.cell(preset, seed)
    done = folder / "cell.json"
    if done.is_file():
        return json.loads(done.read_text())
    weights = cold_start(plan, seed)
    config = plan.config(preset, seed, weights)
    begun = time.process_time()
    summary = train(config, resume=(folder / "metrics.jsonl").exists(), live=False)
    seconds = time.process_time() - begun
    result = {
        "preset": preset,
        "seed": seed,
        "cpu_seconds": seconds,
        **logged(folder),
        **sampled(config, summary["checkpoint"], weights, plan.samples),
    }
    result["final"] = _mean(list(summary["heldout"]["final"].values()))
    start = summary["heldout"].get("start")  # the scores before the last phase
    result["start"] = _mean(list(start.values())) if start else None
    write(done, result)
    return result


def logged(folder: Path) -> dict[str, Any]:
    """Numbers from the run's log: reward curve and its area, entropy and length at the end, tokens trained
    on."""
    rows = read_record(folder, METRICS)
    slots = [
        key
        for key in rows[0]
        if key.startswith("reward/") and key not in ("reward/total", "reward/errors", "reward/format")
    ]
    key = slots[0] if len(slots) == 1 else "reward/total"
    reward = [row.get(key, 0.0) for row in rows]
    return {
        "auc": _mean(reward),
        "curve": reward,
        "entropy": _mean(tail_of(rows, "entropy")),
        "entropy_curve": [row.get("entropy") for row in rows],
        "length": _mean(tail_of(rows, "length/mean")),
        "tokens": sum(row.get("tokens", 0.0) for row in rows),
    }


def tail_of(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    """The last values of a number, of the steps that have it."""
    values = [row[name] for row in rows if name in row]
    return values[-max(1, round(LAST * len(rows))) :]


def opened(config: Config, weights: str) -> Session:
    """A session in its last phase with these weights, ready to sample."""
    run = Session(RunPlan.of(config))
    run.open(weights=weights)
    run.use(len(run.phases) - 1)
    run.engine.sync(run.policy)
    return run


def greedy(config: Config, weights: str) -> dict[str, float]:
    """The held-out accuracy per task of these weights."""
    run = opened(config, weights)
    scores = dict(evaluate_run(StepView.between_steps(run)).accuracy)
    run.close()
    return scores


def sampled(config: Config, checkpoint: str, weights: str, samples: int) -> dict[str, float | None]:
    """From `samples` completions per held-out row at temperature 1: pass@1, pass@k, entropy and KL to the
    cold start (k3) per token, in nats; and the mean length of correct and of wrong ones, in tokens.

    The entropy and the length in a run's own log are of what it trains on, and what that is depends on the
    method: these compare.
    """
    run = opened(config, checkpoint)
    requests = []
    for place, row in enumerate(row for rows in run.current.heldout_by_task().values() for row in rows):
        prompt = run.prompt_template(row)
        sampling = replace(run.sampling(prompt, 0), temperature=1.0, top_p=1.0, top_k=0, min_p=0.0)
        requests.append(Request(prompt, sampling, samples, seed=run.seed + 1, tag=place))
    groups = [Group(request.prompt, [], id=f"sampled-{i}") for i, request in enumerate(requests)]
    for completion in run.engine.generate(requests):
        groups[completion.request.tag].rollouts.append(run.make_rollout(completion))
    verdicts = iter(
        check_answers([Group(group.prompt, [rollout]) for group in groups for rollout in group], run.current)
    )
    checked = [[(len(rollout.logp), next(verdicts)[0]) for rollout in group] for group in groups]
    lengths = [(length, ok) for group in checked for length, ok in group if ok is not None]
    correct = [known for group in checked if (known := [ok for _, ok in group if ok is not None])]
    kl = divergence(run, groups, weights)
    run.close()
    surprisal = [-value for group in groups for rollout in group for value in rollout.logp]
    return {
        "sampled_entropy": _mean(surprisal),
        "pass@1": _mean([sum(r) / len(r) for r in correct]),
        f"pass@{samples}": _mean([pass_at_k(len(r), sum(r), len(r)) for r in correct]),
        "kl": kl,
        "correct_length": _mean([length for length, ok in lengths if ok]),
        "wrong_length": _mean([length for length, ok in lengths if not ok]),
    }


def divergence(run: Session, groups: Sequence[Group], weights: str) -> float:
    """Mean over tokens of k3 between the run's policy, which sampled `groups`, and the policy in
    `weights`."""
    import torch

    from vlrl.policy.policy import Policy  # imports torch

    start = Policy(replace(run.family, model=weights), device=run.policy.device)
    total, count = 0.0, 0.0
    with torch.no_grad():
        for group in groups:
            if len(group):
                batch = make_batch([group], run.policy.pad_id, run.policy.device)
                log_r = (start.forward(batch)["logp"] - run.policy.forward(batch)["logp"])[
                    batch.mask_BT
                ].clamp(-20, 20)
                total, count = total + float((torch.expm1(log_r) - log_r).sum()), count + len(log_r)
    return total / max(count, 1.0)


def write(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value), encoding="utf-8")
    part.replace(path)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

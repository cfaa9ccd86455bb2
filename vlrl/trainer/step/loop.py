"""The control flow of one synchronous step: collect, score, assign, learn.

rows -> prompts -> rollouts -> rewards -> advantages -> loss -> optimizer step -> weights back to the engine
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from vlrl.methods.common.conversation import CONVERSATION, SEGMENT
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import TOKEN_ADVANTAGES
from vlrl.trainer.data.rows import usable_prompts
from vlrl.trainer.ranks.collectives import all_groups, gather, sum_over_ranks
from vlrl.trainer.step.loss import Sums, add_sums, means
from vlrl.trainer.step.loss_inputs import (
    MiniBatch,
    add_signals,
    cost,
    denominators_of,
    dummy_batch,
    engine_metrics,
    loss_inputs,
    split_micro_batches,
    split_mini_batches,
)
from vlrl.trainer.step.optim import accumulating, backward, optimizer_step, set_learning_rate
from vlrl.trainer.step.scoring import score
from vlrl.trainer.step.stats import end_step, over_ranks
from vlrl.types import Denominators, Group

if TYPE_CHECKING:
    from vlrl.plugins.contexts import RunContext

NOTHING_LEARNED = (
    "step {step}: no group passed the filters and the scorer, so nothing was learned; see the "
    "group_filter/* counters"
)


def collect(run: RunContext) -> list[Group]:
    """This rank's share of a step's groups: sampled, scored, shaped, filtered; refilled until all ranks
    together have `prompts_per_step`."""
    settings, accelerator = run.settings, run.accelerator
    rank, world = accelerator.process_index, accelerator.num_processes
    kept: list[Group] = []
    reasons: Counter[str] = Counter()
    missing = settings.prompts_per_step
    for _ in range(settings.max_refill_rounds):
        rows = run.stats.shard_rows(run.prompt_sampler(missing), rank, world)
        groups = sample(run, rows)
        run.stats.sampled.extend(groups)
        kept += admit(run, groups, reasons)
        missing = settings.prompts_per_step - int(sum_over_ranks(accelerator, [len(kept)])[0])
        if missing <= 0:
            break
    run.stats.count({f"group_filter/{reason}": float(n) for reason, n in reasons.items()})
    return kept


def sample(run: RunContext, rows: Sequence) -> list[Group]:
    """Rows to scored groups."""
    prompts = usable_prompts(run, rows)
    counts = run.rollout_budget(prompts, len(prompts) * run.settings.group_size)
    with run.stats.timed("sample"):
        groups = run.rollout(prompts, counts, run)
    for index, group in enumerate(groups):
        group.id = group.id or f"{run.step}/{run.accelerator.process_index}/{len(run.stats.sampled) + index}"
    with run.stats.timed("score"):
        score(groups, run)
    if run.activity is not None:
        run.activity.sampled(run, rows, prompts, counts, groups)
    return groups


def admit(run: RunContext, groups: Sequence[Group], reasons: Counter[str]) -> list[Group]:
    """Shape the rewards and apply the group filters. Every dropped group is counted under its reason."""
    parts = [*run.reward_shaping.values(), *run.group_filters.values()]
    scored = [group for group in groups if len(group)]
    reasons["all_rollouts_failed_scoring"] += len(groups) - len(scored)
    if any(part.needs for part in parts):
        add_signals(run, scored, sorted({name for part in parts for name in part.needs}))
    kept = []
    for group in scored:
        for slot, shape in run.reward_shaping.items():
            before = group.rewards
            for rollout, value in zip(group, shape(group), strict=True):
                rollout.reward = float(value)
            if run.activity is not None:
                run.activity.shaped(slot, group, before)
        group.set_untrained_aside()
        decisions = {slot: group_filter(group) for slot, group_filter in run.group_filters.items()}
        if run.activity is not None:
            for slot, decision in decisions.items():
                run.activity.filtered(slot, decision)
        reason = next(
            (decision.reason or "dropped" for decision in decisions.values() if not decision.keep), None
        )
        if reason is None:
            kept.append(group)
        else:
            reasons[reason] += 1
    return kept


def assign(groups: Sequence[Group], run: RunContext) -> None:
    """Advantages (from the groups of all ranks) and their spread over tokens, written into the rollouts."""
    needs = sorted(
        {name for part in (run.advantage, run.token_credit, *run.callbacks.values()) for name in part.needs}
    )
    if needs and groups:
        add_signals(run, groups, needs)
    run.advantage.prepare(groups)
    everyone, own = all_groups(run.accelerator, groups)
    values = advantages_of(everyone, run) if everyone else []
    for group, advantages in zip(groups, values[own], strict=True):
        tokens = run.token_credit(group, advantages)
        for rollout, advantage, per_token in zip(group, advantages, tokens, strict=True):
            if len(per_token) != len(rollout):
                raise ConfigError(
                    f"token_credit: {run.token_credit.name!r} gave {len(per_token)} values for "
                    f"{len(rollout)} tokens"
                )
            rollout.advantage, rollout.advantages = float(advantage), list(per_token)
    if run.activity is not None:
        run.activity.assigned(run, groups)


def advantages_of(groups: Sequence[Group], run: RunContext) -> list[list[float]]:
    """The estimator's advantages. An episode of several rollouts counts once in the statistics of its group:
    all of them get that of the last one.

    Estimators that write advantages per token see every rollout.
    """
    split = any(SEGMENT.get(rollout, 0) for group in groups for rollout in group)
    if not split or TOKEN_ADVANTAGES in run.advantage.provides:
        return run.advantage(groups)
    places, views = [], []
    for group in groups:
        keys = [CONVERSATION.get(rollout, ("alone", place)) for place, rollout in enumerate(group)]
        last = {key: rollout for key, rollout in zip(keys, group)}
        views.append(Group(group.prompt, list(last.values()), group.id, group.info))
        places.append([list(last).index(key) for key in keys])
    return [
        [row[place] for place in members] for row, members in zip(run.advantage(views), places, strict=True)
    ]


def replayed(run: RunContext, groups: list[Group]) -> list[Group]:
    """The groups after the replay buffer added to them; without one, the same groups."""
    if run.replay is None:
        return groups
    result = run.replay(groups)
    if run.activity is not None:
        run.activity.replayed(groups, result)
    return result


def mini_batches(groups: Sequence[Group], run: RunContext, epoch: int) -> list[MiniBatch]:
    """The step's groups as optimizer steps of micro-batches. All ranks make the same number of both: a rank
    with fewer adds dummy batches."""
    settings = run.settings
    order = list(range(len(groups)))
    if settings.num_minibatches > 1:
        random.Random(f"{run.seed}/{run.step}/{epoch}").shuffle(order)
    parts = list(split_mini_batches(groups, settings.num_minibatches, order))
    count = max(rank[0] for rank in gather(run.accelerator, [len(parts)]))
    out = []
    for index in range(count):
        part = parts[index] if index < len(parts) else []
        denominators = Denominators(
            *(max(value, 1.0) for value in sum_over_ranks(run.accelerator, denominators_of(part)))
        )
        live = [
            group
            for group in part
            if not run.objective.skips_zero or any(a for r in group for a in r.advantages)
        ]
        run.stats.count({"skipped_groups": float(len(part) - len(live))})
        micros = split_micro_batches(live, settings.micro_batch_tokens, partial(cost, run))
        most = max(rank[0] for rank in gather(run.accelerator, [len(micros)]))
        micros += [[] for _ in range(max(most, 1) - len(micros))]
        out.append(MiniBatch(micros, denominators))
    return out


def learn(groups: Sequence[Group], run: RunContext) -> Sums:
    """All optimizer steps of a collected batch. Returns metric sums of this rank."""
    sums: Sums = {}
    run.stats.updates = 0
    off_policy = run.settings.ppo_epochs * run.settings.num_minibatches > 1 and run.rollout.samples
    by_weights = any("old_logp" in weight.needs for weight in run.objective.token_weights.values())
    at_start = [
        name for name in run.objective.needs if name in run.aux_tensors and run.aux_tensors[name].at_start
    ]
    own_pass = by_weights or bool(at_start) or run.policy.has_dropout
    if by_weights or (off_policy and own_pass):
        with run.policy.gather_params():
            add_signals(run, groups, ["old_logp", *at_start])
    for weight in run.objective.token_weights.values():
        weight.prepare(groups)
    first = mini_batches(groups, run, 0)
    if (
        off_policy and not own_pass
        # the first update's forward pass has the weights that the step starts from: only the others need one
        # more
    ):
        of_first = {id(group) for mini in first[:1] for micro in mini.micro_batches for group in micro}
        with run.policy.gather_params():
            add_signals(run, [group for group in groups if id(group) not in of_first], ["old_logp"])
    for epoch in range(run.settings.ppo_epochs):
        for place, mini in enumerate(first if epoch == 0 else mini_batches(groups, run, epoch)):
            set_learning_rate(run)
            for index, micro in enumerate(mini.micro_batches):
                last = index == len(mini.micro_batches) - 1
                with accumulating(run, last):
                    x = (
                        loss_inputs(run, micro, keep_logp=off_policy and epoch == 0 and place == 0)
                        if micro
                        else dummy_batch(run)
                    )
                    loss, metrics = run.objective(
                        x,
                        mini.loss_denominators,
                        run.activity.loss if run.activity is not None and micro else None,
                    )
                    backward(run, loss, last)
                if micro:
                    add_sums(sums, metrics)
                    add_sums(sums, engine_metrics(x))
            update = optimizer_step(run)
            add_sums(
                sums,
                {key: (value, 1.0) for key, value in update.items()}
                if run.accelerator.is_main_process
                else {},
            )
    return sums


def train_step(run: RunContext) -> dict[str, float]:
    """One step of the synchronous loop. Returns the numbers for the log, equal on all ranks."""
    run.step += 1
    run.stats.begin()
    with (
        run.policy.gather_params()
    ):  # ranks sample and score at different speeds: forwards must not run collectives here
        groups = replayed(run, collect(run))
        assign(groups, run)
    run.groups = list(groups)
    if sum_over_ranks(run.accelerator, [len(groups)])[0] == 0:
        run.warn(NOTHING_LEARNED.format(step=run.step))
        return end_step(run, {})
    with run.stats.timed("learn"):
        sums = learn(groups, run)
    run.policy.version += 1
    with run.stats.timed("sync"):
        run.engine.sync(run.policy)
    return end_step(run, means(over_ranks(run.accelerator, sums)))

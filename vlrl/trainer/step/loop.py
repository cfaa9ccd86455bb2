"""The control flow of one synchronous step: collect, score, assign, learn.

rows -> prompts -> rollouts -> rewards -> advantages -> loss -> optimizer step -> weights back to the engine
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from vlrl.plugins.episodes import CONVERSATION, SEGMENT
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.stages import TOKEN_ADVANTAGES, AdvantageEstimator
from vlrl.trainer.data.bad_rows import reason_of
from vlrl.trainer.data.rows import prompt_of
from vlrl.trainer.ranks.collectives import all_groups, gather, sum_over_ranks
from vlrl.trainer.session import Session
from vlrl.trainer.step.ending import end_step, over_ranks
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
from vlrl.trainer.step.objective import Sums, add_sums, means
from vlrl.trainer.step.optim import accumulating, backward, optimizer_step, scheduled_rate
from vlrl.trainer.step.step import Step
from vlrl.trainer.views import StepView
from vlrl.types import Denominators, Group, Prompt, Row

NOTHING_LEARNED = (
    "step {step}: no group passed the filters and the scorer, so nothing was learned; see the group_filter/* "
    "counters"
)


def train_step(session: Session) -> Step:
    """One step of the synchronous loop."""
    step = session.begin_step()
    view = StepView(session, step)
    with session.policy.gather_params():  # ranks sample at different speeds: no collectives in forwards here
        collect(view)
        replay(view)
        assign(view)
    return update(view)


def update(
    view: StepView,
    before_sync: Callable[[], None] = lambda: None,
    ending: AbstractContextManager[object] | None = None,
) -> Step:
    """Learn from the step's groups, hand the new weights to the engine, and end the step.

    `before_sync` runs between the update and the engine's new weights, `end_step` inside of `ending`.
    """
    session, step = view.session, view.record
    learns = sum_over_ranks(session.accelerator, [len(step.groups)])[0] > 0
    if learns:
        with step.timed("learn"):
            sums = learn(view)
        step.metrics |= means(over_ranks(session.accelerator, sums))
    before_sync()
    if learns:
        session.sync(step)
    else:
        session.warn(NOTHING_LEARNED.format(step=step.number))
    with ending or nullcontext():
        end_step(view)
    session.finish_step()
    return step


# --- collect ------------------------------------------------------------------------------------------------


def collect(view: StepView) -> None:
    """Fill the step with this rank's share of its groups: sampled, scored, shaped, filtered; refilled until
    all ranks together have `prompts_per_step`."""
    settings, accelerator, step = view.settings, view.accelerator, view.record
    rank, world = accelerator.process_index, accelerator.num_processes
    reasons: Counter[str] = Counter()
    missing = settings.prompts_per_step
    for _ in range(settings.max_refill_rounds):
        rows = step.shard_rows(view.draw_rows(missing), rank, world)
        groups = sample(view, rows)
        step.sampled.extend(groups)
        step.groups += admit(view, groups, reasons)
        missing = settings.prompts_per_step - int(sum_over_ranks(accelerator, [len(step.groups)])[0])
        if missing <= 0:
            break
    step.count({f"group_filter/{reason}": float(n) for reason, n in reasons.items()})


def sample(view: StepView, rows: Sequence[Row]) -> list[Group]:
    """Rows to scored groups."""
    step = view.record
    prompts = usable_prompts(view, rows)
    counts = view.rollout_budget(prompts, len(prompts) * view.group_size)
    with step.timed("sample"):
        groups = view.rollout(prompts, counts, view)
    for index, group in enumerate(groups):
        group.id = group.id or f"{step.number}/{view.rank}/{len(step.sampled) + index}"
    with step.timed("score"):
        view.score(groups)
    view.observers.sampled([row.id for row in rows], prompts, counts, groups)
    return groups


def usable_prompts(view: StepView, rows: Sequence[Row]) -> list[Prompt]:
    """Prompts of the rows of a step. A row that cannot be used, for whatever reason, is left out, counted
    (`data/dropped`) and quarantined.

    Raises BadRowsError once too many rows are left out.
    """
    prompts, bad_rows = [], view.session.bad_rows
    for row in rows:
        bad_rows.draw()
        try:
            prompts.append(prompt_of(view.policy, view.current, row))
        except Exception as error:  # a row can make a chat template, a tokenizer or a decoder raise anything
            reason = reason_of(error)
            view.count({"data/dropped": 1.0})
            bad_rows.add(row, reason, view.settings.row_error_limit, view.warn)
    return prompts


def admit(view: StepView, groups: Sequence[Group], reasons: Counter[str]) -> list[Group]:
    """Shape the rewards and apply the group filters. Every dropped group is counted under its reason."""
    parts = [*view.reward_shaping.values(), *view.group_filters.values()]
    scored = [group for group in groups if len(group)]
    reasons["all_rollouts_failed_scoring"] += len(groups) - len(scored)
    if any(part.needs for part in parts):
        add_signals(view.policy, view.current, scored, sorted({n for part in parts for n in part.needs}))
    kept = []
    for group in scored:
        for slot, shape in view.reward_shaping.items():
            before = group.rewards
            for rollout, value in zip(group, shape(group), strict=True):
                rollout.reward = float(value)
            view.observers.shaped(slot, group, before)
        group.set_untrained_aside()
        decisions = {slot: group_filter(group) for slot, group_filter in view.group_filters.items()}
        for slot, decision in decisions.items():
            view.observers.filtered(slot, decision)
        reason = next(
            (decision.reason or "dropped" for decision in decisions.values() if not decision.keep), None
        )
        if reason is None:
            kept.append(group)
        else:
            reasons[reason] += 1
    return kept


def replay(view: StepView) -> None:
    """Let the replay buffer add to the step's groups."""
    if view.replay is not None:
        before = view.record.groups
        view.record.groups = view.replay(before)
        view.observers.replayed(before, view.record.groups)


# --- assign -------------------------------------------------------------------------------------------------


def assign(view: StepView) -> None:
    """Advantages (from the groups of all ranks) and their spread over tokens, written into the rollouts."""
    groups, advantage = view.record.groups, view.advantage
    needs = sorted(
        {n for part in (advantage, view.token_credit, *view.callbacks.values()) for n in part.needs}
    )
    if needs:
        add_joint_signals(view, groups, needs)
    advantage.prepare(groups)
    everyone, own = all_groups(view.session.accelerator, groups)
    values = advantages_of(everyone, advantage) if everyone else []
    for group, advantages in zip(groups, values[own], strict=True):
        tokens = view.token_credit(group, advantages)
        for rollout, value, per_token in zip(group, advantages, tokens, strict=True):
            if len(per_token) != len(rollout):
                raise ConfigError(
                    f"token_credit: {view.token_credit.name!r} gave {len(per_token)} values for "
                    f"{len(rollout)} "
                    "tokens"
                )
            rollout.advantage, rollout.advantages = float(value), list(per_token)
    view.observers.assigned(groups)


def advantages_of(groups: Sequence[Group], advantage: AdvantageEstimator) -> list[list[float]]:
    """The estimator's advantages. An episode of several rollouts counts once in the statistics of its group:
    all of them get that of the last one.

    Estimators that write advantages per token see every rollout.
    """
    split = any(SEGMENT.get(rollout, 0) for group in groups for rollout in group)
    if not split or TOKEN_ADVANTAGES in advantage.provides:
        return advantage(groups)
    places, views = [], []
    for group in groups:
        keys = [CONVERSATION.get(rollout, ("alone", place)) for place, rollout in enumerate(group)]
        last = {key: rollout for key, rollout in zip(keys, group)}
        views.append(Group(group.prompt, list(last.values()), group.id, group.info))
        places.append([list(last).index(key) for key in keys])
    return [[row[place] for place in members] for row, members in zip(advantage(views), places, strict=True)]


# --- learn --------------------------------------------------------------------------------------------------


def add_joint_signals(view: StepView, groups: Sequence[Group], names: Sequence[str]) -> None:
    """`add_signals`, by the ranks that train on the same rows together."""
    together = view.session.joint_groups(groups)
    with view.session.joint():
        add_signals(view.policy, view.current, together, names)


def learn(view: StepView) -> Sums:
    """All optimizer steps of the step's groups. Returns metric sums of this rank; of ranks that train on the
    same rows, one has them."""
    session, step, settings = view.session, view.record, view.settings
    sums: Sums = {}
    groups, first = first_mini_batches(view)
    remembers = off_policy(view)
    for epoch in range(settings.ppo_epochs):
        for place, mini in enumerate(first if epoch == 0 else mini_batches(view, groups, epoch)):
            session.set_learning_rate(scheduled_rate(view.optimizer, settings, step))
            for index, micro in enumerate(mini.micro_batches):
                last = index == len(mini.micro_batches) - 1
                with accumulating(session.accelerator, view.policy, last), session.joint():
                    keep_logp = remembers and epoch == 0 and place == 0
                    x = (
                        loss_inputs(view.policy, view.current, micro, keep_logp)
                        if micro
                        else dummy_batch(view.policy, view.current)
                    )
                    loss, metrics = view.objective(
                        x, mini.loss_denominators, view.observers if micro else None
                    )
                    backward(session.accelerator, loss, last)
                if micro and session.leads:
                    add_sums(sums, metrics)
                    add_sums(sums, engine_metrics(x))
            limit = settings.optimizer.max_grad_norm
            norm = optimizer_step(session.accelerator, view.policy, view.optimizer, limit, step)
            if session.is_main:
                add_sums(sums, {"grad_norm": (norm, 1.0), "lr": (session.learning_rate, 1.0)})
    return sums


def off_policy(view: StepView) -> bool:
    """Whether later updates of the step have other weights than the first, so that `old_logp` is kept."""
    return view.settings.ppo_epochs * view.settings.num_minibatches > 1 and view.rollout.samples


def first_mini_batches(view: StepView) -> tuple[list[Group], list[MiniBatch]]:
    """The groups to learn from, those of all ranks that train on the same rows, and the mini-batches of the
    first epoch, after the log-probs of the weights that the step starts from were computed where the first
    forward pass does not give them."""
    groups, phase, objective = view.record.groups, view.current, view.objective
    by_weights = any("old_logp" in weight.needs for weight in objective.token_weights.values())
    at_start = [n for n in objective.needs if n in phase.aux_tensors and phase.aux_tensors[n].at_start]
    own_pass = by_weights or bool(at_start) or view.policy.has_dropout
    if by_weights or (off_policy(view) and own_pass):
        read = groups if by_weights else [group for group in groups if is_live(view, group)]
        with view.policy.gather_params():
            add_joint_signals(view, read, ["old_logp", *at_start])
    for weight in objective.token_weights.values():
        weight.prepare(groups)
    with view.policy.gather_params():
        for term in objective.loss_terms.values():
            term.prepare(groups)
    together = view.session.joint_groups(groups)
    first = mini_batches(view, together, 0)
    if (
        off_policy(view) and not own_pass
    ):  # the first update's forward has the weights that the step starts from
        of_first = {id(group) for mini in first[:1] for micro in mini.micro_batches for group in micro}
        with view.policy.gather_params(), view.session.joint():
            others = [group for group in together if id(group) not in of_first and is_live(view, group)]
            add_signals(view.policy, phase, others, ["old_logp"])
    return together, first


def mini_batches(view: StepView, groups: Sequence[Group], epoch: int) -> list[MiniBatch]:
    """The groups as optimizer steps of micro-batches. All ranks make the same number of both: a rank with
    fewer adds dummy batches."""
    settings, accelerator, leads = view.settings, view.session.accelerator, view.session.leads
    order = list(range(len(groups)))
    if settings.num_minibatches > 1:
        random.Random(f"{view.seed}/{view.step}/{epoch}").shuffle(order)
    parts = list(split_mini_batches(groups, settings.num_minibatches, order))
    count = max(rank[0] for rank in gather(accelerator, [len(parts)]))
    out = []
    for index in range(count):
        part = parts[index] if index < len(parts) else []
        sums = sum_over_ranks(accelerator, denominators_of(part if leads else []))
        denominators = Denominators(*(max(value, 1.0) for value in sums))
        live = [group for group in part if is_live(view, group)]
        view.count({"skipped_groups": float(len(part) - len(live)) * leads})
        micros = split_micro_batches(live, settings.micro_batch_tokens, partial(cost, view.policy))
        most = max(rank[0] for rank in gather(accelerator, [len(micros)]))
        micros += [[] for _ in range(max(most, 1) - len(micros))]
        out.append(MiniBatch(micros, denominators))
    return out


def is_live(view: StepView, group: Group) -> bool:
    """Whether a group can have a gradient."""
    return not view.objective.skips_zero or any(a for rollout in group for a in rollout.advantages)

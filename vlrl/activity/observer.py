"""The observer of a run: the trainer tells it what each stage made, it keeps figures by slot. It draws no
random numbers and changes nothing.

Shapes: B rollouts, T completion tokens.
"""

from __future__ import annotations

import copy
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vlrl.activity.figures import Figures
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.episodes import CALLS, EPISODE_RETURN
from vlrl.trainer.session import Session
from vlrl.trainer.step.observer import RunObserver
from vlrl.trainer.step.step import Step
from vlrl.types import FilterDecision, Group, LossInputs, Prompt, Rollout, UnreducedLoss

if TYPE_CHECKING:
    from torch import Tensor


SMALL = 1e-9  # a difference below is rounding
KEPT_SCORES = 4096  # scores per reward slot that are kept to compare slots


class Activity(RunObserver):
    """What each slot of the current phase did so far. The figures of several ranks are not added up: each
    rank has its own."""

    reads_loss = True

    def __init__(self, session: Session, keep_gradients: bool = False) -> None:
        self.session, self.phase = session, session.current
        self.keep_gradients = keep_gradients
        # by id of a rollout: d loss / d log-prob per token, summed over optimizer steps; {tensor: values per
        # token} of its last optimizer step
        self.gradients: dict[int, list[float]] = {}
        self.tensors: dict[int, dict[str, list[float]]] = {}
        self.figures = Figures()
        self.draws: Counter[str] = Counter()  # row id -> times drawn
        self.tasks: Counter[str] = Counter()
        self.reasons: dict[str, Counter[str]] = defaultdict(Counter)  # group filter -> reason -> groups
        self.bare: dict[str, str] = {}  # slot -> a text that says just the gold and was not paid
        self.scores: dict[str, dict[int, float]] = defaultdict(
            dict
        )  # reward slot -> number of the rollout -> score
        self.log: list[dict[str, float]] = []  # the metrics of each step
        self.scored = 0
        self._before: dict[str, dict[int, float]] = defaultdict(
            dict
        )  # shaping slot -> id of a rollout of this step -> reward before it
        self._prompts: dict[str, int] = {}  # prompt key -> characters

    # --- collecting -----------------------------------------------------------------------------------------

    def sampled(
        self,
        drawn: Sequence[str],
        prompts: Sequence[Prompt],
        counts: Sequence[int],
        groups: Sequence[Group],
    ) -> None:
        """After `sample`: the ids of the drawn rows, their prompts, the budget, the scored groups."""
        for row_id in drawn:
            self.draws[row_id] += 1
            self.figures.add("prompt_sampler", drawn=1.0, again=float(self.draws[row_id] > 1))
        for prompt, count in zip(prompts, counts):
            text = prompt.text
            self.tasks[prompt.row.task] += (
                1  # a prompt template may ask another question about the row, of another task
            )
            self._prompts[prompt.key] = len(text)
            self.figures.add("prompt_template", characters=len(text), prefix=float(bool(prompt.prefix)))
            self.figures.add("rollout_budget", count=count)
        for group in groups:
            self._sampled_group(group)

    def _sampled_group(self, group: Group) -> None:
        self.figures.add(
            "rollout",
            size=len(group),
            **({"distinct": len({r.text for r in group}) / len(group)} if len(group) else {}),
        )
        slots = [slot for slot in self.phase.rewards if any(slot in rollout.rewards for rollout in group)]
        for slot in slots:
            values = [rollout.rewards[slot] for rollout in group if slot in rollout.rewards]
            if (
                len(values) > 1
                # a group of one has nothing to differ from, as an estimator without a group baseline may want
                # it
            ):
                self.figures.add(f"rewards.{slot}", varies=float(max(values) - min(values) > SMALL))
            marks = self.phase.rewards[slot].form_marks
            if marks:
                asked = (
                    group.prompt.text + group.prompt.prefix + group.row.target
                )  # a cold start on demonstrations teaches their form
                self.figures.add(f"rewards.{slot}", asked=float(all(mark in asked for mark in marks)))
        for rollout in group:
            self._sampled_rollout(group, rollout)

    def _sampled_rollout(self, group: Group, rollout: Rollout) -> None:
        masked = 1.0 - sum(rollout.loss_mask) / max(len(rollout), 1) if rollout.loss_mask is not None else 0.0
        hinted = rollout.prompt.train is not None or rollout.prompt.key != group.prompt.key
        self.figures.add(
            "rollout",
            own=float(rollout.source == "policy"),
            other_prompt=float(hinted),
            masked=masked,
            untrained=float(not rollout.trained),
        )
        if rollout.source == "policy":
            temperature = (
                rollout.temperature
                if isinstance(rollout.temperature, (int, float))
                else statistics.fmean(rollout.temperature)
            )
            self.figures.add(
                "sampling", temperature=temperature, tokens=len(rollout), truncated=float(rollout.truncated)
            )
        if self.phase.environment is not None:
            self.figures.add(
                "environment", answered=float(CALLS.get(rollout, 0) > 0 or bool(EPISODE_RETURN.on(rollout)))
            )
        self.figures.add("outcome", correct=float(rollout.correct), scored=float(rollout.outcome is not None))
        self.scored += 1
        for slot, value in rollout.rewards.items():
            self.figures.add(f"rewards.{slot}", score=value)
            if value <= 0:
                self._unpaid(slot, rollout)
            if self.scored <= KEPT_SCORES:
                self.scores[slot][self.scored] = value

    def _unpaid(self, slot: str, rollout: Rollout) -> None:
        """Why a rollout was not paid: whether an answer was read, and the first that says just the gold."""
        verdict = rollout.info.get("verdict")  # of rewards that score an answer
        if isinstance(verdict, Mapping):
            self.figures.add(f"rewards.{slot}", read=float(verdict.get("extracted") is not None))
        said, gold = rollout.text.strip(), str(rollout.answer).strip()
        if said and said.casefold() == gold.casefold():
            self.bare.setdefault(slot, said)

    def shaped(self, slot: str, group: Group, before: Sequence[float]) -> None:
        """After one reward shaping wrote a group's rewards; `before` are those that it read. A shaping may
        write rewards of tokens in place of them."""
        provided = self.phase.reward_shaping[slot].provides
        per_token = [value for value in provided if isinstance(value, Annotation) and value.kind is list]
        for rollout, old in zip(group, before, strict=True):
            change = rollout.reward - old
            written = [item for value in per_token for item in value.get(rollout) or ()]
            changed = any(isinstance(item, float) and abs(item) > SMALL for item in (change, *written))
            self.figures.add(f"reward_shaping.{slot}", changed=float(changed), change=change)
            self._before[slot][id(rollout)] = old

    def filtered(self, slot: str, decision: FilterDecision) -> None:
        """A group filter's decision about one group."""
        self.figures.add(f"group_filters.{slot}", dropped=float(not decision.keep))
        if not decision.keep:
            self.reasons[slot][decision.reason or "dropped"] += 1

    def replayed(self, before: Sequence[Group], after: Sequence[Group]) -> None:
        """The groups that the replay buffer got, and those that it returned."""
        fresh = {id(rollout) for group in before for rollout in group}
        kept = {id(rollout) for group in after for rollout in group}
        self.figures.add("replay", added=len(kept - fresh), removed=len(fresh - kept))

    # --- advantages -----------------------------------------------------------------------------------------

    def assigned(self, groups: Sequence[Group]) -> None:
        """After advantages and token credit were written into this rank's groups."""
        for group in groups:
            mean, std = statistics.fmean(group.rewards), statistics.pstdev(group.rewards)
            for rollout in group:
                usual = (rollout.reward - mean) / (std + 1e-4) if std > SMALL else 0.0
                self.figures.add(
                    "advantage",
                    value=rollout.advantage,
                    size=abs(rollout.advantage),
                    nonzero=float(abs(rollout.advantage) > SMALL),
                    vs_grpo=abs(rollout.advantage - usual),
                )
                own = [
                    a
                    for i, a in enumerate(rollout.advantages)
                    if rollout.loss_mask is None or rollout.loss_mask[i]
                ]
                if own:
                    spread = max(own) - min(own)
                    self.figures.add(
                        "token_credit",
                        varies=float(spread > SMALL),
                        spread=spread,
                        trained=float(any(abs(a) > SMALL for a in own)),
                    )
        for slot in self.phase.reward_shaping:
            self._shaping_in_advantages(slot, groups)
        self._before.clear()

    def _shaping_in_advantages(self, slot: str, groups: Sequence[Group]) -> None:
        """How far the advantages differ from those of the rewards before this shaping. Estimators with a
        state are not asked twice."""
        before = self._before.get(slot, {})
        stateful = self.phase.advantage.init_state() is not None
        if (
            not before
            or stateful
            or self.session.ranks > 1
            or any(id(r) not in before for group in groups for r in group)
        ):
            return
        copies = []
        for group in groups:
            rollouts = [copy.copy(rollout) for rollout in group]
            for twin, rollout in zip(rollouts, group):
                twin.reward, twin.info, twin.signals = (
                    before[id(rollout)],
                    dict(rollout.info),
                    dict(rollout.signals),
                )
            copies.append(Group(group.prompt, rollouts, group.id, dict(group.info), group.untrained))
        self.phase.advantage.prepare(copies)
        for group, advantages in zip(groups, self.phase.advantage(copies) if copies else [], strict=True):
            for rollout, other in zip(group, advantages, strict=True):
                self.figures.add(f"reward_shaping.{slot}", moved=abs(rollout.advantage - float(other)))

    # --- loss -----------------------------------------------------------------------------------------------

    def loss_computed(
        self,
        x: LossInputs,
        main: UnreducedLoss,
        weights: Mapping[str, Tensor],
        terms: Mapping[str, tuple[float, UnreducedLoss]],
        aggregation: Tensor | None,
        total: Tensor,
    ) -> None:
        """Inside the objective: the policy loss, the token weights, {slot: (coef, loss term)}, the weights of
        the aggregation, and the whole loss."""
        import torch

        mask = x.mask_BT > 0
        if not bool(mask.any()):
            return
        count = float(mask.sum())
        ratio = (x.logp_BT.detach() - x.old_logp_BT).exp()[mask]
        main_gradient = gradient(main.loss, x)
        advantage = x.advantage_BT.float() * mask
        live = (advantage != 0) & mask
        figures = {
            "off_policy": float((ratio - 1).abs().max()),
            "gradient": float(main_gradient.abs().sum()) / count,
        }
        if bool(live.any()):
            figures["clipped"] = float((main_gradient[live] == 0).float().mean())
            figures["vs_policy_gradient"] = float(
                (main_gradient + advantage)[live].abs().mean() / advantage[live].abs().mean()
            )
        self.figures.add("policy_loss", **figures)
        for slot, value in weights.items():
            chosen = value.expand_as(x.mask_BT)[mask].float()
            self.figures.add(
                f"token_weights.{slot}",
                weight=float(chosen.mean()),
                changed=float(((chosen - 1).abs() > 1e-6).float().mean()),
            )
        for slot, (coef, term) in terms.items():
            own, loss = coef * gradient(term.loss, x), term.loss.detach()
            mean = (
                torch.where(mask, loss, torch.zeros_like(x.mask_BT)).sum() / count
                if loss.dim() == 2
                else loss.mean()
            )
            self.figures.add(f"loss_terms.{slot}", value=float(mean), gradient=float(own.abs().sum()) / count)
        if aggregation is not None:
            chosen = aggregation.expand_as(x.mask_BT)[mask].float()
            low = float(chosen.abs().min())
            self.figures.add(
                "loss_aggregation",
                weight=float(chosen.sum()),
                **({"ratio": float(chosen.abs().max()) / low} if low > 0 else {}),
            )

        if self.keep_gradients:
            for rollout, row in zip(x.batch.rollouts, gradient(total, x)):
                before = self.gradients.get(id(rollout), [0.0] * len(rollout))
                self.gradients[id(rollout)] = [a + b for a, b in zip(before, row.tolist())]
            self._keep_tensors(x, total)

    def _keep_tensors(self, x: LossInputs, total: Tensor) -> None:
        """Keep, per token, the push on the log-prob (-d loss / d log-prob, without auxiliary tensors), log
        ratio, log-prob, advantage and auxiliary tensors."""
        import torch

        push: Tensor | None = None
        if total.requires_grad and x.logp_BT.requires_grad:
            (push,) = torch.autograd.grad(total, [x.logp_BT], retain_graph=True, allow_unused=True)
        kept = {
            "push": torch.zeros_like(x.mask_BT) if push is None else -push.float() * (x.mask_BT > 0),
            "log_ratio": x.logp_BT.detach() - x.old_logp_BT,
            "logp": x.logp_BT.detach(),
            "advantage": x.advantage_BT,
        }
        kept |= {
            name: tensor.detach()
            for name, tensor in x.aux_tensors.items()
            if tensor.shape == x.logp_BT.shape and tensor is not x.logp_BT
        }
        for name, tensor in kept.items():
            for rollout, row in zip(x.batch.rollouts, tensor.expand_as(x.mask_BT).tolist()):
                self.tensors.setdefault(id(rollout), {})[name] = row[: len(rollout)]

    # --- the step -------------------------------------------------------------------------------------------

    def ended(self, step: Step) -> None:
        """After a step."""
        numbers = {name: float(value) for name, value in step.metrics.items()}
        self.log.append(numbers)
        model = self.session.policy.model
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self.figures.add("trainable", share=trained / max(sum(p.numel() for p in model.parameters()), 1))
        for kind, slots in (("callbacks", self.phase.callbacks), ("metrics", self.phase.metrics)):
            for slot in slots:
                own = [
                    value for name, value in numbers.items() if name == slot or name.startswith(f"{slot}/")
                ]
                self.figures.add(f"{kind}.{slot}", numbers=len(own))

    def prompts(self) -> int:
        """Number of different prompts so far."""
        return len(self._prompts)


def gradient(loss: Tensor, x: LossInputs) -> Tensor:
    """Gradient of a loss at each token, (B, T): the sign of d sum(loss) / d logp (+ where that is 0), the
    size |d sum(loss) / d logp| + sum over the auxiliary tensors a of |d sum(loss) / d a|.

    So it is 0 where the loss depends on none of them: parts that would cancel, as in a - logp, add up. Zero
    outside the loss mask. `loss`: (B, T), of which the masked tokens count, or (B,), a loss per sequence. An
    auxiliary tensor of shape (B, T, K) counts with the sum over K.
    """
    import torch

    zeros = torch.zeros_like(x.mask_BT)
    if not loss.requires_grad:
        return zeros
    total = torch.where(x.mask_BT > 0, loss, torch.zeros_like(loss)).sum() if loss.dim() == 2 else loss.sum()
    others = [tensor for tensor in x.aux_tensors.values() if tensor.requires_grad and tensor is not x.logp_BT]
    inputs = [t for t in (x.logp_BT, *others) if t.requires_grad]
    if not inputs or not total.requires_grad:
        return zeros
    own, *rest = torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
    result = zeros if own is None else own.detach().float()
    for part in rest:
        if part is not None:
            flat = part.detach().float().abs()
            size = flat.sum(-1) if flat.dim() == 3 else flat
            result = torch.where(result < 0, result - size, result + size)
    return result * (x.mask_BT > 0)


__all__ = ["Activity", "gradient"]

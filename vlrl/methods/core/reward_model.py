"""Reward models, trained by the same loop as policies: a head on the model's hidden states, rollouts that are
given responses, and their losses.

    reward_head         trainable: the model with a head `score` on its last hidden states
    reward_score        aux tensor: what the head says at each completion token
    given_responses     rollout strategy: the rated responses of a row
    given_steps         rollout strategy: a row's solution, with a label per step
    bradley_terry       loss term: a higher-rated response gets a higher score
    step_labels         loss term: the probability that each step is right

A checkpoint is a transformers folder: `AutoModelForSequenceClassification` (one label) or
`AutoModelForTokenClassification` (two) loads it, and rewards `reward_model` and `step_reward_model` do.

Shapes: B rollouts, T completion tokens, N scored tokens, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, Literal

from vlrl.methods.common.demonstrations import expert_rollout
from vlrl.methods.core.trainable import decay_groups
from vlrl.plugins.capabilities import NO_POLICY_GRADIENT, Annotation, Capability
from vlrl.plugins.contexts import PhaseContext, SamplingContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import AuxTensor, LossTerm, RolloutStrategy, Trainable
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import Group, LossInputs, Prompt, Rollout, UnreducedLoss

HEAD = "score"  # the head's name in transformers' classification models
REWARD_HEAD = Capability("reward_head", hint="trainable: {name: reward_head}")
RATING: Annotation[float] = Annotation(
    "rating", float, hint="rollout: {name: given_responses}", doc="how good the response is, by its data"
)
STEP_LABELS: Annotation[list] = Annotation(
    "step_labels",
    list,
    hint="rollout: {name: given_steps}",
    doc="(token that follows the step's mark, probability that the step is right) per step",
)


def head_of(model: Any) -> nn.Module:
    """The reward head of a model. Raises ConfigError where it has none."""
    while not isinstance(getattr(model, HEAD, None), nn.Module):
        if not hasattr(model, "module"):  # what DDP wraps
            raise ConfigError("trainable: the model has no reward head; use trainable: {name: reward_head}")
        model = model.module
    found: nn.Module = getattr(model, HEAD)
    return found


@register("reward_head")
@dataclass(frozen=True, kw_only=True)
class RewardHead(Trainable):
    """A reward model: the language model with a linear head on its last hidden states, trained together.

        s_t = w . h_t  (labels 1)      logits of wrong and right  (labels 2, with bias)

    Paper: Ouyang et al. 2022, arXiv:2203.02155, sec. 3.4 (scalar head); Uesato et al. 2022, arXiv:2211.14275
    (step labels). `backbone` false trains the head alone. The head begins at 0, or with what the model's
    folder has, so that a run resumes. Edge: the output embeddings get no gradient; weights that are sharded
    (ZeRO-3, FSDP) are refused.
    """

    labels: Literal[1, 2] = 1
    backbone: bool = True
    provides = (REWARD_HEAD,)

    def __call__(self, policy: Any) -> list[dict[str, Any]]:
        model = policy.model
        if not isinstance(getattr(model, HEAD, None), nn.Module):
            setattr(model, HEAD, self.head(policy))
        model.config.num_labels = self.labels
        model.config.reward_form = "completion"  # read at the last token of prompt and response
        model.requires_grad_(self.backbone)
        head_of(model).requires_grad_(True)
        return decay_groups(model.named_parameters())

    def head(self, policy: Any) -> nn.Module:
        """A head of zeros, or the one saved in the model's folder."""
        size = policy.model.get_output_embeddings().weight.shape[-1]
        head = nn.Linear(size, self.labels, bias=self.labels == 2).to(policy.device)
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
        saved = saved_head(str(policy.family.model or ""))
        if saved:
            if saved["weight"].shape[0] != self.labels:
                raise ConfigError(
                    f"trainable.labels: {self.labels}, but the head of {policy.family.model!r} has "
                    f"{saved['weight'].shape[0]}"
                )
            head.load_state_dict(saved)
        return head


def saved_head(folder: str) -> dict[str, Tensor]:
    """The tensors of the head in a model's folder, by name; {} where there are none."""
    from safetensors import safe_open

    found: dict[str, Tensor] = {}
    for file in sorted(Path(folder).glob("*.safetensors")) if folder else ():
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (no mapping)
                if name.startswith(f"{HEAD}."):
                    found[name.removeprefix(f"{HEAD}.")] = tensors.get_tensor(name)
    return found


@register("reward_score")
@dataclass(frozen=True, kw_only=True)
class RewardScore(AuxTensor):
    """s_t of the reward head before completion token t, with gradient: of one label its value, of two
    logit(right) - logit(wrong).

    Paper: Ouyang et al. 2022, arXiv:2203.02155. At the last token, EOS, it has read the whole response.
    Shapes: (N, H) to (N,).
    """

    in_forward = True
    reads_hidden = True

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.params_sharded:
            raise ConfigError(
                "trainable: 'reward_head' reads its head outside of the model's forward, which sharded "
                "weights do not allow; train with --sharding ddp or zero2"
            )

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        head = head_of(self.run.policy.model)
        weight: Any = head.weight
        logits_NL = head(hidden_NH.to(weight.dtype)).float()
        return logits_NL[:, 0] if logits_NL.shape[-1] == 1 else logits_NL[:, 1] - logits_NL[:, 0]


@dataclass(frozen=True)
class GivenTexts(RolloutStrategy):
    """Base of strategies whose rollouts are texts of the row. No engine samples."""

    samples: ClassVar[bool] = False
    needs_target: ClassVar[bool] = False

    def check(self, phase: PhaseContext) -> None:
        if not phase.has(NO_POLICY_GRADIENT):
            raise ConfigError(
                f"rollout: {self.name!r} gives responses that the policy did not write; use policy_loss: "
                "{name: zero_loss} with a loss term"
            )


@register("given_responses")
@dataclass(frozen=True)
class GivenResponses(GivenTexts):
    """The rated responses of a row as its group: `meta.responses` with `meta.ratings`, or `meta.chosen` and
    `meta.rejected`.

    vlrl original (the data of arXiv:2203.02155, sec. 3.5). At most `most` responses, the best and the worst
    among them. Edge: a row without two different ratings raises ValueError.
    """

    most: int = 8
    provides = (RATING,)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        return [Group(prompt, self.rollouts(prompt, run)) for prompt in prompts]

    def rollouts(self, prompt: Prompt, run: StageContext) -> list[Rollout]:
        """The rollouts of a row's responses, best first."""
        rated = rated_responses(prompt)
        if len(rated) > self.most:
            rated = [*rated[: self.most - 1], rated[-1]]
        found = []
        for text, rating in rated:
            rollout = expert_rollout(prompt, text, run)
            rollout.logp = [0.0] * len(rollout)
            RATING.set(rollout, rating)
            found.append(rollout)
        return found


def rated_responses(prompt: Prompt) -> list[tuple[str, float]]:
    """A row's responses with their ratings, best first. Raises ValueError where there are no two."""
    meta, row = prompt.row.meta, prompt.row
    if "responses" in meta:
        rated = list(zip(map(str, meta["responses"]), map(float, meta.get("ratings", ())), strict=True))
    else:
        pair = (("chosen", 1.0), ("rejected", 0.0))
        rated = [(str(meta[key]), value) for key, value in pair if key in meta]
    if len({rating for _, rating in rated}) < 2:
        raise ValueError(
            f"row {row.id!r}: rollout 'given_responses' needs meta.responses with two different "
            "meta.ratings, or meta.chosen and meta.rejected"
        )
    return sorted(rated, key=lambda entry: -entry[1])


@register("given_steps")
@dataclass(frozen=True)
class GivenSteps(GivenTexts):
    """A row's solution as one rollout, each step with `mark` behind it: `meta.steps` with `meta.step_labels`.

    vlrl original; the form of PURE-PRM (arXiv:2504.15275), which `vlrl.beside.process` reads. Edge: a row
    without steps, or with another number of labels, raises ValueError.
    """

    mark: str = "\n"
    provides = (STEP_LABELS,)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        return [Group(prompt, [self.rollout(prompt, run)]) for prompt in prompts]

    def rollout(self, prompt: Prompt, run: StageContext) -> Rollout:
        """The rollout of a row's steps."""
        steps, labels = prompt.row.meta.get("steps") or (), prompt.row.meta.get("step_labels") or ()
        if not steps or len(steps) != len(labels):
            raise ValueError(
                f"row {prompt.row.id!r}: rollout 'given_steps' needs meta.steps and as many "
                f"meta.step_labels; it has {len(steps)} and {len(labels)}"
            )
        policy, ids, marks = run.policy, [], []
        for step, label in zip(steps, labels):
            ids += [*policy.encode_text(str(step)), *policy.encode_text(self.mark)]
            marks.append((len(ids), float(label)))
        ids.append(policy.tokenizer.eos_token_id)
        text = self.mark.join(map(str, steps))
        rollout = Rollout(prompt, ids, text, source="expert", version=policy.version)
        rollout.logp = [0.0] * len(ids)
        rollout.spaces = tuple(policy.spaces(prompt))
        STEP_LABELS.set(rollout, marks)
        return rollout


@register("bradley_terry")
@dataclass(frozen=True, kw_only=True)
class BradleyTerry(LossTerm):
    """Bradley-Terry loss of a scalar reward model, over the pairs of a group with different ratings.

        L = mean over pairs of -log sigma(s_w - s_l - m) + c (s_w + s_l)^2

    s is the head's value at the last token; m is `margin` times the difference of the ratings (Llama 2,
    arXiv:2307.09288, eq. 2), c is `centre` (arXiv:2312.09244). Every rollout carries its group's mean, so
    that the step's loss is the mean over rollouts. Paper: Ouyang et al. 2022, arXiv:2203.02155, eq. 1. Edge:
    a group without a pair adds 0. Logs the share of pairs that are ranked right and their mean difference.
    Shapes: (B,).
    """

    margin: float = 0.0
    centre: float = 0.0
    needs = ("reward_score",)
    requires = (RATING, REWARD_HEAD)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        score_B = last_of(x)
        ratings = [RATING.get(rollout, 0.0) for rollout in x.batch.rollouts]
        groups = x.group_B.tolist()
        loss_B = score_B * 0.0
        right, gaps = [], []
        for group in sorted(set(groups)):
            places = [place for place, own in enumerate(groups) if own == group]
            pairs = [
                (a, b) if ratings[a] > ratings[b] else (b, a)
                for a, b in combinations(places, 2)
                if ratings[a] != ratings[b]
            ]
            losses = []
            for best, worst in pairs:
                gap = score_B[best] - score_B[worst]
                loss = -nn.functional.logsigmoid(gap - self.margin * (ratings[best] - ratings[worst]))
                losses.append(loss + self.centre * (score_B[best] + score_B[worst]) ** 2)
                right.append((gap > 0).float())
                gaps.append(gap.detach())
            if losses:
                at = torch.tensor(places, device=score_B.device)
                loss_B = loss_B.index_add(0, at, torch.stack(losses).mean().expand(len(places)))
        logged = {"pairs_right": torch.stack(right).mean(), "gap": torch.stack(gaps).mean()} if right else {}
        return UnreducedLoss(loss_B, logged)


@register("step_labels")
@dataclass(frozen=True, kw_only=True)
class StepLabels(LossTerm):
    """Cross-entropy of a process reward model on the labels of steps.

        L = mean over steps k of -y_k log sigma(s_k) - (1 - y_k) log sigma(-s_k)

    s_k is logit(right) - logit(wrong) at the last token of the mark behind step k; y_k may be a share
    (Math-Shepherd's soft labels). Paper: Lightman et al. 2023, arXiv:2305.20050, sec. 2.6; Wang et al. 2024
    (Math-Shepherd), arXiv:2312.08935, eq. 3-4. Logs the share of steps on the right side of 1/2. Shapes:
    (B,).
    """

    needs = ("reward_score",)
    requires = (STEP_LABELS, REWARD_HEAD)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        score_BT = x["reward_score"]
        losses, right = [], []
        for score_T, rollout in zip(score_BT, x.batch.rollouts, strict=True):
            marks = STEP_LABELS.get(rollout, [])
            at = torch.tensor([place for place, _ in marks], device=score_T.device, dtype=torch.long)
            label_K = torch.tensor([label for _, label in marks], device=score_T.device)
            score_K = score_T[at]
            losses.append(
                nn.functional.binary_cross_entropy_with_logits(score_K, label_K)
                if marks
                else score_T.sum() * 0.0
            )
            right += ((score_K > 0) == (label_K > 0.5)).tolist()
        share = torch.tensor(sum(right) / max(1, len(right)))
        return UnreducedLoss(torch.stack(losses), {"steps_right": share})


def last_of(x: LossInputs) -> Tensor:
    """(B,) the head's value at the last token of each rollout."""
    lengths = torch.tensor([len(rollout) for rollout in x.batch.rollouts], device=x.mask_BT.device)
    return x["reward_score"].gather(1, (lengths - 1)[:, None])[:, 0]

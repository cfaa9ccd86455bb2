"""LENS: prompts that mostly fail are sampled again without their interfering tokens; correct rollouts of the
purified prompt join the group.

    lens                    rollout strategy: purifies prompts and exchanges rollouts
    lens.calibrated_clip    policy loss: PPO's clip with the probability under the purified prompt as the
    behaviour policy lens.success_rate       token weight: rollouts weighted by the prompt's success rate

Paper: Guo et al. 2026 (LENS), arXiv:2601.21244, as in published notes on it; the code could not be read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlrl.functional import clipped_ratio_loss
from vlrl.methods.common.correctness import success_rate
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Annotation, Capability
from vlrl.plugins.contexts import PhaseContext, SamplingContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import PolicyLoss, StepCounts, TokenWeight
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Group, LossInputs, Message, Prompt, UnreducedLoss

WEIGHT: Annotation[float] = Annotation(
    "lens.weight",
    float,
    hint="rollout: {name: lens}",
    doc="weight of a rollout in a group with rollouts of the purified prompt",
)
CORRECTS_PURIFIED = Capability("lens.corrects_purified", hint="policy_loss: {name: lens.calibrated_clip}")


@register("lens")
@dataclass(frozen=True)
class Lens(Independent):
    """LENS's rollouts: where less than `below` of n rollouts are correct, n rollouts of the purified prompt
    are sampled.

        purified: without the ceil(gamma m) of the question's m tokens with the largest
                  |log pi(x_t) - log pi_ref(x_t)|; pictures and the chat template stay

    If more of these are correct, wrong rollouts of the group are replaced by correct ones of the purified
    prompt (source "purified"), one for one, trained on under the original prompt. WEIGHT is then a for the
    prompt's own correct rollouts and 1 - a for all others, a the original prompt's success rate. Paper: Guo
    et al. 2026 (LENS), arXiv:2601.21244, sec. 2, as in published notes on it; the code could not be read,
    `below` is ours. The reference is that of a KL term. Edge: a question that the chat template alters, or
    without interference, is not purified.
    """

    state_class = StepCounts
    gamma: float = 0.03
    below: float = 0.25
    provides = (WEIGHT,)
    requires = (CORRECTS_PURIFIED,)

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 1 or not 0 < self.below <= 1:
            raise ValueError(f"gamma={self.gamma} must be in (0, 1) and below={self.below} in (0, 1]")

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        if phase.settings.loop != "synchronous":
            raise ConfigError(
                f"rollout: 'lens' runs the policy on prompts, and loop {phase.settings.loop!r} may be "
                "training it at that time; use loop: synchronous"
            )
        if "ref_logp" not in phase.aux_tensors:
            raise ConfigError(
                "rollout: 'lens' compares the policy with a reference, and nothing keeps one; add "
                "loss_terms: {kl: {name: kl, coef: 0.001}}"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        failing = [
            (group, count)
            for group, count in zip(groups, counts)
            if len(group) and success_rate(group.rollouts) < self.below
        ]
        pairs = [(group, count, self.purified(group.prompt, run)) for group, count in failing]
        pairs = [
            (group, count, prompt)
            for group, count, prompt in pairs
            if prompt.messages != group.prompt.messages
        ]
        purified = super().__call__([prompt for *_, prompt in pairs], [count for _, count, _ in pairs], run)
        run.score(purified)
        self.state.add(failing=len(failing), purified=len(pairs))
        for (group, *_), other in zip(pairs, purified, strict=True):
            self.state.add(before=success_rate(group.rollouts), after=success_rate(other.rollouts))
            if len(other) and success_rate(other.rollouts) > success_rate(group.rollouts):
                exchange(group, other)
                self.state.add(exchanged=sum(rollout.source == "purified" for rollout in group))
        return groups

    def metrics(self) -> dict[str, tuple[float, float]]:
        state: StepCounts = self.state
        found = ("before", "after") if state.logged.get("purified") else ()
        return {
            **state.totals("lens", "failing", "purified", "removed_tokens", "exchanged"),
            **{f"lens/success_{name}": state.share(name, "purified") for name in found},
        }

    def purified(self, prompt: Prompt, run: StageContext) -> Prompt:
        """The prompt without its interfering tokens."""
        message, part, text = find_question(prompt)
        spans = token_spans(run.policy, prompt, text)
        with run.policy.reference() as reference:
            reference_logp = prompt_logp(reference, prompt)
        interference = [
            abs(a - b) for a, b in zip(prompt_logp(run.policy, prompt), reference_logp, strict=True)
        ]
        ranked = sorted(spans, key=lambda t: -interference[t])[: math.ceil(self.gamma * len(spans) - 1e-9)]
        removed = [t for t in ranked if interference[t] > 0]
        self.state.add(removed_tokens=len(removed))
        return (
            replace_text(prompt, message, part, remove_spans(text, [spans[t] for t in removed]))
            if removed
            else prompt
        )


def exchange(group: Group, purified: Group) -> None:
    """Replace wrong rollouts of the group, from the first on, by correct ones of the purified prompt; write
    WEIGHT on all."""
    rate = success_rate(group.rollouts)
    replacements = [rollout for rollout in purified if rollout.correct]
    wrong = [place for place, rollout in enumerate(group) if not rollout.correct]
    for rollout in group:
        WEIGHT.set(rollout, rate if rollout.correct else 1 - rate)
    for place, rollout in zip(wrong, replacements):
        rollout.source = "purified"
        WEIGHT.set(rollout, 1 - rate)
        group.rollouts[place] = rollout


def find_question(prompt: Prompt) -> tuple[int, int, str]:
    """The longest text of the last user message: (message, part, text); part -1 where the message's content
    is the text itself."""
    message = max(i for i, message in enumerate(prompt.messages) if message["role"] == "user")
    content = prompt.messages[message]["content"]
    if isinstance(content, str):
        return message, -1, content
    part = max(
        (i for i, item in enumerate(content) if item["type"] == "text"), key=lambda i: len(content[i]["text"])
    )
    return message, part, content[part]["text"]


def replace_text(prompt: Prompt, message: int, part: int, text: str) -> Prompt:
    """The prompt with another text at that message and part (as `find_question` gives them), trained on as
    the original prompt."""
    old: Message = prompt.messages[message]
    content = (
        text
        if part < 0
        else [{**item, "text": text} if i == part else item for i, item in enumerate(old["content"])]
    )
    messages = (*prompt.messages[:message], {**old, "content": content}, *prompt.messages[message + 1 :])
    return replace(prompt, messages=messages, train=prompt.for_training)


def remove_spans(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """The text without the characters in these (start, end) spans."""
    removed = {i for start, end in spans for i in range(start, end)}
    return "".join(letter for i, letter in enumerate(text) if i not in removed)


def prompt_logp(policy: Any, prompt: Prompt) -> list[float]:
    """log pi(x_t | x_<t) of every prompt token, in nats at temperature 1; 0 for the first."""
    encoded, family, model = policy.encode(prompt), policy.family, policy.model
    ids_L = torch.tensor(encoded.ids, device=policy.device)
    media = policy.encode_media(list(encoded.features)) if encoded.features else []
    positions = encoded.positions.to(policy.device).unsqueeze(-2)
    with torch.no_grad(), policy.autocast():
        hidden, _ = family.hidden(
            model, ids_L[None], positions, None, media, [feature.kind for feature in encoded.features]
        )
        logits_LV = family.logits(model, hidden[0, :-1]).float()
    return [0.0, *logits_LV.log_softmax(-1).gather(-1, ids_L[1:, None])[:, 0].tolist()]


def token_spans(policy: Any, prompt: Prompt, text: str) -> dict[int, tuple[int, int]]:
    """Position in the prompt -> (start, end) characters of `text`, for the tokens of `text`; empty where the
    tokens cannot be aligned."""
    rendered, encoded = policy.render(prompt), policy.encode(prompt)
    start = rendered.rfind(text)
    tokenized = policy.tokenizer(rendered, add_special_tokens=False, return_offsets_mapping=True)
    media_ids = set(policy.forbidden_ids)
    text_tokens = [
        (i, span)
        for i, span in zip(tokenized["input_ids"], tokenized["offset_mapping"])
        if i not in media_ids
    ]
    positions = [t for t, i in enumerate(encoded.ids) if i not in media_ids]
    if start < 0 or len(positions) < len(text_tokens):
        return {}
    spans = {}
    for t, (token, (a, b)) in zip(positions[len(positions) - len(text_tokens) :], text_tokens, strict=True):
        if encoded.ids[t] != token:
            return {}
        if start <= a and b <= start + len(text) and a < b:
            spans[t] = (a - start, b - start)
    return spans


@register("lens.calibrated_clip")
@dataclass(frozen=True)
class LensCalibratedClip(PolicyLoss):
    """LENS's calibrated clip: -min(r A, clip(r, 1 - low, 1 + high) A), r = pi(y_t) / mu(y_t).

    mu is the distribution that rollouts of `sources` were sampled from (that of the purified prompt), and
    pi_old for all others. Paper: Guo et al. 2026 (LENS), arXiv:2601.21244, sec. 2.2, as in published notes on
    it: r = pi / (w mu) there; the notes do not say what w is to the ratio, and weight `lens.success_rate`
    multiplies the loss by it. Edge: |log r| is clamped to 20.
    """

    low: float = 0.2
    high: float = 0.2
    sources: tuple[str, ...] = ("purified",)
    provides = (CORRECTS_PURIFIED,)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        purified_B1 = torch.tensor(
            [[rollout.source in self.sources] for rollout in x.batch.rollouts], device=x.logp_BT.device
        )
        log_BT = torch.where(purified_B1, (x.logp_BT - x.sampled_logp_BT) * x.mask_BT, x.log_ratio_BT).clamp(
            -20, 20
        )
        return clipped_ratio_loss(log_BT.exp(), x.advantage_BT, self.low, self.high)


@register("lens.success_rate")
@dataclass(frozen=True)
class LensSuccessRate(TokenWeight):
    """LENS's sample reweighting: w = a for correct rollouts of the original prompt, 1 - a for the others, a
    the prompt's success rate.

    Only in groups with rollouts of the purified prompt; w = 1 in all other groups. Shapes: (B, 1).
    Paper: Guo et al. 2026 (LENS), arXiv:2601.21244, sec. 2.2 (sample reweighting), as in published notes on
    it.
    """

    requires = (WEIGHT,)

    def __call__(self, x: LossInputs) -> Tensor:
        return torch.tensor(
            [[WEIGHT.get(rollout, 1.0)] for rollout in x.batch.rollouts],
            device=x.logp_BT.device,
            dtype=x.logp_BT.dtype,
        )

"""The tokens of a prompt: what is written in them, how likely they are, and the prompt without some of its words.

Questions that mostly fail are asked again without the few tokens that the policy has come to read otherwise than the reference does.

PPO's clip where some rollouts were sampled from another prompt.

How much rollouts count that a purified prompt helped to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlrl.functional import clipped_ratio_loss
from vlrl.methods.common.derived_prompts import accuracy
from vlrl.methods.core.rollout import Independent
from vlrl.registry import ConfigError, register
from vlrl.stages import PolicyLoss, TokenWeight
from vlrl.types import Group, LossInputs, Message, PerToken, Prompt

if TYPE_CHECKING:
    from vlrl.context import RunContext


def asked(prompt: Prompt) -> tuple[int, int, str]:
    """Where the longest text of the last user message stands (message, part; part -1: the content is the text), and the text."""
    at = max(i for i, message in enumerate(prompt.messages) if message["role"] == "user")
    content = prompt.messages[at]["content"]
    if isinstance(content, str):
        return at, -1, content
    part = max((i for i, item in enumerate(content) if item["type"] == "text"), key=lambda i: len(content[i]["text"]))
    return at, part, content[part]["text"]


def with_text(prompt: Prompt, at: int, part: int, text: str) -> Prompt:
    """The prompt with another text in that place, trained on as the old one."""
    message: Message = prompt.messages[at]
    content = text if part < 0 else [{**item, "text": text} if i == part else item for i, item in enumerate(message["content"])]
    messages = (*prompt.messages[:at], {**message, "content": content}, *prompt.messages[at + 1 :])
    return replace(prompt, messages=messages, train=prompt.for_training)


def cut(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """The text without these stretches of characters."""
    gone = {i for start, end in spans for i in range(start, end)}
    return "".join(letter for i, letter in enumerate(text) if i not in gone)


def prompt_logp(policy: Any, prompt: Prompt) -> list[float]:
    """log pi(x_t | x_<t) of every prompt token, in nats at temperature 1; 0 for the first."""
    encoded, family, model = policy.encode(prompt), policy.family, policy.model
    ids_L = torch.tensor(encoded.ids, device=policy.device)
    seen = policy.encode_media(list(encoded.features)) if encoded.features else []
    positions = encoded.positions.to(policy.device).unsqueeze(-2)
    with torch.no_grad(), policy.autocast():
        hidden, _ = family.hidden(model, ids_L[None], positions, None, seen, [feature.kind for feature in encoded.features])
        logits_LV = family.logits(model, hidden[0, :-1]).float()
    return [0.0, *logits_LV.log_softmax(-1).gather(-1, ids_L[1:, None])[:, 0].tolist()]


def spans_of(policy: Any, prompt: Prompt, text: str) -> dict[int, tuple[int, int]]:
    """Place in the prompt to characters of `text`, for its tokens; nothing where they cannot be told."""
    shown, encoded = policy.render(prompt), policy.encode(prompt)
    start = shown.rfind(text)
    told = policy.tokenizer(shown, add_special_tokens=False, return_offsets_mapping=True)
    media = set(policy.forbidden_ids)
    written = [(i, span) for i, span in zip(told["input_ids"], told["offset_mapping"]) if i not in media]
    places = [t for t, i in enumerate(encoded.ids) if i not in media]
    if start < 0 or len(places) < len(written):
        return {}
    out = {}
    for t, (token, (a, b)) in zip(places[len(places) - len(written) :], written, strict=True):
        if encoded.ids[t] != token:
            return {}
        if start <= a and b <= start + len(text) and a < b:
            out[t] = (a - start, b - start)
    return out


@register("lens")
@dataclass(frozen=True)
class Lens(Independent):
    """Where less than `below` of n rollouts are right, n more of the purified prompt; if more of them are, wrong rollouts make room for right ones
    (source "purified"), one for one, which are trained on under the prompt as it was.

    Purified: without the ceil(gamma m) of the question's m tokens of largest |log pi(x_t) - log pi_ref(x_t)|; pictures and the template stay.
    `info["crpo"]`, for weight `lens`: a for the prompt's own right rollouts, 1 - a for all others of a group with purified ones, a its success rate.
    Paper: Guo et al. 2026 (LENS), arXiv:2601.21244, sec. 2, as in published notes on it (interference score, gamma 1 to 5%, replacement); the code
    could not be read, `below` is ours. The reference is that of a KL term. Edge: a question that the chat template alters stays as it is.
    """

    gamma: float = 0.03
    below: float = 0.25
    least: float = 0.5
    slot: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 1 or not 0 < self.below <= 1:
            raise ValueError(f"gamma={self.gamma} and below={self.below} must be in (0, 1]")

    def check(self, run: RunContext) -> None:
        if run.settings.loop != "synchronous":
            raise ConfigError(f"strategy lens looks at prompts through the policy, which loop {run.settings.loop!r} may be training; use synchronous")
        if "ref_logp" not in run.aux_tensors:
            raise ConfigError("strategy lens compares the policy with a reference, which nothing keeps; add terms: {kl: {name: kl, coef: 0.001}}")
        if run.objective.policy_loss.name != "lens.calibrated_clip":
            raise ConfigError("strategy lens samples from another prompt than it trains on; use surrogate: {name: crpo}, which corrects for it")

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        poor = [(group, count) for group, count in zip(groups, counts) if len(group) and self.rate(group, run) < self.below]
        pairs = [(group, count, self.purified(group.prompt, run)) for group, count in poor]
        pairs = [(group, count, prompt) for group, count, prompt in pairs if prompt.messages != group.prompt.messages]
        again = super().__call__([prompt for *_, prompt in pairs], [count for _, count, _ in pairs], run)
        run.score(again)
        for (group, *_), more in zip(pairs, again, strict=True):
            if len(more) and self.rate(more, run) > self.rate(group, run):
                self.exchange(group, more, run)
        return groups

    def rate(self, group: Group, run: RunContext) -> float:
        """The share of right rollouts."""
        return sum(accuracy(run, rollout, self.slot) > self.least for rollout in group) / len(group)

    def exchange(self, group: Group, more: Group, run: RunContext) -> None:
        """Right rollouts of the purified prompt take the places of wrong ones, from the first on."""
        rate = self.rate(group, run)
        right = [rollout for rollout in more if accuracy(run, rollout, self.slot) > self.least]
        wrong = [place for place, rollout in enumerate(group) if accuracy(run, rollout, self.slot) <= self.least]
        for rollout in group:
            rollout.info["crpo"] = rate if accuracy(run, rollout, self.slot) > self.least else 1 - rate
        for place, rollout in zip(wrong, right):
            rollout.source, rollout.info["crpo"] = "purified", 1 - rate
            group.rollouts[place] = rollout

    def purified(self, prompt: Prompt, run: RunContext) -> Prompt:
        """The prompt without its interfering tokens."""
        at, part, text = asked(prompt)
        spans = spans_of(run.policy, prompt, text)
        with run.policy.reference() as reference:
            usual = prompt_logp(reference, prompt)
        apart = [abs(a - b) for a, b in zip(prompt_logp(run.policy, prompt), usual, strict=True)]
        worst = sorted(spans, key=lambda t: -apart[t])[: math.ceil(self.gamma * len(spans) - 1e-9)]
        return with_text(prompt, at, part, cut(text, [spans[t] for t in worst])) if worst else prompt


@register("lens.calibrated_clip")
@dataclass(frozen=True)
class LensCalibratedClip(PolicyLoss):
    """-min(r A, clip(r, 1 - low, 1 + high) A), r = pi(y_t) / mu(y_t): mu is what rollouts of `sources` were sampled with, pi_old for all others.

    Paper: Guo et al. 2026 (LENS), arXiv:2601.21244, sec. 2.2, as in published notes on it: r = pi / (w mu) there; what w is to the ratio the notes do
    not say, and weight `lens` puts it on the loss. Edge: |log r| is held below 20.
    """

    low: float = 0.2
    high: float = 0.2
    sources: tuple[str, ...] = ("purified",)

    def __call__(self, x: LossInputs) -> PerToken:
        other_B1 = torch.tensor([[rollout.source in self.sources] for rollout in x.batch.rollouts], device=x.logp_BT.device)
        log_BT = torch.where(other_B1, (x.logp_BT - x.sampled_logp_BT) * x.mask_BT, x.log_ratio_BT).clamp(-20, 20)
        return clipped_ratio_loss(log_BT.exp(), x.advantage_BT, self.low, self.high)


@register("lens.success_rate")
@dataclass(frozen=True)
class LensSuccessRate(TokenWeight):
    """w = a for right rollouts of the prompt as it is, 1 - a for the others, in groups into which strategy `lens` put purified ones; else 1.

    a is the prompt's success rate. Paper: Guo et al. 2026 (LENS), arXiv:2601.21244, sec. 2.2 (sample reweighting), as in published notes on it.
    """

    def check(self, run: RunContext) -> None:
        if run.rollout.name != "lens":
            raise ConfigError(f"token_weights: lens reads what strategy {run.rollout.name!r} does not note; use strategy: {{name: lens}}")

    def __call__(self, x: LossInputs) -> Tensor:
        return torch.tensor([[rollout.info.get("crpo", 1.0)] for rollout in x.batch.rollouts], device=x.logp_BT.device, dtype=x.logp_BT.dtype)

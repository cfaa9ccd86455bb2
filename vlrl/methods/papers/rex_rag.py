"""REX-RAG: mixed sampling; some wrong conversations are resumed before their answer after a sentence of
doubt, and the loss corrects for how it was inserted.

    rex_rag                     rollout strategy: conversations, and probes of the wrong ones
    rex_rag.balance_heuristic   policy loss: PPO's clip with importance ratios to the mixture that the group
    was sampled from

Paper: Jiang et al. 2025 (REX-RAG), arXiv:2508.08149; checked against the release: MiliLab/REX-RAG at
d9dbbb42, search_r1/llm_agent/generation.py (execute_predictions, run_llm_loop),
verl/trainer/ppo/ray_trainer.py (reorder_batch, revision_accs), verl/workers/actor/dp_actor.py (importance
sampling), exploration_distribution.py and scripts/search-r1-sgl/run_grpo_sglang_fsdp.sh.
Deviates: the words are ours (there 30 sentences that open with <think>); probes start when all conversations
are over; shares and accuracies are those of a call of the strategy (a refill of the batch has its own).
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.functional import clipped_ratio_loss
from vlrl.methods.common.branching import per_token
from vlrl.methods.common.conversation import Conversation, Segment
from vlrl.methods.common.correctness import success_rate
from vlrl.methods.core.rollout import MultiTurn
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import PhaseContext, SamplingContext, StepContext
from vlrl.plugins.episodes import (
    ACTIONS,
    CALLS,
    CONVERSATION,
    EPISODE_RETURN,
    SEGMENT,
    TURN_REWARDS,
    TURN_SPANS,
    TURN_STATES,
    TURNS,
    Action,
    Past,
)
from vlrl.plugins.registry import register
from vlrl.plugins.stages import PolicyLoss, StepCounts
from vlrl.services.lazy import torch
from vlrl.types import Group, LossInputs, Prompt, Rollout, UnreducedLoss

INSERTED: Annotation[tuple[int, int]] = Annotation(
    "rex_rag.inserted",
    (tuple, list),
    hint="rollout: {name: rex_rag}",
    doc="of a probe: (start, end) of the tokens of the inserted doubt",
)
PROBE_SHARE: Annotation[float] = Annotation(
    "rex_rag.probe_share",
    float,
    hint="rollout: {name: rex_rag}",
    doc="the share of probes among all rollouts that were sampled together",
)
ERROR_RATE: Annotation[float] = Annotation(
    "rex_rag.error_rate",
    float,
    hint="rollout: {name: rex_rag}",
    doc="the share of wrong ones among the conversations that were sampled together",
)

DOUBTS = (
    " Perhaps a step of this is wrong.",
    " Perhaps something important is missing.",
    " I may have misread the question.",
    " I may have overlooked a fact that matters.",
    " Something about this does not fit yet.",
    " Let me doubt that and look again.",
    " Let me check what I took for granted.",
    " That conclusion may have come too early.",
)


@dataclass(eq=False)
class Probe(Conversation):
    """A conversation that is resumed after a doubt; `inserted` are the positions (start, end) of the doubt's
    tokens."""

    inserted: tuple[int, int] = (0, 0)

    def rollout(self, run: SamplingContext, finish: Any) -> Rollout:
        made = super().rollout(run, finish)
        made.source = "probe"
        INSERTED.set(made, self.inserted)
        return made


@dataclass
class RexRagState(StepCounts):
    """`keep` is the present bound on probes; counted are the kept probes and how many are correct."""

    keep: float = -1.0


@register("rex_rag")
@dataclass(frozen=True)
class RexRag(MultiTurn):
    """REX-RAG's mixed sampling: n conversations as in `multi_turn`, of whose wrong ones `share` are probed;
    the best probes join the group.

    Without an `environment` a conversation is a single answer. A probe keeps it up to the last match of
    `answer` and continues with one of `doubts`, drawn uniformly, which is trained on (log-probs of the draw).
    Those with the doubts of highest mean log-prob stay, k per conversation: source "probe", on top of the n.
    INSERTED is the doubt's position. Paper: Jiang et al. 2025 (REX-RAG), arXiv:2508.08149, sec. 3 (trajectory
    filter). Logs kept probes, their accuracy, k. Edge: truncated conversations, without a match in the last
    turn, with pictures in a reply or no turn left are not probed.

    Attributes:
        keep: k at first; k <- 0.9 k + 0.1 (accuracy of the kept probes) after each step.
    """

    state_class = RexRagState
    share: float = 0.2
    keep: float = 0.08
    answer: str = r"<answer>.*?</answer>"
    doubts: tuple[str, ...] = DOUBTS
    provides = (*MultiTurn.provides, INSERTED, PROBE_SHARE, ERROR_RATE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1 or self.keep <= 0 or not self.doubts:
            raise ValueError(
                f"share={self.share} must be in (0, 1], keep={self.keep} above 0, and doubts={self.doubts} "
                "must not be empty"
            )

    @property
    def bound(self) -> float:
        """k: kept probes per conversation."""
        return self.keep if self.state.keep < 0 else self.state.keep

    def check(self, phase: PhaseContext) -> None:
        if phase.environment is not None:
            super().check(phase)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        draw = random.Random(f"{run.seed}/rex_rag/{run.step}/{run.rank}")
        probes = self.probe(groups, draw, run)
        finished = [
            (p.prompt_index, Group(groups[p.prompt_index].prompt, p.finished))
            for p in probes
            if len(p.finished) == 1
        ]
        run.score([group for _, group in finished])
        scored = [(place, group.rollouts[0]) for place, group in finished if len(group)]
        likelihood = doubt_logp([rollout for _, rollout in scored], run)
        best = sorted(zip(likelihood, range(len(scored))), reverse=True)[
            : int(self.bound * sum(counts) + draw.random())
        ]
        own = [rollout for group in groups for rollout in group]
        error_rate = 1 - success_rate(own)
        for _, index in best:
            place, rollout = scored[index]
            groups[place].rollouts.append(rollout)
            self.state.add(probes=1, correct=rollout.correct)
        for rollout in (rollout for group in groups for rollout in group):
            PROBE_SHARE.set(rollout, len(best) / (len(own) + len(best)))
            ERROR_RATE.set(rollout, error_rate)
        return groups

    def end_step(self, run: StepContext) -> None:
        state: RexRagState = self.state
        super().end_step(run)
        shares = run.gather([state.share("correct", "probes")])
        correct, probes = sum(n for n, _ in shares), sum(n for _, n in shares)
        state.keep = 0.9 * self.bound + 0.1 * (correct / probes if probes else 0.0)

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        return {
            **self.state.totals("rex_rag", "probes"),
            "rex_rag/probe_accuracy": self.state.share("correct", "probes"),
            "rex_rag/keep": self.bound,
        }

    def probe(self, groups: Sequence[Group], draw: random.Random, run: SamplingContext) -> list[Probe]:
        """Resume `share` of the wrong conversations and run them to their end."""
        probes = []
        for place, group in enumerate(groups):
            for rollout in group:
                if self.can_be_probed(rollout) and draw.random() < self.share:
                    chosen, seed = draw.randrange(len(self.doubts)), self.seeds(run, group.prompt)
                    probe = resumed(place, rollout, self.answer, self.doubts, chosen, seed, run)
                    probes += [probe] if probe is not None else []
        self.converse(probes, run)
        return probes

    def can_be_probed(self, rollout: Rollout) -> bool:
        """Whether it is wrong, ended by itself, in a single segment, and has a turn left."""
        if rollout.finish != "stop" or SEGMENT.get(rollout) != 0 or rollout.correct:
            return False
        return TURNS[rollout] == len(ACTIONS[rollout]) < self.max_turns


def resumed(
    place: int,
    rollout: Rollout,
    answer: str,
    doubts: Sequence[str],
    chosen: int,
    seed: int,
    run: SamplingContext,
) -> Probe | None:
    """The conversation up to the last match of `answer`, in its last turn, and the chosen doubt; None without
    a match there."""
    pattern, tokenizer, length = re.compile(answer, re.DOTALL), run.policy.tokenizer, len(rollout)
    sampled = per_token(rollout.loss_mask if rollout.loss_mask is not None else True, length)
    begin = max((t + 1 for t, by_policy in enumerate(sampled) if not by_policy), default=0)
    end = next(
        (t for t in reversed(range(begin, length)) if pattern.search(run.policy.decode(rollout.ids[t:]))), -1
    )
    matches = list(pattern.finditer(rollout.text))
    if end < 0 or not matches:
        return None
    bank = [tokenizer.encode(text, add_special_tokens=False) for text in doubts]
    words = rollout.text[: matches[-1].start()].removeprefix(rollout.prompt.prefix) + doubts[chosen]
    versions = per_token(rollout.version, length)
    segment = Segment(rollout.ids[:end], rollout.logp[:end], sampled[:end], versions[:end], [words])
    segment.messages.append(
        {"role": "assistant", "content": [{"type": "text", "text": rollout.prompt.prefix + words}]}
    )
    segment.add(bank[chosen], draw_logp(bank[chosen], bank), True, [versions[-1]] * len(bank[chosen]))
    segment.spans = [*TURN_SPANS[rollout][:-1], [TURNS[rollout] - 1, begin, len(segment.ids)]]
    attempt, turns, calls = CONVERSATION[rollout], TURNS[rollout], CALLS[rollout]
    inserted = (end, end + len(bank[chosen]))
    probe = Probe(
        place,
        attempt,
        rollout.prompt,
        run.sampling(rollout.prompt, attempt),
        seed,
        segment,
        turns,
        calls,
        inserted=inserted,
    )
    probe.past, probe.opened, probe.states = (
        past_of(rollout, run.policy),
        rollout.prompt,
        list(TURN_STATES[rollout]),
    )
    paid = TURN_REWARDS[rollout][:-1] if EPISODE_RETURN.on(rollout) else [None] * (turns - 1)
    probe.actions, probe.rewards = [*ACTIONS[rollout][:-1], words], [*paid, None]
    return probe


def past_of(rollout: Rollout, policy: Any) -> Past:
    """What the environment was told and answered before the last turn of a conversation; answers by the keys
    of their states."""
    prompt, (opening, *states) = rollout.prompt, TURN_STATES[rollout]
    spaces = tuple(policy.spaces(prompt)) if prompt.images or prompt.videos else ()
    actions = [
        Action(text, turn, prompt.images, prompt.videos, spaces)
        for turn, text in enumerate(ACTIONS[rollout][:-1], 1)
    ]
    return Past(opening, tuple(zip(actions, states, strict=True)))


def draw_logp(drawn: Sequence[int], bank: Sequence[Sequence[int]]) -> list[float]:
    """Log-prob per token of a text drawn uniformly from `bank`: of the texts that begin with the tokens so
    far, the share with this next token."""
    counts = [sum(list(text[:n]) == list(drawn[:n]) for text in bank) for n in range(len(drawn) + 1)]
    return [math.log(after / before) for before, after in zip(counts, counts[1:])]


def doubt_logp(probes: Sequence[Rollout], run: SamplingContext) -> list[float]:
    """The mean log-prob that the policy gives to the inserted tokens of each probe."""
    logps = run.engine.score_all([(rollout.prompt, rollout.ids) for rollout in probes]) if probes else []
    spans = [slice(*INSERTED[rollout]) for rollout in probes]
    return [math.fsum(logp[span]) / max(len(logp[span]), 1) for logp, span in zip(logps, spans, strict=True)]


@register("rex_rag.balance_heuristic")
@dataclass(frozen=True)
class RexRagBalanceHeuristic(PolicyLoss):
    """REX-RAG's multiple importance sampling: L = -min(r A, clip(r, 1 - low, 1 + high) A), r = pi / mu.

        mu = (1 - a) pi_old + a m

    a is the share of probes in the batch (the balance heuristic, Veach and Guibas 1995). m is the density of
    the probes: 0 for a conversation; for a probe pi_old e^(-1/j) on the j tokens before the doubt, e the
    share of wrong conversations; on the doubt the probability with which its tokens were inserted; pi_old
    behind it. Paper: Jiang et al. 2025 (REX-RAG), arXiv:2508.08149; checked against dp_actor.py of the
    release. `dual_clip` as in `ppo_clip`. Edge: without probes it is PPO's clip; |log q| and |log r| are
    clamped to 20. Shapes: (B, T).
    """

    low: float = 0.2
    high: float = 0.2
    dual_clip: float = 0.0
    requires = (INSERTED, PROBE_SHARE, ERROR_RATE)

    def __call__(self, x: LossInputs) -> UnreducedLoss:
        mu_BT = x.old_logp_BT.clone()
        for row, rollout in enumerate(x.batch.rollouts):
            share = PROBE_SHARE.get(rollout, 0.0)
            if not share:
                continue
            of_own = math.log1p(-share) if share < 1 else -math.inf
            if not INSERTED.on(rollout):
                mu_BT[row] += of_own
                continue
            begin, end = INSERTED[rollout]
            probe_T = x.old_logp_BT[row].clone()
            probe_T[begin:end] = x.sampled_logp_BT[row, begin:end].to(probe_T).clamp(-20, 0)
            probe_T[:begin] -= math.log(ERROR_RATE[rollout]) / max(begin, 1)
            mu_BT[row] = torch.logaddexp(mu_BT[row] + of_own, probe_T + math.log(share))
        log_BT = ((x.logp_BT - mu_BT) * x.mask_BT).clamp(-20, 20)
        return clipped_ratio_loss(log_BT.exp(), x.advantage_BT, self.low, self.high, self.dual_clip or None)

"""REX-RAG: mixed sampling; some wrong conversations are resumed before their answer after a sentence of doubt, and the loss corrects for how it was
inserted.

    rex_rag                     rollout strategy: conversations, and probes of the wrong ones
    rex_rag.balance_heuristic   policy loss: PPO's clip with importance ratios to the mixture that the group was sampled from

Paper: Jiang et al. 2025 (REX-RAG), arXiv:2508.08149; checked against execute_predictions and run_llm_loop of generation.py, against
exploration_distribution.py and the script of the release (share 0.2, keep_ratio 0.08). Deviates: how the release chooses which probes to keep could
not be read, the order is ours; so are the words (there 30 sentences that open with <think>); probes start when all conversations are over.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vlrl.capabilities import Annotation
from vlrl.context import RunContext
from vlrl.functional import clipped_ratio_loss
from vlrl.methods.common.branching import per_token
from vlrl.methods.common.conversation import CALLS, CONVERSATION, SEGMENT, TURNS, Conversation, Segment
from vlrl.methods.core.rollout import MultiTurn
from vlrl.registry import register
from vlrl.stages import PolicyLoss
from vlrl.types import Group, LossInputs, PerToken, Prompt, Rollout

INSERTED: Annotation[tuple[int, int]] = Annotation(
    "rex_rag.inserted", (tuple, list), hint="rollout: {name: rex_rag}", doc="of a probe: (start, end) of the tokens of the inserted doubt"
)
PROBE_SHARE: Annotation[float] = Annotation(
    "rex_rag.probe_share", float, hint="rollout: {name: rex_rag}", doc="of a probe: the share of probes among the rollouts of its group"
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
    """A conversation that is resumed after a doubt; `inserted` are the positions (start, end) of the doubt's tokens."""

    inserted: tuple[int, int] = (0, 0)

    def rollout(self, run: RunContext, finish: Any) -> Rollout:
        made = super().rollout(run, finish)
        made.source = "probe"
        INSERTED.set(made, self.inserted)
        return made


@register("rex_rag")
@dataclass(frozen=True)
class RexRag(MultiTurn):
    """REX-RAG's mixed sampling: n conversations as in `multi_turn`, of whose wrong ones `share` are probed; the best probes join the group.

    Without an `environment` a conversation is a single answer. A probe keeps the conversation up to the last match of `answer`, continues with one of
    `doubts`, drawn uniformly, and is then sampled from the policy again. The doubt is trained on; its log-probs are those of the draw. Of a step's
    probes at most `keep` times the number of conversations stay, by outcome, then by the likelihood of what the policy wrote after the doubt: source
    "probe", on top of the n. INSERTED is the position of the doubt.
    Paper: Jiang et al. 2025 (REX-RAG), arXiv:2508.08149, with released code.
    Edge: conversations that were truncated, have no match in their last turn, had pictures in a reply or have no turn left are not probed. Groups are
    ragged.
    """

    share: float = 0.2
    keep: float = 0.08
    answer: str = r"<answer>.*?</answer>"
    doubts: tuple[str, ...] = DOUBTS
    provides = (*MultiTurn.provides, INSERTED, PROBE_SHARE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1 or self.keep <= 0 or not self.doubts:
            raise ValueError(f"share={self.share} must be in (0, 1], keep={self.keep} above 0, and doubts={self.doubts} must not be empty")

    def check(self, run: RunContext) -> None:
        if run.environment is not None:
            super().check(run)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: RunContext) -> list[Group]:
        groups = super().__call__(prompts, counts, run)
        run.score(groups)
        draw = random.Random(f"{run.seed}/rex_rag/{run.step}/{run.rank}")
        probes = self.probe(groups, draw, run)
        finished = [(p.prompt_index, Group(groups[p.prompt_index].prompt, p.finished)) for p in probes if len(p.finished) == 1]
        run.score([group for _, group in finished])
        scored = [(place, group.rollouts[0]) for place, group in finished if len(group)]
        best = sorted(scored, key=lambda item: (-(item[1].outcome or 0.0), -mean_logp_after(item[1])))
        for place, rollout in best[: int(self.keep * sum(counts) + draw.random())]:
            groups[place].rollouts.append(rollout)
        for group in groups:
            joined = [rollout for rollout in group if rollout.source == "probe"]
            for rollout in joined:
                PROBE_SHARE.set(rollout, len(joined) / len(group))
        return groups

    def probe(self, groups: Sequence[Group], draw: random.Random, run: RunContext) -> list[Probe]:
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
        whole = rollout.finish == "stop" and SEGMENT.get(rollout) == 0 and TURNS[rollout] < self.max_turns
        return whole and not rollout.correct


def resumed(place: int, rollout: Rollout, answer: str, doubts: Sequence[str], chosen: int, seed: int, run: RunContext) -> Probe | None:
    """The conversation up to the last match of `answer`, in its last turn, and the chosen doubt; None without a match there."""
    pattern, tokenizer, length = re.compile(answer, re.DOTALL), run.policy.tokenizer, len(rollout)
    sampled = per_token(rollout.loss_mask if rollout.loss_mask is not None else True, length)
    begin = max((t + 1 for t, by_policy in enumerate(sampled) if not by_policy), default=0)
    end = next((t for t in reversed(range(begin, length)) if pattern.search(run.policy.decode(rollout.ids[t:]))), -1)
    matches = list(pattern.finditer(rollout.text))
    if end < 0 or not matches:
        return None
    bank = [tokenizer.encode(text, add_special_tokens=False) for text in doubts]
    words = rollout.text[: matches[-1].start()].removeprefix(rollout.prompt.prefix) + doubts[chosen]
    versions = per_token(rollout.version, length)
    segment = Segment(rollout.ids[:end], rollout.logp[:end], sampled[:end], versions[:end], [words])
    segment.messages.append({"role": "assistant", "content": [{"type": "text", "text": rollout.prompt.prefix + words}]})
    segment.add(bank[chosen], draw_logp(bank[chosen], bank), True, [versions[-1]] * len(bank[chosen]))
    attempt, turns, calls = CONVERSATION[rollout], TURNS[rollout], CALLS[rollout]
    inserted = (end, end + len(bank[chosen]))
    return Probe(place, attempt, rollout.prompt, run.sampling(rollout.prompt, attempt), seed, segment, turns, calls, inserted=inserted)


def draw_logp(drawn: Sequence[int], bank: Sequence[Sequence[int]]) -> list[float]:
    """Log-prob per token of a text drawn uniformly from `bank`: of the texts that begin with the tokens so far, the share with this next token."""
    counts = [sum(list(text[:n]) == list(drawn[:n]) for text in bank) for n in range(len(drawn) + 1)]
    return [math.log(after / before) for before, after in zip(counts, counts[1:])]


def mean_logp_after(rollout: Rollout) -> float:
    """The mean log-prob of what the policy wrote after the doubt."""
    own = rollout.logp[INSERTED[rollout][1] :]
    return math.fsum(own) / max(len(own), 1)


@register("rex_rag.balance_heuristic")
@dataclass(frozen=True)
class RexRagBalanceHeuristic(PolicyLoss):
    """REX-RAG's multiple importance sampling: L = -min(r A, clip(r, 1 - low, 1 + high) A), r = pi / mu.

        mu = (1 - a) pi_old + a q for the inserted tokens of a probe, pi_old for all other tokens

    q is the probability with which they were inserted (the rollout's log-prob of them), a the share of probes in the group: the mixture that the
    group was drawn from (the balance heuristic, Veach and Guibas 1995). Reads INSERTED and PROBE_SHARE.
    Paper: Jiang et al. 2025 (REX-RAG), arXiv:2508.08149, multiple importance sampling; q checked against exploration_distribution.py of the release.
    Deviates: the formula of the correction could not be read; this is the usual heuristic. Edge: without probes it is PPO's clip; |log q| and |log r|
    are clamped to 20. Shapes: (B, T).
    """

    low: float = 0.2
    high: float = 0.2
    requires = (INSERTED, PROBE_SHARE)

    def __call__(self, x: LossInputs) -> PerToken:
        mu_BT = x.old_logp_BT.clone()
        for row, rollout in enumerate(x.batch.rollouts):
            if INSERTED.on(rollout):
                inserted = slice(*INSERTED[rollout])
                share = torch.as_tensor(PROBE_SHARE[rollout], dtype=mu_BT.dtype, device=mu_BT.device)
                q = x.sampled_logp_BT[row, inserted].to(mu_BT).clamp(-20, 0)
                mu_BT[row, inserted] = torch.logaddexp(mu_BT[row, inserted] + (1 - share).log(), q + share.log())
        log_BT = ((x.logp_BT - mu_BT) * x.mask_BT).clamp(-20, 20)
        return clipped_ratio_loss(log_BT.exp(), x.advantage_BT, self.low, self.high)

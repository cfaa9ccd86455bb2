"""ARPO: conversations with tools branch after a tool's answer where the policy has become less certain.

Paper: Dong et al. 2025, Agentic Reinforced Policy Optimization (ARPO), arXiv:2507.19849; checked against the
release: dongguanting/ARPO at e257337d,
ARPO/verl_arpo_entropy/verl/workers/rollout/vllm_rollout/vllm_rollout_with_tools.py and
ARPO/scripts/ARPO_7B_Reasoning_1node.sh.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlrl.methods.common.conversation import Conversation, Segment
from vlrl.methods.core.rollout import MultiTurn
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import SamplingContext
from vlrl.plugins.episodes import CONVERSATION
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import StepCounts, transient
from vlrl.types import Completion, Group, Prompt

BRANCHED: Annotation[int] = Annotation(
    "arpo.branched", int, hint="rollout: {name: arpo}", doc="of a branch: the turn, from 0, at which it left"
)


def turn_entropy(alternatives: Sequence[Mapping[int, float]], tokens: int, vocabulary: int) -> float:
    """H = -sum over the first `tokens` tokens and their reported alternatives of p log p, over log
    `vocabulary`; 0 without alternatives."""
    total = math.fsum(math.exp(logp) * logp for token in alternatives[:tokens] for logp in token.values())
    return -total / math.log(vocabulary)


@dataclass(frozen=True)
class Entropies:
    """Entropies of a conversation: of its first turn and of its latest one."""

    first: float
    latest: float


@dataclass
class ArpoState(StepCounts):
    """Of the present call: all conversations, those wanted per prompt, entropies by conversation. Counted
    are branches and chances to branch."""

    forest: list[Conversation] = transient(factory=list)
    wanted: dict[int, int] = transient(factory=dict)
    entropy: dict[int, Entropies] = transient(factory=dict)


@dataclass(eq=False)
class BranchedConversation(Conversation):
    """A conversation that begins as a copy of another one up to a tool's answer. `left_at` is the turn at
    which it leaves."""

    left_at: int = 0

    def rollout(self, run: SamplingContext, finish: Any) -> Any:
        made = super().rollout(run, finish)
        BRANCHED.set(made, self.left_at)
        return made


def branch_of(trunk: Conversation, attempt: int, seed: int) -> BranchedConversation:
    """A copy of a conversation in which it is the policy's turn."""
    own = trunk.segment
    copy = Segment(
        list(own.ids),
        list(own.logp),
        list(own.sampled),
        list(own.versions),
        list(own.turn_texts),
        list(own.messages),
        [list(span) for span in own.spans],
    )
    values = {
        name: getattr(trunk, name)
        for name in (
            "prompt_index",
            "prompt",
            "sampling",
            "turns",
            "calls",
            "max_context",
            "reserve",
            "invalid",
            "opened",
        )
    }
    made = BranchedConversation(**values, attempt=attempt, seed=seed, segment=copy, left_at=trunk.turns)
    made.actions, made.rewards, made.states = list(trunk.actions), list(trunk.rewards), list(trunk.states)
    made.parts, made.state = dict(trunk.parts), trunk.state
    return made


@register("arpo")
@dataclass(frozen=True)
class Arpo(MultiTurn):
    """ARPO's entropy-based adaptive rollout: of n conversations, round(share n) start at the prompt; the
    others branch off after tool calls.

        P(branch) = clip(base + weight (H_t - H_1), 0, 1)

    H_t: the entropy (`turn_entropy`: share of log(vocabulary), summed over `tokens`) of the turn with the
    call, H_1: of the first one, a branch's own. After an answer up to `beam` - 1 copies are made, while the
    prompt has fewer than n; the rest is sampled from it. A branch has one advantage for all its tokens (soft
    estimate, eq. 6). BRANCHED marks branches. Paper: arXiv:2507.19849, sec. 3.2, eq. 4-5; release:
    vllm_rollout_with_tools.py (8 of 16, beam 2, `tokens` 20, 10 alternatives). Deviates: what is missing is
    sampled at the end; without `Episode.copy` the trunk's actions are repeated. None after pictures.
    """

    state_class = ArpoState
    share: float = 0.5
    beam: int = 2
    base: float = 0.5
    weight: float = 0.2
    tokens: int = 20
    alternatives: int = 10
    provides = (*MultiTurn.provides, BRANCHED)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            not 0 < self.share <= 1
            or self.beam < 1
            or not 0 <= self.base <= 1
            or min(self.tokens, self.alternatives) < 1
        ):
            raise ValueError(
                f"share={self.share} must be in (0, 1], beam={self.beam}, tokens={self.tokens} and "
                f"alternatives={self.alternatives} at least 1, "
                f"base={self.base} in [0, 1]"
            )

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        rate = self.state.share("branches", "chances")
        return {**self.state.totals("arpo", "branches"), "arpo/branch_rate": rate}

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        state: ArpoState = self.state
        state.wanted, state.entropy = dict(enumerate(counts)), {}
        groups = super().__call__(
            prompts, [min(count, max(round(self.share * count), 1)) for count in counts], run
        )
        begun = [
            sum(conversation.prompt_index == place for conversation in state.forest)
            for place in range(len(prompts))
        ]
        missing = [max(count - n, 0) for count, n in zip(counts, begun, strict=True)]
        state.wanted = {}
        if any(missing):
            for group, more in zip(groups, super().__call__(prompts, missing, run), strict=True):
                group.rollouts += more.rollouts
            for conversation in state.forest:
                self.renumber(conversation, begun[conversation.prompt_index])
        state.forest, state.entropy = [], {}
        return groups

    @staticmethod
    def renumber(conversation: Conversation, offset: int) -> None:
        """Count the conversations of a prompt on, where they were sampled in a second call."""
        for rollout in conversation.finished:
            CONVERSATION.set(rollout, conversation.attempt + offset)

    def converse(
        self, conversations: Sequence[Conversation], run: SamplingContext, counted: bool = True
    ) -> None:
        if counted:
            self.state.forest = conversations
            for conversation in conversations:
                conversation.sampling = replace(
                    conversation.sampling,
                    top_logprobs=max(self.alternatives, conversation.sampling.top_logprobs),
                )
        super().converse(conversations, run, counted)

    def on_turn(self, completion: Completion, handle: Any, pool: Any, run: SamplingContext) -> None:
        start = len(handle.owner.segment.ids)
        if self.state.wanted and handle.owner.sampling.top_logprobs:
            if completion.top_logprobs is None:
                raise ConfigError(
                    f"rollout: {self.name!r} reads the alternatives of tokens, which engine "
                    f"{run.engine.name!r} does not report; "
                    "use engine hf, vllm or vllm_server"
                )
            now = turn_entropy(completion.top_logprobs[start:], self.tokens, len(run.policy.tokenizer))
            known = self.state.entropy.get(id(handle.owner))
            self.state.entropy[id(handle.owner)] = Entropies(now if known is None else known.first, now)
        super().on_turn(completion, handle, pool, run)

    def before_turns(self, ready: Sequence[Any], pool: Any, run: SamplingContext) -> None:
        state: ArpoState = self.state
        for handle in ready:
            trunk: Conversation = handle.owner
            known = state.entropy.get(id(trunk))
            if known is None or not trunk.segment.ids or trunk.finished:
                continue
            draw = random.Random(f"{trunk.seed}/arpo/{trunk.turns}")
            for _ in range(self.beam - 1):
                siblings = sum(
                    conversation.prompt_index == trunk.prompt_index for conversation in state.forest
                )
                if siblings >= state.wanted.get(trunk.prompt_index, 0):
                    break
                state.add(chances=1)
                if draw.random() - self.weight * (known.latest - known.first) > self.base:
                    continue
                branch = branch_of(trunk, siblings, draw.getrandbits(62))
                state.forest.append(branch)  # its first entropy is that of the turn that it begins with
                state.add(branches=1)
                pool.branch(branch, handle)

"""The in-process engine: samples with the trainer's own weights; shared images and prompts are computed once,
completions batched continuously."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vlrl.engine.base import EngineState, PolicyEngine, SamplingModel
from vlrl.engine.hf.conversation_cache import ConversationCache
from vlrl.engine.hf.kv_cache import first_tokens
from vlrl.engine.hf.scheduler import Limits, Scheduler, given_logp, prefill
from vlrl.engine.hf.scoring import scored_in_trees
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import transient
from vlrl.policy.recurrent import is_recurrent
from vlrl.services.delegation import Of
from vlrl.services.lazy import no_grad
from vlrl.types import Completion, Prompt, Request, Sampling

if TYPE_CHECKING:
    from vlrl.plugins.contexts import StageContext
    from vlrl.plugins.views import PolicyView


@dataclass
class HFState(EngineState):
    """The handles of the engine, and the keys and values of conversations that go on."""

    conversations: ConversationCache = transient(factory=ConversationCache)


@register("hf")
@dataclass(frozen=True)
class HF(PolicyEngine):
    """Samples with the policy itself, in this process: no copy of the weights, no synchronisation.

    vlrl original (shared prompt attention as in Juravsky et al. 2024, arXiv:2402.05099; continuous batching
    as in Yu et al., OSDI 2022). Prompts and images that requests share are computed once per call. If the
    weights are updated during a call (while the generator is suspended at a `yield`), unfinished completions
    continue under the new weights, with a version per token. Edge: a single completion larger than the budget
    runs alone.

    Attributes:
        token_budget: Keys and values held at once, in tokens: prompt plus `max_tokens` of every running
            completion.
        prefill_tokens: Tokens of one prefill, padding included.
        lookup_tokens: Speculative decoding with at most so many drafted tokens per step and completion, by
            n-gram lookup (vlrl/engine/hf/lookup.py); 0 is none. A drafted token is kept where it is the one
            that the completion's own random number draws, so the samples stay the same (Leviathan et al.
            2023, arXiv:2211.17192, for a draft without randomness).
        conversation_tokens: Keys and values kept between the turns of conversations, in tokens, so that a
            turn prefills only what is new (0: none; a prompt with new pictures is prefilled whole, and so is
            all of a model with recurrent layers).
    """

    state_class = HFState
    token_budget: int = 131072
    prefill_tokens: int = 32768
    lookup_tokens: int = 0
    conversation_tokens: int = 65536

    def __post_init__(self) -> None:
        for name in ("token_budget", "prefill_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive (tokens)")
        if self.lookup_tokens < 0:
            raise ValueError(
                f"lookup_tokens is {self.lookup_tokens}; allowed: 0 (no drafts) or a number of tokens"
            )
        if self.conversation_tokens < 0:
            raise ValueError(
                f"conversation_tokens is {self.conversation_tokens}; allowed: 0 (nothing is kept) or a "
                "number of tokens"
            )

    @property
    def kept_tokens(self) -> int:
        """`conversation_tokens`, 0 where states cannot be cut to a shorter beginning, or experts are
        recorded."""
        whole = is_recurrent(self.lm.text_config) or self.lm.family.router_replay
        return 0 if whole else self.conversation_tokens

    version: ClassVar[Of[int]] = Of("lm")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.attach(run.policy)
        if run.params_sharded and run.rank == 0:
            gib = (
                sum(
                    getattr(p, "ds_numel", p.numel()) * p.element_size()
                    for p in run.policy.model.parameters()
                )
                / 2**30
            )
            run.warn(
                f"engine 'hf': the weights are sharded over {run.ranks} processes, but sampling gathers "
                f"them: {gib:.2f} GiB more "
                "on every device while it collects; if that does not fit, use engine 'vllm' with a small "
                "`memory`, or ZeRO-2"
            )

    def attach(self, policy: Any) -> HF:
        """Use this policy. Raises ConfigError for a model that the shared attention cannot run."""
        lm = SamplingModel(policy)
        if self.lookup_tokens and is_recurrent(lm.text_config):
            raise ConfigError(
                f"engine.lookup_tokens: {self.lookup_tokens} drafts cannot be taken back from the states of "
                "recurrent layers, which this model has; use 0"
            )
        if self.lookup_tokens and lm.family.router_replay:
            raise ConfigError(
                f"engine.lookup_tokens: {self.lookup_tokens} drafts are tried, whose experts "
                "policy.router_replay would record; use 0"
            )
        self.state.lm = lm
        return self

    @no_grad
    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        self.counters["requests"] += len(requests)
        kept = self.kept_tokens
        limits = Limits(self.token_budget, self.prefill_tokens, self.lookup_tokens, kept)
        scheduler = Scheduler(self.lm, requests, limits, self.counters, self.state.conversations)
        training = self.lm.model.training
        self.lm.model.eval()
        try:
            with self.lm.policy.gather_params():
                yield from scheduler.run()
        finally:
            if training:
                self.lm.model.train()

    def sync(self, policy: PolicyView) -> None:
        """Nothing is copied: the engine runs the policy's own weights. Keys and values of the old weights are
        dropped."""
        self.release()

    def release(self) -> None:
        self.state.conversations.clear()

    def score(self, prompt: Prompt, ids: Sequence[int]) -> list[float]:
        return self.score_all([(prompt, ids)])[0]

    @no_grad
    def score_all(self, pairs: Sequence[tuple[Prompt, Sequence[int]]]) -> list[list[float]]:
        if not self.conversation_tokens:
            with self.lm.policy.gather_params():
                return scored_in_trees(self.lm, pairs, self.prefill_tokens, self.counters)
        sources = [(self.lm.encode(prompt), list(ids)) for prompt, ids in pairs]
        order = sorted(
            range(len(sources)), key=lambda i: len(sources[i][0]) + len(sources[i][1]), reverse=True
        )
        out: list[list[float]] = [[] for _ in sources]
        embeds: dict[str, Any] = {}
        with self.lm.policy.gather_params():
            while order:
                width = len(sources[order[0]][0]) + len(sources[order[0]][1])
                count = max(1, self.prefill_tokens // width)
                batch, order = order[:count], order[count:]
                hidden_PLH, kv, _ = prefill(self.lm, [sources[i] for i in batch], embeds, self.counters)
                for p, (i, hidden_LH) in enumerate(zip(batch, hidden_PLH)):
                    encoded, ids = sources[i]
                    out[i] = given_logp(self.lm, hidden_LH, len(encoded), ids, Sampling())
                    if self.kept_tokens:
                        length = len(encoded) + len(ids)
                        own = first_tokens(kv, length, p)
                        self.state.conversations.put(
                            pairs[i][0].key, ids, own, self.lm.version, self.kept_tokens
                        )
        return out

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        """The counts of the last finished step, and the mean number of sequences in a decode step."""
        counts = self.state.step_counts
        return {
            **super().metrics(),
            "engine/rows_per_step": (float(counts["decode_rows"]), float(counts["decode_steps"])),
        }

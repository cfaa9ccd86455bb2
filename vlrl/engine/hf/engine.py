"""The in-process engine: the trainer's own weights, each picture encoded and each prompt prefilled once, completions batched continuously."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vlrl.engine.hf.scheduler import Scheduler, prefill, prefix_logp
from vlrl.registry import ConfigError, register
from vlrl.stages import Engine
from vlrl.trainer.distributed import params_sharded
from vlrl.types import Completion, Prompt, Request, Sampling


class LM:
    """What a session asks of a policy."""

    def __init__(self, policy: Any):
        self.policy, self.family = policy, policy.family
        self.tokenizer, self.encode = policy.tokenizer, policy.encode

    @property
    def model(self) -> Any:
        return self.policy.model

    @property
    def version(self) -> int:
        return self.policy.version

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @cached_property
    def text_config(self) -> Any:
        from vlrl.policy.family import base

        return base(self.model).config.get_text_config()

    @cached_property
    def no_masks(self) -> Any:
        """The store knows what each row may see: transformers need not build masks. It takes a dict by kind of layer, or a 4-D mask, as they are."""
        kinds = getattr(self.text_config, "layer_types", None)
        return dict.fromkeys({"full_attention", *kinds}) if kinds else torch.zeros(1, 1, 1, 1, device=self.device)

    @cached_property
    def forbidden(self) -> tuple[int, ...]:
        return tuple(sorted(self.policy.forbidden_ids))

    @cached_property
    def vocabulary(self) -> int:
        return self.text_config.vocab_size

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokenizer's end and those that the model's generation config names."""
        named = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        named = named if isinstance(named, (list, tuple)) else [named]
        return tuple(sorted({self.tokenizer.eos_token_id, *named} - {None}))

    @cached_property
    def pad_id(self) -> int:
        return self.eos_ids[0] if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id

    def decode(self, ids: Sequence[int]) -> str:
        return self.policy.decode(ids)

    def masks(self, layout: Any) -> Any:
        return self.family.masks(self.model, layout)

    def look(self, features: list) -> list:
        with self.policy.computing():
            return self.family.look(self.model, features)

    def hidden(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        with self.policy.computing():
            return self.family.hidden(self.model, *args, **kwargs)

    def logits(self, hidden: Tensor) -> Tensor:
        with self.policy.computing():
            return self.family.logits(self.model, hidden)


@register("hf")
@dataclass(frozen=True)
class HF(Engine):
    """Samples with the policy itself, in this process: no copy of the weights, nothing to synchronise.

    vlrl original (shared prompt attention in the spirit of Juravsky et al. 2024, arXiv:2402.05099; continuous batching as in Yu et al., OSDI 2022).
    Prompts and pictures that requests share are computed once per call. `token_budget` bounds the keys and values held at once (prompt plus
    `max_tokens` of every running completion, in tokens), `prefill_tokens` those of one prefill, padding included. Edge: a single completion
    larger than the budget runs alone; models with recurrent or chunked layers are refused. A weight update in the middle of a call (the
    generator is suspended at a `yield`) makes unfinished completions go on under the new weights, with a version per token.
    """

    token_budget: int = 131072
    prefill_tokens: int = 32768
    counters: Counter = field(init=False, default_factory=Counter, repr=False, compare=False)
    state: dict[str, Any] = field(init=False, default_factory=lambda: {"lm": None, "read": Counter()}, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("token_budget", "prefill_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive (tokens)")

    @property
    def lm(self) -> LM:
        assert self.state["lm"] is not None, "setup() was not called"
        return self.state["lm"]

    @property
    def version(self) -> int:
        return self.lm.version

    def setup(self, run: Any) -> None:
        self.attach(run.policy)
        if params_sharded(run.accelerator) and run.accelerator.is_main_process:
            gib = sum(getattr(p, "ds_numel", p.numel()) * p.element_size() for p in run.policy.model.parameters()) / 2**30
            run.warn(
                f"engine 'hf': the weights are spread over {run.accelerator.num_processes} processes, but sampling gathers them: {gib:.2f} GiB more "
                "on every device while it collects; where that does not fit, use engine 'vllm' with a small `memory`, or ZeRO-2"
            )

    def attach(self, policy: Any) -> HF:
        """Use this policy. Raises ConfigError for a model that the shared attention cannot run."""
        lm = LM(policy)
        strange = set(getattr(lm.text_config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
        if strange:
            raise ConfigError(
                f"engine 'hf' runs full and sliding-window attention only, this model has {', '.join(sorted(strange))} layers; use engine 'vllm'"
            )
        self.state["lm"] = lm
        return self

    @torch.no_grad()
    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        self.counters["requests"] += len(requests)
        session = Scheduler(self.lm, requests, self.token_budget, self.prefill_tokens, self.counters)
        training = self.lm.model.training
        self.lm.model.eval()
        try:
            with self.lm.policy.gather_params():
                yield from session.run()
        finally:
            if training:
                self.lm.model.train()

    def sync(self, policy: Any) -> None:
        """Nothing to copy: the engine runs the policy's own weights."""

    def score(self, prompt: Prompt, ids: Sequence[int]) -> list[float]:
        return self.score_all([(prompt, ids)])[0]

    @torch.no_grad()
    def score_all(self, pairs: Sequence[tuple[Prompt, Sequence[int]]]) -> list[list[float]]:
        sources = [(self.lm.encode(prompt), list(ids)) for prompt, ids in pairs]
        order = sorted(range(len(sources)), key=lambda i: len(sources[i][0]) + len(sources[i][1]), reverse=True)
        out: list[list[float]] = [[] for _ in sources]
        seen: dict[str, Any] = {}
        with self.lm.policy.gather_params():
            while order:
                width = len(sources[order[0]][0]) + len(sources[order[0]][1])
                count = max(1, self.prefill_tokens // width)
                batch, order = order[:count], order[count:]
                hidden_PLH, _ = prefill(self.lm, [sources[i] for i in batch], seen, self.counters)
                for i, hidden_LH in zip(batch, hidden_PLH):
                    encoded, ids = sources[i]
                    out[i] = prefix_logp(self.lm, hidden_LH, len(encoded), ids, Sampling())
        return out

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        """What was done since they were last read, in counts; they add up over ranks."""
        new = Counter(self.counters)
        new.subtract(self.state["read"])
        self.state["read"] = Counter(self.counters)
        rows = (float(new["decode_rows"]), float(new["decode_steps"]))
        return {f"engine/{name}": (float(value), 0.0) for name, value in sorted(new.items())} | {"engine/rows_per_step": rows}

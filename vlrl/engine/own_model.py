"""An engine with a model of its own in this process: for judges, which are not the policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlrl.engine.hf.engine import HF
from vlrl.plugins.registry import ConfigError, build, register
from vlrl.plugins.stages import Engine
from vlrl.policy.family import Family
from vlrl.types import Completion, Request

if TYPE_CHECKING:
    from vlrl.plugins.contexts import StageContext
    from vlrl.plugins.views import PolicyView


@register("own_model")
@dataclass(frozen=True)
class OwnModel(HF):
    """Samples with a model of its own, which is loaded beside the policy on its device and never trained.

    vlrl original: engine `hf` over other weights, of any family, also with pictures. `policy` is a config as
    in the slot `policy`: {name: text, model: FOLDER}. Top log-probs come by text too (`text_logprobs`), so
    that a judge's verdicts have probabilities. Edge: every rank loads a whole model; it cannot be trained,
    nor sampled from as the policy.
    """

    policy: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.policy:
            raise ConfigError("engine.policy: not set; name the model, like {name: text, model: FOLDER}")

    def setup(self, run: StageContext) -> None:
        Engine.setup(self, run)
        policy: Any = run.policy
        family = build(Family, self.policy, "engine.policy")
        own = type(policy)(family, device=policy.device, seed=run.seed)
        own.model.eval().requires_grad_(False)
        self.attach(own)

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        decode = self.lm.tokenizer.decode
        for completion in super().generate(requests):
            if completion.top_logprobs is not None:
                completion.text_logprobs = [
                    (decode([token]), {decode([other]): value for other, value in top.items()})
                    for token, top in zip(completion.ids, completion.top_logprobs)
                ]
            yield completion

    def sync(self, policy: PolicyView) -> None:
        raise ConfigError("engine 'own_model' keeps its own weights; it serves judges. Train with hf or vllm")

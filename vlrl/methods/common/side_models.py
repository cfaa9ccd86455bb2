"""Models beside the policy in the decoding loop: their logits for the next token, with a cache of their own.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from vlrl.plugins.contexts import StageContext
from vlrl.plugins.registry import ConfigError
from vlrl.plugins.views import PolicyView
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Prompt, RowError

START, RANDOM = "start", "tiny"
MAX_CACHED = 8  # conversations whose keys and values a side model keeps


def fitted(other_V: Tensor, logits_V: Tensor) -> Tensor:
    """Another model's logits, with as many places as `logits_V`: models of one tokenizer pad their
    vocabularies to different sizes, and no token stands in the places that are cut or filled."""
    other_V = other_V.to(logits_V.device)[: len(logits_V)]
    return torch.nn.functional.pad(other_V, (0, len(logits_V) - len(other_V)), value=float(other_V.min()))


class SideModel:
    """A frozen model with the policy's tokenizer, asked for next-token logits.

    `model` is a folder or a hub id; "start" takes the policy's weights at the start of the phase; "tiny" has
    random weights, for tests.
    """

    def __init__(self, run: StageContext, model: str, where: str, seed: int = 1) -> None:
        self.own: PolicyView | None = None
        if model == START:
            run.policy.keep_reference()
            self.own = run.policy
            return
        self.other: PolicyView = run.policy.load_other("" if model == RANDOM else model, run.seed + seed)
        if self.other.tokenizer.get_vocab() != run.policy.tokenizer.get_vocab():
            raise ConfigError(
                f"{where}: the vocabulary of {model!r} differs from the policy's; name a model "
                f"with its tokenizer"
            )
        self.other.model.eval().requires_grad_(False)

    @classmethod
    def of(cls, policy: PolicyView) -> SideModel:
        """A side model with the weights of a view of the policy."""
        made = cls.__new__(cls)
        made.own, made.other = None, policy
        return made

    def next_logits(self, ids: Sequence[int], cache: Any) -> tuple[Tensor, Any]:
        """The logits (V,) after `ids`, which continue what `cache` holds, and the new cache."""
        view = self.own.reference() if self.own is not None else nullcontext(self.other)
        with torch.no_grad(), view as policy, policy.autocast():
            given = torch.tensor([list(ids)], device=policy.device)
            out = policy.model(input_ids=given, past_key_values=cache, use_cache=True)
        return out.logits[0, -1].float(), out.past_key_values


class Continuation:
    """A side model's logits along the completions of one prompt. Raises RowError for a prompt with pictures,
    which a side model does not see."""

    def __init__(self, model: SideModel, prompt: Prompt, run: StageContext) -> None:
        if prompt.media:
            raise RowError(f"row {prompt.row.id!r}: a model beside the policy reads text alone")
        self.model = model
        self.prompt = list(run.policy.encode(prompt).ids)
        self.caches: dict[tuple[int, ...], Any] = {}

    def __call__(self, ids: Sequence[int]) -> Tensor:
        """The logits (V,) of the token after the prompt and the completion's first tokens `ids`."""
        key = tuple(ids)
        cache = self.caches.pop(key[:-1], None) if key else None
        given = key[-1:] if cache is not None else (*self.prompt, *key)
        logits_V, self.caches[key] = self.model.next_logits(given, cache)
        while len(self.caches) > MAX_CACHED:
            self.caches.pop(next(iter(self.caches)))
        return logits_V

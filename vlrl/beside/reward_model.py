"""Scalar reward models: a sequence classifier with one label says how good a response is.

Shapes: B responses, S tokens of a response with its prompt, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, cast

from vlrl.config.model_folder import located
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import StageContext
from vlrl.plugins.registry import ConfigError
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Prompt

TINY = "tiny"  # as model: random weights, for tests and proofs
Form = Literal["completion", "chat"]
REWARD_MODEL = Capability("reward_model", hint="rewards: {preference: {name: reward_model, model: FOLDER}}")
VERIFIER_MODEL = Capability(
    "reference_reward_model", hint="rewards: {verified: {name: reference_reward_model, model: FOLDER}}"
)


@dataclass
class ScalarRewardModel:
    """A scalar reward model: score of (prompt, response) = w . h at the last token.

    Attributes:
        model: A transformers model for sequence classification with one label, frozen.
        tokenizer: Its tokenizer, with a chat template.
        form: "completion": the prompt's template, then the response, read at its last token (what
            `trainable: reward_head` trains); "chat": the response as the assistant's turn of the template,
            read at the template's last token (released reward models).
        batch_tokens: Tokens of a forward pass, with padding; a longer one is a batch of its own.
    """

    model: Any
    tokenizer: Any
    form: Form = "chat"
    batch_tokens: int = 16384

    def __post_init__(self) -> None:
        if getattr(self.model.config, "num_labels", 1) != 1:
            raise ConfigError(
                f"model: it has {self.model.config.num_labels} labels; a scalar reward model has one"
            )
        if not isinstance(getattr(self.model, "score", None), torch.nn.Module):
            raise ConfigError(f"model: {type(self.model).__name__} has no head called `score`")
        self.model.eval().requires_grad_(False)

    def scores(self, responses: Sequence[tuple[Prompt, str]]) -> list[float]:
        """One score per (prompt, response)."""
        rows = [self.encoded(prompt, text) for prompt, text in responses]
        found = [0.0] * len(rows)
        for places in batches([len(ids) for ids in rows], self.batch_tokens):
            for place, value in zip(places, self._forward([rows[place] for place in places])):
                found[place] = value
        return found

    def encoded(self, prompt: Prompt, response: str) -> list[int]:
        """Token ids of a prompt and a response. Raises ValueError for a prompt with pictures or videos."""
        if prompt.media:
            raise ValueError(
                f"row {prompt.row.id!r} has pictures, which a reward model for text cannot see; use a judge"
            )
        messages = [dict(message) for message in prompt.messages]
        opened = self.form == "completion"
        if not opened:
            messages.append({"role": "assistant", "content": response})
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=opened)
        text += prompt.prefix + response.removeprefix(prompt.prefix) if opened else ""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _forward(self, rows: Sequence[Sequence[int]]) -> list[float]:
        with torch.no_grad():
            values: list[float] = self.values(rows).tolist()
        return values

    def values(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """(B,) the scores of encoded responses, in one forward pass; with gradient where it is on."""
        device = next(self.model.parameters()).device
        ids_BS = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long, device=device)
        mask_BS = torch.zeros_like(ids_BS)
        for index, ids in enumerate(rows):
            ids_BS[index, : len(ids)] = torch.tensor(ids, device=device)
            mask_BS[index, : len(ids)] = 1
        hidden_BSH = self.model.base_model(input_ids=ids_BS, attention_mask=mask_BS).last_hidden_state
        last_BH = hidden_BSH[torch.arange(len(rows), device=device), mask_BS.sum(1) - 1]
        return cast(Tensor, self.model.score(last_BH)[:, 0].float())


def batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Places of sequences in batches of at most `tokens` with padding, short ones together."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: lengths[place]):
        if batch and (len(batch) + 1) * lengths[place] > tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def open_reward_model(model: str, policy: Any = None, form: str = "") -> ScalarRewardModel:
    """The scalar reward model of a folder or a hub id, on the policy's device (else the CPU); "tiny" is one
    of random weights with the policy's tokenizer. `form` "" is the folder's own, else "chat".

    Raises ConfigError for an empty name, and for a model that transformers cannot load as a sequence
    classifier with one label.
    """
    if not model:
        raise ConfigError(
            "model: not set; name a reward model for sequence classification, a folder (a checkpoint of "
            "trainable: {name: reward_head}) or a hub id"
        )
    device = policy.device if policy is not None else "cpu"
    if model == TINY:
        tiny = tiny_classifier("Sequence", len(policy.tokenizer), 1)
        return ScalarRewardModel(tiny.to(device), policy.tokenizer, "completion")
    from transformers import AutoTokenizer

    folder = located(model)
    loaded = loaded_classifier("Sequence", folder, model)
    own: Any = form or getattr(loaded.config, "reward_form", "chat")
    return ScalarRewardModel(loaded.to(device), AutoTokenizer.from_pretrained(folder), own)


def verifier_model(run: StageContext, model: str = "", form: str = "") -> ScalarRewardModel:
    """The run's reward model that sees the reference: opened at the first call, then the same for all who
    ask."""
    return run.shared("reference_reward_model", lambda: open_reward_model(model, run.policy, form))


def with_reference(prompt: Prompt) -> Prompt:
    """A prompt for such a model: the row's question and its answer. Raises ValueError for a row without
    one."""
    row = prompt.row
    if row.answer in (None, ""):
        raise ValueError(f"row {row.id!r} has no answer, which a reward model with a reference reads")
    text = f"{row.question}\n\nReference answer: {row.answer}"
    return replace(prompt, messages=({"role": "user", "content": text},), prefix="")


def pairs_right(
    model: ScalarRewardModel, rated: Sequence[tuple[Prompt, Sequence[tuple[str, float]]]]
) -> tuple[int, int]:
    """(pairs that the model ranks as the ratings do, pairs with different ratings); a tie is wrong."""
    flat = [(prompt, text) for prompt, responses in rated for text, _ in responses]
    scores = iter(model.scores(flat))
    right = count = 0
    for _, responses in rated:
        own = [(next(scores), rating) for _, rating in responses]
        for (a, better), (b, worse) in combinations(own, 2):
            count += better != worse
            right += (a - b) * (better - worse) > 0
    return right, count


def loaded_classifier(kind: Literal["Sequence", "Token"], folder: str, what: str) -> Any:
    """A folder's or a hub id's model for classification. Raises ConfigError for one that is none."""
    import transformers

    try:
        auto = getattr(transformers, f"AutoModelFor{kind}Classification")
        return auto.from_pretrained(folder, dtype="auto")
    except ValueError as error:
        raise ConfigError(
            f"model: {what!r} is no model for {kind.lower()} classification ({error})"
        ) from error


def tiny_classifier(kind: Literal["Sequence", "Token"], vocabulary: int, labels: int) -> Any:
    """A classifier of random weights, always the same, for a tokenizer of `vocabulary` ids."""
    import transformers

    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    sizes |= {"vocab_size": vocabulary, "num_labels": labels, "initializer_range": 0.5}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(transformers, f"Qwen2For{kind}Classification")(transformers.Qwen2Config(**sizes))

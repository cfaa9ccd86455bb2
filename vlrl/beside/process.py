"""Process reward models: a token classifier says of every step of a solution how likely it is right.

Shapes: B solutions, S tokens of a solution with its question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.beside.reward_model import TINY, batches, loaded_classifier, tiny_classifier
from vlrl.config.model_folder import located
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.registry import ConfigError
from vlrl.services.lazy import torch

STEP_VERDICTS: Annotation[list] = Annotation(
    "step_verdicts",
    list,
    hint="rewards: {principles: {name: principles, ...}}",
    doc="one (end in characters of the text, value in [0, 1]) pair per step that a judge looked at, in order",
)


@dataclass
class ProcessRewardModel:
    """A process reward model: a token classifier with two labels, wrong and right, read at a mark behind each
    step.

        score of a step = P(right) - P(wrong) at the last token of `mark`, in [-1, 1]

    Input: the question's tokens, then the tokens of each step and of `mark`. This is the form of PURE-PRM
    (CJReinforce/PURE, openrlhf/trainer/ppo_utils/experience_maker.py and openrlhf/utils/utils.py, commit
    41f9363), whose mark is a line break.

    Attributes:
        model: A transformers model for token classification, frozen.
        tokenizer: Its tokenizer; the model's may differ from the policy's.
        mark: The text behind each step.
        batch_tokens: Tokens of a forward pass, with padding; a longer solution is a batch of its own.
    """

    model: Any
    tokenizer: Any
    mark: str = "\n"
    batch_tokens: int = 16384

    def __post_init__(self) -> None:
        if not self.tokenizer.encode(self.mark, add_special_tokens=False):
            raise ConfigError(f"mark: {self.mark!r} has no token; name a text, like a line break")
        if getattr(self.model.config, "num_labels", 2) != 2:
            raise ConfigError(
                f"model: it has {self.model.config.num_labels} labels; a process reward model has two, "
                "wrong and right"
            )
        self.model.eval().requires_grad_(False)

    def scores(self, solutions: Sequence[tuple[str, Sequence[str]]]) -> list[list[float]]:
        """One score per step of each solution, a (question, its steps); [] for a solution without steps."""
        rows = [self.encoded(question, steps) for question, steps in solutions]
        found: list[list[float]] = [[] for _ in rows]
        for places in batches([len(ids) for ids, _ in rows], self.batch_tokens):
            for place, values in zip(places, self._forward([rows[place] for place in places])):
                found[place] = values
        return found

    def encoded(self, question: str, steps: Sequence[str]) -> tuple[list[int], list[int]]:
        """(token ids, positions that are read) of a question and its steps."""
        mark = self.tokenizer.encode(self.mark, add_special_tokens=False)
        ids, read = list(self.tokenizer.encode(question, add_special_tokens=False)), []
        for step in steps:
            ids += [*self.tokenizer.encode(step, add_special_tokens=False), *mark]
            read.append(len(ids) - 1)
        return ids, read

    def _forward(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[list[float]]:
        if not any(read for _, read in rows):
            return [[] for _ in rows]
        length = max(len(ids) for ids, _ in rows)
        device = next(self.model.parameters()).device
        ids_BS = torch.zeros(len(rows), length, dtype=torch.long, device=device)
        mask_BS = torch.zeros_like(ids_BS)
        for index, (ids, _) in enumerate(rows):
            ids_BS[index, : len(ids)] = torch.tensor(ids, device=device)
            mask_BS[index, : len(ids)] = 1
        with torch.no_grad():
            share_BS2 = self.model(input_ids=ids_BS, attention_mask=mask_BS).logits.float().softmax(-1)
        return [
            (share_BS2[index, read, 1] - share_BS2[index, read, 0]).tolist()
            for index, (_, read) in enumerate(rows)
        ]


def open_process_reward_model(model: str, mark: str, policy: Any = None) -> ProcessRewardModel:
    """The process reward model of a folder or a hub id, on the policy's device (else the CPU); "tiny" is one
    of random weights with the policy's tokenizer.

    Raises ConfigError for an empty name, and for a model that transformers cannot load as a token classifier.
    """
    if not model:
        raise ConfigError(
            "model: not set; name a process reward model for token classification, a folder or a hub id "
            "such as jinachris/PURE-PRM-7B"
        )
    device = policy.device if policy is not None else "cpu"
    if model == TINY:
        tiny = tiny_classifier("Token", len(policy.tokenizer), 2)
        return ProcessRewardModel(tiny.to(device), policy.tokenizer, mark)
    from transformers import AutoTokenizer

    folder = located(model)
    loaded = loaded_classifier("Token", folder, model)
    return ProcessRewardModel(loaded.to(device), AutoTokenizer.from_pretrained(folder), mark)

"""Entailment models: a sequence classifier says how likely a text supports a statement.

Shapes: B pairs, S tokens of a pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.beside.reward_model import loaded_classifier
from vlrl.config.model_folder import located
from vlrl.plugins.registry import ConfigError
from vlrl.services.lazy import torch


@dataclass
class EntailmentModel:
    """A model for natural language inference: P(entailment) of (premise, hypothesis).

    Attributes:
        model: A transformers model for sequence classification with a label called "entailment", frozen.
        tokenizer: Its tokenizer.
        batch: Pairs of a forward pass.
        most: Tokens of a pair; a longer premise is cut.
    """

    model: Any
    tokenizer: Any
    batch: int = 32
    most: int = 512

    def __post_init__(self) -> None:
        labels = {str(name).lower(): int(place) for place, name in self.model.config.id2label.items()}
        if "entailment" not in labels:
            raise ConfigError(
                f"model: its labels are {', '.join(labels)}; an entailment model has `entailment`"
            )
        self.label = labels["entailment"]
        self.model.eval().requires_grad_(False)

    def entailed(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """P(entailment) of each (premise, hypothesis)."""
        found: list[float] = []
        device = next(self.model.parameters()).device
        for start in range(0, len(pairs), self.batch):
            premises, hypotheses = zip(*pairs[start : start + self.batch])
            encoded = self.tokenizer(
                list(premises),
                list(hypotheses),
                padding=True,
                truncation="only_first",
                max_length=self.most,
                return_tensors="pt",
            ).to(device)
            with torch.no_grad():
                share_BL = self.model(**encoded).logits.float().softmax(-1)
            found += share_BL[:, self.label].tolist()
        return found


def open_entailment_model(model: str, device: Any = "cpu") -> EntailmentModel:
    """The entailment model of a folder or a hub id. Raises ConfigError for one that is none."""
    from transformers import AutoTokenizer

    folder = located(model)
    loaded = loaded_classifier("Sequence", folder, model)
    return EntailmentModel(loaded.to(device), AutoTokenizer.from_pretrained(folder))

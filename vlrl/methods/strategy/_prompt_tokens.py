"""The tokens of a prompt: what is written in them, how likely they are, and the prompt without some of its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from vlrl.types import Message, Prompt


def asked(prompt: Prompt) -> tuple[int, int, str]:
    """Where the longest text of the last user message stands (message, part; part -1: the content is the text), and the text."""
    at = max(i for i, message in enumerate(prompt.messages) if message["role"] == "user")
    content = prompt.messages[at]["content"]
    if isinstance(content, str):
        return at, -1, content
    part = max((i for i, item in enumerate(content) if item["type"] == "text"), key=lambda i: len(content[i]["text"]))
    return at, part, content[part]["text"]


def with_text(prompt: Prompt, at: int, part: int, text: str) -> Prompt:
    """The prompt with another text in that place, trained on as the old one."""
    message: Message = prompt.messages[at]
    content = text if part < 0 else [{**item, "text": text} if i == part else item for i, item in enumerate(message["content"])]
    messages = (*prompt.messages[:at], {**message, "content": content}, *prompt.messages[at + 1 :])
    return replace(prompt, messages=messages, train=prompt.for_training)


def cut(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """The text without these stretches of characters."""
    gone = {i for start, end in spans for i in range(start, end)}
    return "".join(letter for i, letter in enumerate(text) if i not in gone)


def prompt_logp(policy: Any, prompt: Prompt) -> list[float]:
    """log pi(x_t | x_<t) of every prompt token, in nats at temperature 1; 0 for the first."""
    encoded, family, model = policy.encode(prompt), policy.family, policy.model
    ids_L = torch.tensor(encoded.ids, device=policy.device)
    seen = policy.look(list(encoded.features)) if encoded.features else []
    positions = encoded.positions.to(policy.device).unsqueeze(-2)
    with torch.no_grad(), policy.computing():
        hidden, _ = family.hidden(model, ids_L[None], positions, None, seen, [feature.kind for feature in encoded.features])
        logits_LV = family.logits(model, hidden[0, :-1]).float()
    return [0.0, *logits_LV.log_softmax(-1).gather(-1, ids_L[1:, None])[:, 0].tolist()]


def spans_of(policy: Any, prompt: Prompt, text: str) -> dict[int, tuple[int, int]]:
    """Place in the prompt to characters of `text`, for its tokens; nothing where they cannot be told."""
    shown, encoded = policy.render(prompt), policy.encode(prompt)
    start = shown.rfind(text)
    told = policy.tokenizer(shown, add_special_tokens=False, return_offsets_mapping=True)
    media = set(policy.forbidden_ids)
    written = [(i, span) for i, span in zip(told["input_ids"], told["offset_mapping"]) if i not in media]
    places = [t for t, i in enumerate(encoded.ids) if i not in media]
    if start < 0 or len(places) < len(written):
        return {}
    out = {}
    for t, (token, (a, b)) in zip(places[len(places) - len(written) :], written, strict=True):
        if encoded.ids[t] != token:
            return {}
        if start <= a and b <= start + len(text) and a < b:
            out[t] = (a - start, b - start)
    return out

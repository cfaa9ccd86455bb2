"""Log-probs of given completions: what the completions of a prompt share is computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vlrl.policy.packing import build_layout
from vlrl.services.lazy import torch
from vlrl.types import Prompt

if TYPE_CHECKING:
    from vlrl.engine.base import SamplingModel
    from vlrl.policy.encoded import MediaEmbeds

CHUNK = 512  # tokens whose logits are held at once
Pair = tuple[Prompt, Sequence[int]]


def scored_in_trees(
    lm: SamplingModel, pairs: Sequence[Pair], most_tokens: int, counters: Counter[str]
) -> list[list[float]]:
    """Log-probs (nats, temperature 1) of the ids of each pair, in rows of at most `most_tokens` together; the
    completions of a prompt are a row, as in training (`vlrl/policy/packing.py`). A longer row runs alone."""
    members: dict[str, list[int]] = {}
    for i, (prompt, ids) in enumerate(pairs):
        if ids:
            members.setdefault(prompt.key, []).append(i)
    lengths = {
        key: len(lm.encode(pairs[of[0]][0])) + sum(len(pairs[i][1]) for i in of)
        for key, of in members.items()
    }
    out: list[list[float]] = [[] for _ in pairs]
    embeds: dict[str, MediaEmbeds] = {}
    keys = sorted(members, key=lambda key: lengths[key], reverse=True)
    while keys:
        count = max(1, most_tokens // lengths[keys[0]])
        rows, keys = keys[:count], keys[count:]
        chosen = [i for key in rows for i in members[key]]
        for i, logp in zip(chosen, _score(lm, [pairs[i] for i in chosen], embeds, counters)):
            out[i] = logp
    return out


def _score(
    lm: SamplingModel, pairs: Sequence[Pair], embeds: dict[str, MediaEmbeds], counters: Counter[str]
) -> list[list[float]]:
    """One forward pass."""
    prompts = {prompt.key: lm.encode(prompt) for prompt, _ in pairs}
    places = {key: p for p, key in enumerate(prompts)}
    prompt_B, ids = [places[prompt.key] for prompt, _ in pairs], [list(one) for _, one in pairs]
    width = max(map(len, ids))
    scored = [range(len(one)) for one in ids]
    layout = build_layout(list(prompts.values()), prompt_B, ids, scored, width, lm.pad_id, True).to(lm.device)
    missing = {f.key: f for f in layout.media if f.key not in embeds}
    if missing:
        embeds.update(zip(missing, lm.encode_media(list(missing.values()))))
        counters["media_encoded"] += len(missing)
    counters["prompts_prefilled"] += len(prompts)
    counters["prefill_tokens"] += sum(row[-1].end for row in layout.nodes_R)
    hidden_RLH, _ = lm.hidden(
        layout.ids_RL,
        layout.positions,
        embeds=[embeds[f.key] for f in layout.media],
        kinds=[f.kind for f in layout.media],
        **lm.policy.attention(layout),
    )
    hidden_NH = hidden_RLH.flatten(0, 1)[layout.source_N]
    ids_N = torch.tensor([ids[n // width][n % width] for n in layout.target_N.tolist()], device=lm.device)
    logp_N = torch.cat(
        [
            lm.logits(part_CH).float().log_softmax(-1).gather(1, ids_C[:, None])[:, 0]
            for part_CH, ids_C in zip(hidden_NH.split(CHUNK), ids_N.split(CHUNK))
        ]
    )
    found = dict(zip(layout.target_N.tolist(), logp_N.tolist()))
    return [[found[b * width + t] for t in range(len(one))] for b, one in enumerate(ids)]

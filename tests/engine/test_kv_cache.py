"""Attention over shared prompts against attention over copies, while sequences are added and removed."""

import random

import pytest
import torch

from vlrl.engine.hf.kv_cache import KVCache

LAYERS, J, Q, D = 2, 2, 3, 4


def attend(keys_JLD, values_JLD, query_HD, scaling):
    """Attention of one sequence over its own copy of all keys."""
    keys, values = keys_JLD.repeat_interleave(Q, dim=0), values_JLD.repeat_interleave(Q, dim=0)
    weights_HL = ((keys @ query_HD.unsqueeze(-1)).squeeze(-1) * scaling).softmax(-1)
    return (weights_HL.unsqueeze(-2) @ values).squeeze(-2)


@pytest.mark.parametrize("seed", range(4))
def test_shared_prompts_equal_copies(seed):
    rng, g = random.Random(seed), torch.Generator().manual_seed(seed)
    cache = KVCache()
    plain = []  # sequence -> layer -> [keys, values], each (J, length, D)
    for _ in range(14):
        if len(cache) < 3 or rng.random() < 0.3:
            lengths = [rng.randint(1, 6) for _ in range(rng.randint(1, 3))]
            kv = [torch.randn(LAYERS, len(lengths), J, max(lengths), D, generator=g) for _ in range(2)]
            entries = cache.add_prompts(dict(enumerate(zip(*kv))), lengths, torch.zeros(len(lengths), 5))
            chosen = [i for i in range(len(entries)) for _ in range(rng.randint(1, 3))]
            cache.add_sequences([entries[i] for i in chosen], 2)
            plain += [[[x[layer, i, :, : lengths[i]] for x in kv] for layer in range(LAYERS)] for i in chosen]
        rows = len(cache)
        assert rows == len(plain)
        cache.begin_step()
        for layer in range(LAYERS):
            query, key, value = (torch.randn(rows, h, 1, D, generator=g) for h in (J * Q, J, J))
            ours = cache.attend(query, *cache.update(key, value, layer), layer, 0.5)
            for r in range(rows):
                plain[r][layer] = [
                    torch.cat([old, new[r]], dim=1) for old, new in zip(plain[r][layer], (key, value))
                ]
                torch.testing.assert_close(
                    ours[r, 0], attend(*plain[r][layer], query[r, :, 0], 0.5), atol=1e-5, rtol=1e-5
                )
        order = cache.remove(rng.sample(range(rows), rng.randint(0, rows)))
        plain = [plain[r] for r in order]
        assert len(cache.entries) == len(cache.length_P) <= max(1, 2 * len(set(cache.prompt_R)))


def test_pending_prompts_outlive_their_sequences():
    cache = KVCache()
    kv = torch.randn(LAYERS, 2, J, 3, D)
    first, second = cache.add_prompts(dict(enumerate(zip(kv, kv))), [3, 2], torch.zeros(2, 5))
    second.pending = 4
    cache.add_sequences([first], 2)
    cache.remove([0])
    assert cache.entries == [second] and second.index == 0 and cache.length_P == [2]
    torch.testing.assert_close(torch.stack([k[0] for k, _ in cache.prompt_kv.values()]), kv[:, 1, :, :2])

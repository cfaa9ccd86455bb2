"""Attention over shared prompts against attention over copies, while rows come and go."""

import random

import pytest
import torch

from vlrl.engine.hf.kv_cache import KVCache

LAYERS, J, Q, D = 2, 2, 3, 4


def attend(keys_JLD, values_JLD, query_HD, scaling):
    """One row, the plain way."""
    keys, values = keys_JLD.repeat_interleave(Q, dim=0), values_JLD.repeat_interleave(Q, dim=0)
    weights_HL = ((keys @ query_HD.unsqueeze(-1)).squeeze(-1) * scaling).softmax(-1)
    return (weights_HL.unsqueeze(-2) @ values).squeeze(-2)


@pytest.mark.parametrize("seed", range(4))
def test_store_equals_copies(seed):
    rng, g = random.Random(seed), torch.Generator().manual_seed(seed)
    store = KVCache()
    plain = []  # row -> layer -> [keys, values], each (J, length, D)
    for _ in range(14):
        if len(store) < 3 or rng.random() < 0.3:
            lengths = [rng.randint(1, 6) for _ in range(rng.randint(1, 3))]
            kv = [torch.randn(LAYERS, len(lengths), J, max(lengths), D, generator=g) for _ in range(2)]
            slots = store.add_prompts(list(kv[0]), list(kv[1]), lengths, torch.zeros(len(lengths), 5))
            chosen = [i for i in range(len(slots)) for _ in range(rng.randint(1, 3))]
            store.add_rows([slots[i] for i in chosen], 2)
            plain += [[[x[layer, i, :, : lengths[i]] for x in kv] for layer in range(LAYERS)] for i in chosen]
        rows = len(store)
        assert rows == len(plain)
        store.begin()
        for layer in range(LAYERS):
            query, key, value = (torch.randn(rows, h, 1, D, generator=g) for h in (J * Q, J, J))
            ours = store.attend(query, *store.update(key, value, layer), layer, 0.5)
            for r in range(rows):
                plain[r][layer] = [torch.cat([old, new[r]], dim=1) for old, new in zip(plain[r][layer], (key, value))]
                torch.testing.assert_close(ours[r, 0], attend(*plain[r][layer], query[r, :, 0], 0.5), atol=1e-5, rtol=1e-5)
        order = store.drop(rng.sample(range(rows), rng.randint(0, rows)))
        plain = [plain[r] for r in order]
        assert len(store.slots) == len(store.length_P) <= max(1, 2 * len(set(store.prompt_R)))


def test_pending_prompts_outlive_their_rows():
    store = KVCache()
    kv = torch.randn(LAYERS, 2, J, 3, D)
    first, second = store.add_prompts(list(kv), list(kv), [3, 2], torch.zeros(2, 5))
    second.pending = 4
    store.add_rows([first], 2)
    store.drop([0])
    assert store.slots == [second] and second.number == 0 and store.length_P == [2]
    torch.testing.assert_close(store.prompt_kv_NPJLD[0][:, 0], kv[:, 1, :, :2])

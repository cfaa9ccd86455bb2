"""FlexAttention block masks, forward only and uncompiled (the limit of a CPU): every family gives the numbers
of `sdpa`."""

import pytest
import torch
from samples import PROMPTS, policy_of

from vlrl.plugins.registry import get, names
from vlrl.policy import Family
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.types import Group, Rollout


@pytest.mark.sweep
@pytest.mark.parametrize("name", names(Family))
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_every_family(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # otherwise `flex` is refused
    flex = policy_of(name, attn="flex")
    monkeypatch.undo()
    plain = policy_of(name)
    kinds = ["text", "image"] if get(Family, name).is_multimodal else ["text"]
    lengths = (3, 5, 1)
    groups = [
        Group(PROMPTS[k], [Rollout(PROMPTS[k], list(range(5, 5 + n)), "", [0.0] * n) for n in lengths])
        for k in kinds
    ]
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        found, expected = (
            policy.forward(make_batch(groups, policy.pad_id))["logp"] for policy in (flex, plain)
        )
    assert torch.allclose(found, expected, atol=1e-5)
    assert flex.model.config.get_text_config()._attn_implementation == "flex_attention"
    assert plain.family.attn == "sdpa"

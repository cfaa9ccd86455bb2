"""Started by torchrun: the policies named on the command line, in slices over groups of ranks, give the
log-probs, the entropies and (summed over the ranks of a group) the gradients of one rank.

A word is FAMILY:field=value,...; `prompts` are joined by "+", `group` is the number of ranks of a group
(default: all), `ck` turns on recomputation, `lora` an adapter, `replay` replays random experts.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "policy"))

from samples import PROMPTS, groups_of, policy_of  # noqa: E402

from vlrl.methods.core.aux_tensor import Entropy  # noqa: E402
from vlrl.methods.core.trainable import LoRA  # noqa: E402
from vlrl.policy import Policy  # noqa: E402
from vlrl.policy.sequence_group import SequenceGroup, joint  # noqa: E402
from vlrl.trainer.step.loss_inputs import make_batch  # noqa: E402
from vlrl.types import Group  # noqa: E402

# of log-probs; of gradients, times the largest one; of gradients, relative
TOLERANCE = {"float32": (1e-5, 1e-5, 1e-4), "bfloat16": (5e-3, 1e-2, 1e-2)}


def main() -> None:
    torch.distributed.init_process_group("gloo")
    world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    for word in sys.argv[1:]:
        name, _, rest = word.partition(":")
        fields = dict(item.split("=") for item in rest.split(",") if item)
        group = SequenceGroup.of(int(fields.get("group", world)), rank, world)
        policy = make_policy(name, fields)
        prompts = [PROMPTS[p] for p in fields.get("prompts", "text").split("+")]
        # groups of ranks have rows of their own
        groups = groups_of(prompts, longest=int(fields.get("longest", 8)), seed=rank // group.size)
        if "replay" in fields:
            replay_random_experts(policy, groups)
        verify(policy, groups, group, TOLERANCE[fields.get("dtype", "float32")])
        print("equal", word, flush=True)
    torch.distributed.destroy_process_group()


def make_policy(name: str, fields: dict[str, str]) -> Policy:
    sizes = ("heads", "kv_heads", "hidden", "experts")
    tiny: dict[str, Any] = {key: int(value) for key, value in fields.items() if key in sizes}
    tiny |= {"kind": fields["kind"]} if "kind" in fields else {}
    options = {key: fields[key] for key in ("layout", "dtype", "attn") if key in fields}
    flex = options.get("attn") == "flex"
    known = torch.cuda.is_available
    if flex:  # which is refused without a GPU: it has no backward pass on a CPU
        torch.cuda.is_available = lambda: True
    policy = policy_of(
        name, tiny=tiny, checkpointing="ck" in fields, router_replay="replay" in fields, **options
    )
    torch.cuda.is_available = known
    if "lora" in fields:
        torch.manual_seed(0)  # of matrices A
        LoRA(r=4)(policy)
        drawn = torch.Generator().manual_seed(0)
        for key, parameter in policy.params.net.named_parameters():
            if "lora_B" in key:  # as after some steps
                parameter.data = torch.randn(parameter.shape, generator=drawn) * 0.05
    policy.params.upcast_trainable()
    return policy


def replay_random_experts(policy: Policy, groups: list[Group]) -> None:
    """Rollouts whose experts are not those that the router chooses."""
    config = policy.model.config.get_text_config()
    rng = np.random.default_rng(0)
    for group in groups:
        prompt = len(policy.encode(group.prompt))
        shared = rng.random((prompt, config.num_hidden_layers, config.num_experts))
        for rollout in group:
            own = rng.random((len(rollout) - 1, *shared.shape[1:]))
            ranked = np.concatenate([shared, own]).argsort(-1).astype(np.int16)
            rollout.routing = ranked[..., : config.num_experts_per_tok]


def verify(
    policy: Policy, groups: list[Group], group: SequenceGroup, tolerance: tuple[float, float, float]
) -> None:
    batch = make_batch(groups, policy.pad_id)
    policy.allow_slices(group.size)
    weights_BT = torch.linspace(-1, 1, batch.ids_BT.numel()).view(batch.ids_BT.shape)
    with_gradient = policy.family.attn != "flex"
    found = []
    for one in (None, group):
        policy.params.net.zero_grad()
        with joint(one), torch.set_grad_enabled(with_gradient), torch.compiler.set_stance("force_eager"):
            out = policy.forward(batch, [Entropy()])
            if with_gradient:
                ((out["logp"] + 0.1 * out["entropy"]) * weights_BT).sum().backward()
        found.append((out, {name: p.grad for name, p in policy.params.net.named_parameters()}))
    (plain, gradients), (sliced, shares) = found
    for name in ("logp", "entropy"):
        torch.testing.assert_close(sliced[name], plain[name], atol=tolerance[0], rtol=1e-5)
    if with_gradient:
        verify_gradients(policy, gradients, shares, group, *tolerance[1:])


def verify_gradients(
    policy: Policy, gradients: dict, shares: dict, group: SequenceGroup, atol: float, rtol: float
) -> None:
    """The sum over the group's ranks is one rank's gradient, and no rank has all of it."""
    spread = 0
    for name, parameter in policy.params.net.named_parameters():
        if not parameter.requires_grad:
            assert gradients[name] is None and shares[name] is None, name
            continue
        want, own = (torch.zeros_like(parameter) if g is None else g for g in (gradients[name], shares[name]))
        total = own.clone()
        torch.distributed.all_reduce(total, group=group.process_group)
        scale = max(1.0, float(want.abs().max()))
        torch.testing.assert_close(
            total, want, atol=atol * scale, rtol=rtol, msg=lambda text, name=name: f"{name}: {text}"
        )
        if policy.part_of(name) == "language":
            spread += float((own - want).abs().max()) > 1e-4 * scale
    assert spread


main()

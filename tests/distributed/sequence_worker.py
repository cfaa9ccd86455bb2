"""Started by torchrun: the policies named on the command line, in slices over all ranks, give the log-probs,
the entropies and (summed over ranks) the gradients of one rank.

A word is FAMILY:field=value,...; `prompts` are joined by "+", `ck` turns on recomputation.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "policy"))

from samples import PROMPTS, groups_of, policy_of  # noqa: E402

from vlrl.methods.core.aux_tensor import Entropy  # noqa: E402
from vlrl.policy import Policy  # noqa: E402
from vlrl.policy.sequence_group import SequenceGroup, joint  # noqa: E402
from vlrl.trainer.step.loss_inputs import make_batch  # noqa: E402
from vlrl.types import Prompt  # noqa: E402


def main() -> None:
    torch.distributed.init_process_group("gloo")
    world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    group = SequenceGroup.of(world, rank, world)
    for word in sys.argv[1:]:
        name, _, rest = word.partition(":")
        fields = dict(item.split("=") for item in rest.split(",") if item)
        sizes = ("heads", "kv_heads", "hidden")
        tiny = {key: int(value) for key, value in fields.items() if key in sizes}
        tiny |= {"kind": fields["kind"]} if "kind" in fields else {}
        layout = fields.get("layout", "packed")
        policy = policy_of(name, layout, tiny=tiny, checkpointing="ck" in fields)
        prompts = [PROMPTS[p] for p in fields.get("prompts", "text").split("+")]
        verify(policy, prompts, group, int(fields.get("longest", 8)))
        print("equal", word, flush=True)
    torch.distributed.destroy_process_group()


def verify(policy: Policy, prompts: list[Prompt], group: SequenceGroup, longest: int) -> None:
    batch = make_batch(groups_of(prompts, longest=longest), policy.pad_id)
    policy.allow_slices(group.size)
    weights_BT = torch.linspace(-1, 1, batch.ids_BT.numel()).view(batch.ids_BT.shape)
    found = []
    for one in (None, group):
        policy.params.net.zero_grad()
        with joint(one):
            out = policy.forward(batch, [Entropy()])
            ((out["logp"] + 0.1 * out["entropy"]) * weights_BT).sum().backward()
        found.append((out, {name: p.grad for name, p in policy.params.net.named_parameters()}))
    (plain, gradients), (sliced, shares) = found
    for name in ("logp", "entropy"):
        torch.testing.assert_close(sliced[name], plain[name], atol=1e-5, rtol=1e-5)
    for name, parameter in policy.params.net.named_parameters():
        want, own = (torch.zeros_like(parameter) if g is None else g for g in (gradients[name], shares[name]))
        total = own.clone()
        torch.distributed.all_reduce(total)
        scale = max(1.0, float(want.abs().max()))
        torch.testing.assert_close(
            total, want, atol=1e-5 * scale, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
        # the gradient of a matrix is spread over the ranks: none of them has all of it
        if name.endswith("layers.0.mlp.down_proj.weight") and "visual" not in name:
            assert float((own - want).abs().max()) > 1e-4 * scale, name


main()

"""Started by torchrun: the policy spread by FSDP2 gives the gradients, the whole weights and the saved folder
of the plain one."""

import sys
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).parents[1] / "policy"))

from samples import PROMPTS, groups_of, policy_of  # noqa: E402

from vlrl.methods.core.trainable import LoRA  # noqa: E402
from vlrl.policy.sharding import full_state_dict, is_sharded  # noqa: E402
from vlrl.policy.tree_attention import is_installed  # noqa: E402
from vlrl.trainer.step.loss_inputs import make_batch  # noqa: E402

torch.distributed.init_process_group("gloo")
plain, spread = policy_of("qwen2_5_vl"), policy_of("qwen2_5_vl")
mesh = init_device_mesh("cpu", (2,))
for module in spread.params.net.modules():
    if type(module).__name__ in ("Qwen2_5_VLDecoderLayer", "Qwen2_5_VLVisionBlock"):
        fully_shard(module, mesh=mesh)
spread.params.wrapped = fully_shard(spread.params.net, mesh=mesh)
assert is_sharded(spread.params.wrapped)
batch = make_batch(
    groups_of([PROMPTS["image"] if torch.distributed.get_rank() else PROMPTS["text"]]), plain.pad_id
)

with torch.no_grad(), spread.gather_params():  # ranks may make different numbers of passes here
    for _ in range(1 + torch.distributed.get_rank()):
        torch.testing.assert_close(
            spread.forward(batch)["logp"], plain.forward(batch)["logp"], atol=1e-6, rtol=0
        )

assert is_installed(spread.model)  # the unsharded copy has a config of its own

for policy in (plain, spread):
    (policy.forward(batch)["logp"].sum()).backward()
for (name, one), two in zip(plain.params.net.named_parameters(), spread.params.net.parameters()):
    mean = one.grad if one.grad is not None else torch.zeros_like(one)
    torch.distributed.all_reduce(mean)
    got = two.grad.full_tensor() if two.grad is not None else torch.zeros_like(mean)
    torch.testing.assert_close(
        got, mean / 2, atol=1e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
    )

state = full_state_dict(spread.params.wrapped)
if torch.distributed.get_rank() == 0:
    for name, value in plain.params.net.state_dict().items():
        torch.testing.assert_close(state[name], value, atol=0, rtol=0)
spread.save(sys.argv[1])


def adapted():
    """A policy with an adapter that does something."""
    policy = policy_of("qwen2_5_vl")
    torch.manual_seed(0)
    for parameter in LoRA(r=4)(policy)[0]["params"]:
        parameter.data.normal_(std=0.1)
    return policy


one, two = (
    adapted(),
    adapted(),
)  # an adapter is merged and kept where weights are spread as where they are not
two.params.wrapped = fully_shard(two.params.net, mesh=mesh)
two.save(f"{sys.argv[1]}/spread")
if torch.distributed.get_rank() == 0:
    one.save(f"{sys.argv[1]}/plain")
torch.distributed.destroy_process_group()

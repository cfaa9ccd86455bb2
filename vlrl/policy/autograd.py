"""Classes of the policy's forward that derive from torch's: autograd functions, and the linear layer of CPUs.

Importing them imports torch; the functions that use them import this module.

Shape legend: N rows or tokens, I inputs, O outputs of a layer, H hidden size (heads, in attention), V
vocabulary, L tokens of a packed row, D size of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vlrl.policy import cpu_matmul
from vlrl.policy.branches import repeated
from vlrl.policy.cpu_matmul import applies, fill_forbidden, product
from vlrl.policy.packing import Node

BLOCK_NUMBERS = 1 << 22  # logits that are in work at a time: 16 MiB
CACHE_NUMBERS = 1 << 18  # numbers that fit into a CPU's cache over several passes


class Product(torch.autograd.Function):
    """x W^T + b with its gradients g W, g^T x and sum_n g_n."""

    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_NI, weight_OI)
        return product(x_NI, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad_NO,) = grads
        x_NI, weight_OI = ctx.saved_tensors
        grad_x = product(grad_NO, weight_OI.t()) if ctx.needs_input_grad[0] else None
        grad_weight = product(grad_NO.t(), x_NI.t()) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, grad_NO.sum(0) if ctx.needs_input_grad[2] else None


class CPULinear(nn.Linear):
    """torch's linear layer with `product` in place of MKL's."""

    def forward(self, input: Tensor) -> Tensor:
        """x W^T + b. Sharded weights (DTensor, ZeRO-3) and small products take torch's way; see also
        `packed_weights`."""
        packed = cpu_matmul.PACKED.get().get(self)
        if (
            packed is not None
            and not torch.is_grad_enabled()
            and input.numel() * self.out_features >= cpu_matmul.PACKED_LEAST_PRODUCTS
        ):
            return torch.ops.mkldnn._linear_pointwise(input, packed, self.bias, "none", [], "")
        weight = self.weight
        sharded = type(weight) is not nn.Parameter or hasattr(weight, "ds_id")
        if (
            sharded
            or input.numel() * self.out_features < cpu_matmul.LEAST_PRODUCTS
            or not applies(input, weight)
        ):
            return super().forward(input)
        flat_NI = input.reshape(-1, self.in_features)
        graph = torch.is_grad_enabled() and (
            flat_NI.requires_grad or any(p.requires_grad for p in self.parameters(recurse=False))
        )
        out_NO = Product.apply(flat_NI, weight, self.bias) if graph else product(flat_NI, weight, self.bias)
        return out_NO.view(*input.shape[:-1], self.out_features)


class HeadLogp(torch.autograd.Function):
    """log softmax(h W^T / t)_id of N tokens, (N,), and values that are only logged, for an output layer that
    is one matrix in float32.

    With p = softmax(h W^T / t) and the gradient g of a log-prob: dh = (g / t) (W_id - p W), dW = sum_n (g_n /
    t_n) (1[v = id_n] - p_nv) h_n. p takes the place of the logits as soon as they are made, so that neither
    the exponentials nor a gradient of the logits is computed in the backward pass. The probabilities of the
    last `kept` tokens stay in memory; those of the tokens before are computed again, `kept` at a time.

    Args: `forbidden` ids have probability 0; `logged` are functions of (logits, ids) whose values carry no
    gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        ids_N: Tensor,
        temperature_N: Tensor,
        forbidden: Sequence[int],
        kept: int,
        logged: Sequence[Callable[[Tensor, Tensor], Tensor]],
    ) -> tuple[Tensor, ...]:
        graph = any(ctx.needs_input_grad[:2])
        first = (
            (len(ids_N) - 1) // kept * kept if graph else len(ids_N)
        )  # the tokens from here on keep their probabilities
        held_NV = weight_VH.new_empty(len(ids_N) - first, len(weight_VH))
        columns: list[list[Tensor]] = [[] for _ in range(1 + len(logged))]
        for rows in _blocks(0, first, len(weight_VH)) + _blocks(first, len(ids_N), len(weight_VH)):
            logits = _logits(hidden_NH[rows], weight_VH, temperature_N[rows], forbidden)
            for column, function in zip(columns[1:], logged):
                column.append(function(logits, ids_N[rows]))
            highest = logits.amax(-1)
            picked = logits.gather(-1, ids_N[rows, None])[:, 0]
            place = logits if rows.start < first else held_NV[rows.start - first : rows.stop - first]
            torch.softmax(logits, -1, out=place)
            columns[0].append(
                picked - highest + place.amax(-1).log()
            )  # the largest probability is e^(highest - logsumexp)
        ctx.save_for_backward(hidden_NH, weight_VH, ids_N, temperature_N)
        ctx.how, ctx.held = (forbidden, kept, first), held_NV
        out = tuple(torch.cat(column) for column in columns)
        ctx.mark_non_differentiable(*out[1:])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, ids_N, temperature_N = ctx.saved_tensors
        forbidden, kept, first = ctx.how
        scale_N1 = (grads[0] / temperature_N)[:, None]
        grad_hidden = torch.empty_like(hidden_NH) if ctx.needs_input_grad[0] else None
        grad_weight_HV: Tensor | None = None
        held_NV, ctx.held = ctx.held, None  # None: this backward pass is not the first
        for start in range(first, -1, -kept):
            part = slice(start, min(start + kept, len(ids_N)))
            if held_NV is None:
                held_NV = weight_VH.new_empty(part.stop - start, len(weight_VH))
                for rows in _blocks(start, part.stop, len(weight_VH)):
                    logits = _logits(hidden_NH[rows], weight_VH, temperature_N[rows], forbidden)
                    torch.softmax(logits, -1, out=held_NV[rows.start - start : rows.stop - start])
            held_NV.scatter_add_(
                -1, ids_N[part, None], held_NV.new_full((len(held_NV), 1), -1.0)
            )  # p - 1[v = id]
            if grad_hidden is not None:
                grad_hidden[part] = product(held_NV, weight_VH.t()).mul_(-scale_N1[part])
            if ctx.needs_input_grad[1]:
                new_HV = product((hidden_NH[part] * -scale_N1[part]).t(), held_NV.t())
                grad_weight_HV = new_HV if grad_weight_HV is None else grad_weight_HV.add_(new_HV)
            held_NV = None
        return (
            grad_hidden,
            None if grad_weight_HV is None else grad_weight_HV.t(),
            None,
            None,
            None,
            None,
            None,
        )


def _blocks(start: int, end: int, width: int) -> list[slice]:
    """Rows [start, end) in blocks of `BLOCK_NUMBERS` numbers."""
    size = max(1, BLOCK_NUMBERS // width)
    return [slice(at, min(at + size, end)) for at in range(start, end, size)]


def _logits(hidden_NH: Tensor, weight_VH: Tensor, temperature_N: Tensor, forbidden: Sequence[int]) -> Tensor:
    """h W^T / t, -inf at forbidden ids."""
    logits = product(hidden_NH / temperature_N[:, None], weight_VH)
    fill_forbidden(logits, tuple(forbidden))
    return logits


class TokenLogp(torch.autograd.Function):
    """log softmax(logits)_id = logits_id - logsumexp(logits), (N,).

    Its gradient, g (1[v = id] - softmax(logits)_v), allocates one new (N, V) tensor.
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        total_N = torch.cat([rows.logsumexp(-1) for rows in logits_NV.split(_rows_per_pass(logits_NV))])
        ctx.save_for_backward(logits_NV, ids_N, total_N)
        return logits_NV.gather(-1, ids_N[:, None])[:, 0] - total_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad_N,) = grads
        logits_NV, ids_N, total_N = ctx.saved_tensors
        out_NV = torch.empty_like(logits_NV)
        size = _rows_per_pass(logits_NV)
        for out, logits, ids, total, grad in zip(
            *(x.split(size) for x in (out_NV, logits_NV, ids_N, total_N, grad_N))
        ):
            torch.sub(logits, total[:, None], out=out).exp_().mul_(-grad[:, None])
            out.scatter_add_(-1, ids[:, None], grad[:, None])
        return out_NV, None


def _rows_per_pass(logits_NV: Tensor) -> int:
    """Rows that are processed together."""
    count, width = logits_NV.shape
    return max(1, CACHE_NUMBERS // width if logits_NV.device.type == "cpu" else count)


class MergedAttention(torch.autograd.Function):
    """Attention of one packed row without a window, (1, L, H, D); zeros where the row is padding."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        nodes: tuple[Node, ...],
        masks: tuple[Tensor | None, ...],
        scaling: float,
    ) -> Tensor:
        _, heads, length, size = query.shape
        keys, values = (repeated(x, heads // x.shape[1]) for x in (key, value))
        out_1LHD = query.new_zeros(1, length, heads, size)
        out = out_1LHD.transpose(1, 2)
        lse_1HL = query.new_full((1, length, heads), float("-inf"), dtype=torch.float32).transpose(1, 2)
        for part, (q, k, causal, mask) in enumerate(_parts(nodes, masks)):
            new, new_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                query[:, :, q],
                keys[:, :, k],
                values[:, :, k],
                0.0,
                causal,
                attn_mask=_additive(mask, query),
                scale=scaling,
            )
            if part < 2:  # the root's: the first that these queries see
                out[:, :, q], lse_1HL[:, :, q] = new, new_lse
                continue
            before = lse_1HL[:, :, q]
            weight = torch.sigmoid(new_lse - before)[..., None]  # e^{l_2 - l}
            out[:, :, q].lerp_(new, weight.to(new.dtype))
            lse_1HL[:, :, q] = torch.logaddexp(before, new_lse)
        ctx.save_for_backward(query, key, value, out_1LHD, lse_1HL)
        ctx.how = nodes, masks, scaling
        return out_1LHD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out_1LHD, lse_1HL = ctx.saved_tensors
        nodes, masks, scaling = ctx.how
        grad, out = grads[0].transpose(1, 2), out_1LHD.transpose(1, 2)
        heads, j = query.shape[1], key.shape[1]
        keys, values = (repeated(x, heads // j) for x in (key, value))
        grad_query, grad_keys, grad_values = (
            torch.zeros_like(query),
            torch.zeros_like(keys),
            torch.zeros_like(values),
        )
        for q, k, causal, mask in _parts(nodes, masks):
            dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad[:, :, q], query[:, :, q], keys[:, :, k], values[:, :, k], out[:, :, q], lse_1HL[:, :, q],
                0.0, causal,
                attn_mask=_additive(mask, query), scale=scaling,
            )  # fmt: skip
            grad_query[:, :, q] += dq
            grad_keys[:, :, k] += dk
            grad_values[:, :, k] += dv
        grad_key, grad_value = (
            x if heads == j else x.unflatten(1, (j, -1)).sum(2) for x in (grad_keys, grad_values)
        )
        return grad_query, grad_key, grad_value, None, None, None


def _parts(
    nodes: Sequence[Node], masks: Sequence[Tensor | None]
) -> Iterator[tuple[slice, slice, bool, Tensor | None]]:
    """(queries, keys, causal, mask) of each call: of every node, its tokens to themselves and all tokens
    below it to it."""
    for node, mask in zip(nodes, masks):
        own = slice(node.start, node.end)
        if node.end > node.start:
            yield own, own, mask is None, mask
            if node.below > node.end:
                yield slice(node.end, node.below), own, False, None


def _additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A bool mask as numbers to add to scores."""
    return (
        None if mask is None else torch.zeros(mask.shape, dtype=like.dtype).masked_fill_(~mask, float("-inf"))
    )

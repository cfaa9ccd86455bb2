"""The forward pass from token rows and media to log-probs, without a (tokens x vocabulary) tensor.

Shape legend: R rows, L tokens of a row, H hidden size, N scored completion tokens, V vocabulary, K numbers
per token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vlrl.plugins.views import TokenValuesView
from vlrl.policy.cpu_matmul import CPULinear, HeadLogp, fill_forbidden, is_whole, plain_float
from vlrl.policy.encoded import Features
from vlrl.policy.family import Family, base, logit_rule
from vlrl.policy.packing import Layout
from vlrl.policy.routing import Routing, real_tokens
from vlrl.policy.sequence_group import SequenceGroup
from vlrl.policy.sequence_parallel import ScoredShare, hidden_slices, slices_of
from vlrl.policy.sharding import most_chunks
from vlrl.policy.tower import MediaEncoder
from vlrl.policy.tree_attention import attention_arguments

if TYPE_CHECKING:
    from vlrl.plugins.views import AuxTensorView

CACHE_NUMBERS = 1 << 18  # numbers that fit into a CPU's cache over several passes


class Net(nn.Module):
    """The module that distributed engines wrap: a model and its family's forward. Every collective of a step
    is inside its forward and backward.

    `forbidden_ids` have probability 0 (see `Params`). `media` runs the vision tower, and keeps its outputs
    while it is frozen.
    """

    def __init__(
        self,
        model: nn.Module,
        family: Family,
        forbidden_ids: Sequence[int] = (),
        media: MediaEncoder | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.family = family
        self.forbidden_ids = tuple(forbidden_ids)
        self.media = MediaEncoder(family) if media is None else media
        self._no_split_modules = getattr(model, "_no_split_modules", None)  # FSDP shards at these modules
        self._tied_weights_keys = None

    def forward(
        self,
        layout: Layout,
        ids_N: Tensor,
        temperature_N: Tensor,
        features: Sequence[Features],
        shown: Sequence[int],
        aux_tensors: Sequence[AuxTensorView] = (),
        dummies: Sequence[Features] = (),
        given_NMK: Tensor | None = None,
        values: Mapping[str, Tensor] | None = None,
        group: SequenceGroup | None = None,
        collective: bool = False,
    ) -> dict[str, Tensor]:
        """{"logp": (N,), aux tensor name: (N,) or (N, K)} of the completion tokens `ids_N`.

        Args: `features` are the distinct media; `shown` indexes them in the order of the rows' placeholders.
        `dummies` are media that go through the vision tower with weight 0, because all ranks must take part
        in the tower's collectives. `given_NMK`: the experts of the rows' tokens. `values`: (N, K) numbers of
        the completion tokens, by the aux tensor that reads them. `group`: the ranks that run these rows in
        slices. `collective`: all ranks make this forward.
        """
        family = self.family
        share: ScoredShare | None = None
        with family.autocast(ids_N.device):
            embeds = self.media(self.model, [*features, *dummies])
            kinds = [features[i].kind for i in shown]
            shown_embeds = [embeds[i] for i in shown]
            slices = slices_of(family, self.model, layout, group) if group is not None else None
            options = attention_arguments(family, self.model, layout) if slices is None else {}
            of_routing = [aux for aux in aux_tensors if aux.reads_routing]
            aux_tensors = [aux for aux in aux_tensors if not aux.reads_routing]
            if of_routing or given_NMK is not None:
                if slices is not None and given_NMK is not None:
                    given_NMK = slices.rows_of(given_NMK)
                routing = Routing(given_NMK, real_tokens(layout) if of_routing else None)
                options["routing"] = routing
            if slices is None:
                hidden_RLH, _ = family.hidden(
                    self.model, layout.ids_RL, layout.positions, embeds=shown_embeds, kinds=kinds, **options
                )
                hidden_NH = hidden_RLH.flatten(0, 1)[layout.source_N]
            else:
                share = ScoredShare.of(slices, layout.source_N)
                hidden_NH = share.hidden(
                    hidden_slices(family, self.model, slices, shown_embeds, kinds, **options)
                )
                ids_N, temperature_N = share.take(ids_N), share.take(temperature_N)
                values = {name: share.take(value) for name, value in (values or {}).items()}
            weight_VH = head_weight(self.model)
            plain = not values and not any(needs_logits_graph(aux) for aux in aux_tensors)
            if weight_VH is not None and len(ids_N) and plain:
                out = score_by_weight(
                    weight_VH, hidden_NH, ids_N, temperature_N, aux_tensors, self.forbidden_ids, family.chunk
                )
            else:
                least = self._most_chunks(len(ids_N)) if collective else 0
                out = score_tokens(
                    self._logits, hidden_NH, ids_N, temperature_N, aux_tensors, family.chunk, values, least
                )
            out = out if share is None else share.gather(out)
            for aux in of_routing:
                out[aux.name] = routing.balance_2.expand(len(ids_N), 2)
            for dummy in embeds[len(features) :]:
                out["logp"] = out["logp"] + 0.0 * dummy.embeds_NH.sum()
            return out

    def _most_chunks(self, tokens: int) -> int:
        return most_chunks(tokens, self.family.chunk, base(self.model).get_output_embeddings())

    def _logits(self, hidden_NH: Tensor) -> Tensor:
        return forbid(self.family.logits(self.model, hidden_NH), self.forbidden_ids)


def forbid(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Logits (..., V), -inf at `ids`, in place: log softmax is then the law over the other tokens, with
    gradient 0 at `ids`.

    Autograd does not see the change (`data`), which saves a copy of the gradient; it would refuse one where a
    module has backward hooks, as with ZeRO-3. What reads the logits other than through a softmax must leave
    out -inf.
    """
    if ids:
        fill_forbidden(logits.data, tuple(ids))
    return logits


def head_weight(model: nn.Module) -> Tensor | None:
    """The output layer's weight (V, H) if logits are hidden W^T and nothing else, with W a whole float32
    matrix on a CPU; None otherwise."""
    head = base(model).get_output_embeddings()
    if type(head) not in (nn.Linear, CPULinear) or head.bias is not None or logit_rule(model) != (1, None):
        return None
    hooks = (head._forward_hooks, head._forward_pre_hooks, head._backward_hooks, head._backward_pre_hooks)
    return head.weight if is_whole(head.weight) and plain_float(head.weight) and not any(hooks) else None


def needs_logits_graph(aux: AuxTensorView) -> bool:
    """Whether a gradient flows through the tensor's values into the logits."""
    return torch.is_grad_enabled() and not (aux.reads_hidden or aux.no_grad)


def score_by_weight(
    weight_VH: Tensor,
    hidden_NH: Tensor,
    ids_N: Tensor,
    temperature_N: Tensor,
    aux_tensors: Sequence[AuxTensorView] = (),
    forbidden_ids: Sequence[int] = (),
    chunk: int = 1024,
) -> dict[str, Tensor]:
    """`score_tokens` for an output layer that is one float32 matrix on a CPU, through `HeadLogp`.

    It keeps the probabilities of 2 `chunk` tokens, in place of the logits of `chunk` tokens and their
    gradient.
    """
    temperature_N = torch.where(temperature_N > 0, temperature_N, torch.ones_like(temperature_N))
    by_logits = [aux for aux in aux_tensors if not aux.reads_hidden]
    logged = [aux.from_logits for aux in by_logits]
    logp_N, *values = HeadLogp.apply(
        hidden_NH, weight_VH, ids_N, temperature_N, forbidden_ids, 2 * chunk, logged
    )
    out = {"logp": logp_N, **{aux.name: value for aux, value in zip(by_logits, values)}}
    return out | {aux.name: aux.from_hidden(hidden_NH, ids_N) for aux in aux_tensors if aux.reads_hidden}


def score_tokens(
    head: Callable[[Tensor], Tensor],
    hidden_NH: Tensor,
    ids_N: Tensor,
    temperature_N: Tensor,
    aux_tensors: Sequence[AuxTensorView] = (),
    chunk: int = 1024,
    values: Mapping[str, Tensor] | None = None,
    least: int = 0,
) -> dict[str, Tensor]:
    """{"logp": (N,), aux tensor name: (N,) or (N, K)} of tokens `ids_N`, given the hidden states that predict
    them. `values`: (N, K) numbers of the tokens, by the aux tensor that reads them. `least`: the smallest
    number of chunks; empty ones come first.

    Logits are computed for `chunk` tokens at a time, in float32, divided by the temperature (0, greedy,
    counts as 1). All chunks but the last are recomputed in the backward pass. The backward pass begins with
    the last chunk, so keeping its logits does not raise the memory peak.
    """
    temperature_N = torch.where(temperature_N > 0, temperature_N, torch.ones_like(temperature_N))
    unscaled = bool((temperature_N == 1).all())
    values = values or {}

    def score_chunk(hidden: Tensor, ids: Tensor, temperature: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        logits = head(hidden).float()
        logits = logits if unscaled else logits / temperature[:, None]
        logp, own = TokenLogp.apply(logits, ids), dict(zip(values, parts, strict=True))
        return logp, *(
            aux.from_hidden(hidden, ids)
            if aux.reads_hidden
            else aux.from_values(logits, ids, own[aux.name])
            if isinstance(aux, TokenValuesView)
            else aux.from_logits(logits, ids)
            for aux in aux_tensors
        )

    recompute = torch.is_grad_enabled() and hidden_NH.requires_grad
    count = len(ids_N)
    # the first chunk has the odd size, because the last one is kept
    begins = [0, *range(count % chunk or chunk, count, chunk)]
    begins = [0] * (least - len(begins)) + begins
    last = len(begins) - 1
    parts = []
    for i, (start, end) in enumerate(zip(begins, [*begins[1:], count])):
        args = [x[start:end] for x in (hidden_NH, ids_N, temperature_N, *values.values())]
        parts.append(
            checkpoint(score_chunk, *args, use_reentrant=False)
            if recompute and i < last
            else score_chunk(*args)
        )
    return {
        name: torch.cat(column)
        for name, column in zip(["logp", *(aux.name for aux in aux_tensors)], zip(*parts))
    }


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


def dedupe(
    source_N: Tensor, ids_N: Tensor, temperature_N: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The scored tokens without repetitions: a token that several completions share is predicted from the
    same hidden state.

    Returns source, ids and temperature of the distinct tokens, and for each of the N the number of its own
    among them (None: all are distinct).
    """
    places = source_N.unique()
    if len(places) == len(source_N):
        return source_N, ids_N, temperature_N, None
    told_3N = torch.stack([source_N, ids_N, temperature_N.contiguous().view(torch.int32).long()])
    distinct_3N, copies_N = told_3N.unique(dim=1, return_inverse=True)
    if distinct_3N.shape[1] == len(source_N):
        return source_N, ids_N, temperature_N, None
    return distinct_3N[0], distinct_3N[1], distinct_3N[2].int().view(torch.float32), copies_N


def gather_from_BT(value: Tensor, target_N: Tensor, copies_N: Tensor | None) -> Tensor:
    """(B, T, K) to (N, K), the inverse of `scatter_to_BT`; of tokens that are one (`dedupe`), the last one's
    numbers."""
    rows_N = value.flatten(0, 1)[target_N]
    if copies_N is None:
        return rows_N
    place_N = target_N.new_zeros(int(copies_N.max()) + 1)
    return rows_N[place_N.index_copy(0, copies_N, torch.arange(len(copies_N), device=target_N.device))]


def scatter_to_BT(value: Tensor, target_N: Tensor, shape: torch.Size) -> Tensor:
    """(N, ...) to (B, T, ...), zero for tokens that were not scored."""
    flat_BT = value.new_zeros(shape.numel(), *value.shape[1:])
    return flat_BT.index_copy(0, target_N, value).view(*shape, *value.shape[1:])

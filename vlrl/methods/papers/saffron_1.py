"""Saffron-1: a search for safe responses, guided by a multifurcation reward model (MRM), which gives the rewards of
all next tokens in one call.

    saffron_1        rollout strategy: tree search with the MRM, within what it was trained on
    saffron_1.model  callback: trains the MRM on the rewards of prefixes (partial supervision)

Paper: Qiu et al. 2025 (Saffron-1), arXiv:2506.06444; released code: q-rz/saffron at 00b941c, saffron.py.

Shapes: B rollouts, T completion tokens, N tokens, V vocabulary.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vlrl.methods.common.side_models import SideModel
from vlrl.methods.core.critic import CriticState, has_trained_tokens
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import CallbackContext, SamplingContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Callback
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import Completion, Group, Prompt, Request, Rollout, RowError

MRM = Capability("saffron_1.model", hint="callbacks: {mrm: {name: saffron_1.model}}")
SAVED_SEEN = "saffron_1.seen"


@dataclass
class MultifurcationModel:
    """The MRM: a copy of the policy whose output layer, with a bias, gives rewards; the token ids that it has
    been trained on."""

    module: Any
    view: Any
    seen: set[int] = field(default_factory=set)


class TakenReward:
    """The MRM's reward of each taken token: an aux tensor of its forward pass."""

    name = "taken_reward"
    in_forward = True
    reads_hidden = False
    reads_routing = False
    no_grad = False

    def from_hidden(self, hidden_NH: Tensor, ids_N: Tensor) -> Tensor:
        raise NotImplementedError("it reads the output layer")

    def from_logits(self, logits_NV: Tensor, ids_N: Tensor) -> Tensor:
        """(N,) from the outputs of all next tokens."""
        return logits_NV.gather(1, ids_N[:, None])[:, 0]


def multifurcation_model(run: StageContext, make: bool = False) -> MultifurcationModel:
    """The run's MRM; `make`: a new one where there is none, else ConfigError."""

    def new() -> MultifurcationModel:
        if not make:
            raise ConfigError(f"rollout: 'saffron_1' is guided by a multifurcation reward model; add {MRM.hint}")
        module: Any = copy.deepcopy(run.policy.model)
        old = module.get_output_embeddings()
        head = nn.Linear(old.weight.shape[1], old.weight.shape[0], bias=True).to(run.policy.device)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        module.set_output_embeddings(head)
        return MultifurcationModel(module, run.policy.with_model(module.requires_grad_(True)))

    return run.shared("saffron_1", new)


@dataclass
class Node:
    """A prefix of the search: its tokens and log-probs, the reward of its end (-inf while it is open), and the
    caches of policy and MRM behind its last token."""

    ids: tuple[int, ...] = ()
    logp: tuple[float, ...] = ()
    reward: float = -float("inf")
    caches: tuple[Any, Any] = (None, None)
    done: bool = False


@register("saffron_1")
@dataclass(frozen=True)
class Saffron1(Independent):
    """Saffron's tree search: of all open prefixes, the `budget` children with the highest MRM reward go on, in
    each step; children are the policy's nucleus `top_p`, without tokens that the MRM was never trained on.

    A prefix that ends has the reward of its end token; the best end is the response. No end before
    `min_tokens`. Until the MRM has been trained the policy samples. Paper: Qiu et al. 2025 (Saffron-1),
    arXiv:2506.06444, sec. 4; released code: saffron.py:55-98 (top_p 0.8, min_new_tokens 16). Deviates: G
    searches of a prompt differ by the root's first token, drawn from the policy (there one response); caches
    are copied per branch, not shared by a trie. Edge: rows with pictures raise RowError. Engines: any.
    """

    budget: int = 16
    top_p: float = 0.8
    min_tokens: int = 16
    conservative: bool = True
    requires = (MRM,)

    def __post_init__(self) -> None:
        if self.budget < 1 or not 0 < self.top_p <= 1 or self.min_tokens < 0:
            raise ValueError(
                f"budget={self.budget} must be at least 1, top_p={self.top_p} in (0, 1], "
                f"min_tokens={self.min_tokens} not negative"
            )

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        model = multifurcation_model(run)
        if not model.seen:
            return super().__call__(prompts, counts, run)
        return [
            Group(prompt, [self.search(prompt, number, model, run) for number in range(count)])
            for prompt, count in zip(prompts, counts, strict=True)
        ]

    def search(self, prompt: Prompt, number: int, model: MultifurcationModel, run: SamplingContext) -> Rollout:
        """The response of one search."""
        if prompt.media:
            raise RowError(f"row {prompt.row.id!r}: rollout 'saffron_1' searches text alone")
        sampling = run.sampling(prompt, number)
        rng = random.Random(f"saffron {run.seed} {run.step} {prompt.key} {number}")
        sides = SideModel.of(run.policy), SideModel.of(model.view)
        nodes = [Node()]
        for length in range(sampling.max_tokens):
            open_nodes = [node for node in nodes if not node.done]
            if not open_nodes:
                break
            ended = [node for node in nodes if node.done]
            children = self.children(open_nodes, prompt, sides, model, run, length, rng)
            nodes = sorted([*ended, *children], key=lambda node: -node.reward)[: self.budget]
        best = max(nodes, key=lambda node: node.reward)
        request = Request(prompt, sampling, tag=number)
        text = run.policy.decode(best.ids)
        end: Literal["stop", "length"] = "stop" if best.done else "length"
        version = run.policy.version
        return run.make_rollout(
            Completion(request, number, list(best.ids), list(best.logp), text, end, version)
        )

    def children(
        self,
        nodes: Sequence[Node],
        prompt: Prompt,
        sides: tuple[SideModel, SideModel],
        model: MultifurcationModel,
        run: SamplingContext,
        length: int,
        rng: random.Random,
    ) -> list[Node]:
        """The best children of open prefixes."""
        eos = run.policy.tokenizer.eos_token_id
        found: list[tuple[float, int, int, float]] = []  # reward, place of the parent, token, log-prob
        caches = []
        for place, node in enumerate(nodes):
            given = node.ids[-1:] if node.ids else tuple(run.policy.encode(prompt).ids)
            outputs = [
                side.next_logits(given, copy.deepcopy(cache))
                for side, cache in zip(sides, node.caches, strict=True)
            ]
            (logits_V, own), (reward_V, other) = outputs
            caches.append((own, other))
            tokens, logp_V = self.allowed(logits_V, model, run, eos if length < self.min_tokens else -1)
            if not length:
                tokens = rng.choices(tokens, [float(logp_V[token].exp()) for token in tokens])
            found += [(gain(reward_V, token), place, token, float(logp_V[token])) for token in tokens]
        found.sort(key=lambda entry: -entry[0])
        return [
            Node(
                (*nodes[place].ids, token),
                (*nodes[place].logp, logp),
                reward if token == eos else -float("inf"),
                caches[place],
                token == eos,
            )
            for reward, place, token, logp in found[: self.budget]
        ]

    def allowed(
        self, logits_V: Tensor, model: MultifurcationModel, run: SamplingContext, banned: int
    ) -> tuple[list[int], Tensor]:
        """The children's tokens, the likeliest first, and (V,) the policy's log-probs."""
        logits_V = logits_V.clone()
        logits_V[list(run.policy.forbidden_ids)] = -float("inf")
        if banned >= 0:
            logits_V[banned] = -float("inf")
        logp_V = torch.log_softmax(logits_V, -1)
        ordered_V = logp_V.argsort(descending=True)
        before_V = logp_V[ordered_V].exp().cumsum(-1) - logp_V[ordered_V].exp()
        tokens = [int(token) for token in ordered_V[before_V < self.top_p]]
        known = [token for token in tokens if token in model.seen] if self.conservative else tokens
        return known or tokens[:1], logp_V


def gain(reward_V: Tensor, token: int) -> float:
    """What the search ranks children by: the MRM's reward of a token."""
    return float(reward_V[token])


@dataclass
class MrmState(CriticState):
    """The MRM's weights and optimizer, and the token ids that it was trained on."""

    seen: list[int] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), SAVED_SEEN: list(self.seen)}

    def load_state_dict(self, values: Any) -> None:
        super().load_state_dict({key: value for key, value in values.items() if key != SAVED_SEEN})
        self.seen[:] = values.get(SAVED_SEEN, [])


@register("saffron_1.model")
@dataclass(frozen=True)
class Saffron1Model(Callback):
    """Trains the MRM after each step on the rewards of prefixes of the step's rollouts, partially supervised:

        L = mean over the labelled (prefix, next token) of (M(prefix)[next token] - R(prefix and token))^2

    Only the output of the token that was taken has a label. R is the outcome reward of the prefix as a response;
    `prefixes` of a rollout are drawn, its end among them. AdamW without weight decay, `updates` a step. Paper:
    Qiu et al. 2025 (Saffron-1), arXiv:2506.06444, sec. 4.2 (labels of a safety model on each prefix: Safety4M).
    Deviates: the MRM begins as the policy with an output layer of 0 and is trained on the run's own rollouts;
    there it is Llama-Guard with an adapter. Logs the loss.
    """

    prefixes: int = 8
    updates: int = 1
    lr: float = 1e-5
    clip: float = 1.0
    provides = (MRM,)

    def __post_init__(self) -> None:
        if min(self.prefixes, self.updates) < 1:
            raise ValueError(f"prefixes={self.prefixes} and updates={self.updates} must be at least 1")

    def init_state(self) -> MrmState:
        return MrmState()

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.state_sharded or run.policy.has_adapter:
            raise ConfigError(
                "callbacks: 'saffron_1.model' copies the whole policy, which adapters and sharded weights do "
                "not allow; train all weights, under DDP"
            )
        model = multifurcation_model(run, make=True)
        self.state.module = model.module
        self.state.optimizer = torch.optim.AdamW(model.module.parameters(), lr=self.lr, weight_decay=0.0)

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, tuple[float, float]]:
        model = multifurcation_model(run)
        own = [
            Group(group.prompt, kept, group.id)
            for group in run.groups
            if (kept := [r for r in group if r.source == "policy" and has_trained_tokens(r)])
        ]
        labels = self.labels(run, own)
        count = sum(len(found) for found in labels.values())
        everywhere, total = sum(run.gather([count])), 0.0
        taken = {r.ids[end - 1] for group in own for r in group for end in labels[id(r)]}
        model.seen |= {*self.state.seen, *run.gather(sorted(taken))}
        self.state.seen[:] = sorted(model.seen)
        for _ in range(self.updates if everywhere else 0):
            self.state.optimizer.zero_grad()
            for part in run.micro_batches(own):
                loss = self.loss(run, model, part, labels)
                loss.backward()
                total += float(loss.detach())
            for p in model.module.parameters():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                p.grad = run.sum_tensor(p.grad) / everywhere
            nn.utils.clip_grad_norm_(model.module.parameters(), self.clip)
            self.state.optimizer.step()
        return {"loss": (total, float(count * self.updates))}

    def labels(self, run: CallbackContext, groups: Sequence[Group]) -> dict[int, dict[int, float]]:
        """{end of a prefix: its outcome} of each rollout, by id; prefixes that cannot be scored are left
        out."""
        found: dict[int, dict[int, float]] = {id(rollout): {} for group in groups for rollout in group}
        cut: list[tuple[int, int, Group]] = []
        for group in groups:
            for place, rollout in enumerate(group):
                if rollout.outcome is not None:
                    found[id(rollout)][len(rollout)] = rollout.outcome
                rng = random.Random(f"saffron {run.seed} {run.step} {group.row.id} {place}")
                ends = range(1, len(rollout))
                for end in rng.sample(ends, min(self.prefixes - 1, len(ends))):
                    ids = rollout.ids[:end]
                    part = Rollout(rollout.prompt, ids, rollout.prompt.prefix + run.policy.decode(ids))
                    cut.append((id(rollout), end, Group(rollout.prompt, [part])))
        run.score([group for _, _, group in cut])
        for key, end, group in cut:
            if len(group) and group.rollouts[0].outcome is not None:
                found[key][end] = group.rollouts[0].outcome
        return found

    def loss(
        self,
        run: CallbackContext,
        model: MultifurcationModel,
        part: Sequence[Group],
        labels: dict[int, dict[int, float]],
    ) -> Tensor:
        """The sum of the squared errors of a micro-batch's labelled tokens."""
        batch = run.batch(part)
        aux: Any = TakenReward()
        reward_BT = model.view.forward(batch, [aux])[aux.name]
        target_BT, mask_BT = torch.zeros_like(reward_BT), torch.zeros_like(reward_BT)
        for row, rollout in enumerate(batch.rollouts):
            for end, value in labels[id(rollout)].items():
                target_BT[row, end - 1], mask_BT[row, end - 1] = value, 1.0
        temperature_BT = torch.ones_like(reward_BT)
        for row, rollout in enumerate(batch.rollouts):
            own = torch.tensor(rollout.temperature, device=reward_BT.device)
            temperature_BT[row, : len(rollout)] = own
        result: Tensor = ((reward_BT * temperature_BT - target_BT).square() * mask_BT).sum()
        return result

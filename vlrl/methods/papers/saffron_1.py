"""Saffron-1: a search for safe responses, guided by a multifurcation reward model (MRM), which gives the
rewards of all next tokens in one call.

    saffron_1        rollout strategy: once the MRM is trained, tree search with it
    saffron_1.model  callback: in the first steps, trains the MRM on rewards of prefixes (partial supervision)

Paper: Qiu et al. 2025 (Saffron-1), arXiv:2506.06444; released code: q-rz/saffron at 00b941c, saffron.py.

Shapes: B rollouts, T completion tokens, N tokens, V vocabulary.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vlrl.methods.common.side_models import SideModel
from vlrl.methods.core.critic import CriticState, has_trained_tokens
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import CallbackContext, SamplingContext, StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Callback, transient
from vlrl.services.lazy import Tensor, nn, torch
from vlrl.types import Completion, Group, Prompt, Request, Rollout, RowError

MRM = Capability("saffron_1.model", hint="callbacks: {mrm: {name: saffron_1.model}}")
UNSEEN = -1024.0  # the reward of a token that the MRM was never trained on (released code: `inf`)


@dataclass
class MultifurcationModel:
    """The MRM: a copy of the policy whose output layer, with a bias, gives rewards."""

    module: Any
    view: Any
    seen: set[int] = field(default_factory=set)  # token ids that it has been trained on
    trained: int = 0  # steps in which it was trained
    ready: bool = False  # as it is used from now on


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
            raise ConfigError(
                f"rollout: 'saffron_1' is guided by a multifurcation reward model; add {MRM.hint}"
            )
        module: Any = copy.deepcopy(run.policy.model)
        old = module.get_output_embeddings()
        head = nn.Linear(old.weight.shape[1], old.weight.shape[0], bias=True).to(run.policy.device)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        module.set_output_embeddings(head)
        return MultifurcationModel(module, run.policy.with_model(module.requires_grad_(True)))

    return run.shared("saffron_1", new)


@dataclass
class SearchedPrefix:
    """A prefix of the search: its tokens and log-probs, the reward of its end (-inf while it is open), and
    the caches of policy and MRM before its last token."""

    ids: tuple[int, ...] = ()
    logp: tuple[float, ...] = ()
    reward: float = -float("inf")
    caches: tuple[Any, Any] = (None, None)
    done: bool = False


@register("saffron_1")
@dataclass(frozen=True)
class Saffron1(Independent):
    """Saffron's tree search: of the next tokens of all open prefixes the `budget` with the best MRM rewards
    go on; next tokens are the policy's nucleus `top_p`.

    `conservative`: a token that the MRM was never trained on has reward -1024. A prefix that ends has the
    reward of its end, others -inf. No end before `min_tokens`. Until the MRM has been trained the policy
    samples. Paper: Qiu et al. 2025 (Saffron-1), arXiv:2506.06444, sec. 4; released code: saffron.py:55-98.
    Deviates: a group is the best prefixes of one search, again from the best where there are fewer (there
    the best alone); caches are copied. Edge: rows with pictures raise RowError.
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
        if not model.ready:
            return super().__call__(prompts, counts, run)
        return [
            Group(prompt, self.search(prompt, count, model, run))
            for prompt, count in zip(prompts, counts, strict=True)
        ]

    def search(
        self, prompt: Prompt, count: int, model: MultifurcationModel, run: SamplingContext
    ) -> list[Rollout]:
        """The best responses that a search finds."""
        if prompt.media:
            raise RowError(f"row {prompt.row.id!r}: rollout 'saffron_1' searches text alone")
        sampling = run.sampling(prompt, 0)
        sides = SideModel.of(run.policy), SideModel.of(model.view)
        nodes = [SearchedPrefix()]
        for length in range(sampling.max_tokens):
            open_nodes = [node for node in nodes if not node.done]
            if not open_nodes:
                break
            ended = [node for node in nodes if node.done]
            children = self.children(open_nodes, prompt, sides, model.seen, run, length)
            # stable: of prefixes without an end, those whose last token is the best come first
            nodes = sorted([*ended, *children], key=lambda node: -node.reward)[: self.budget]
        return [
            self.response(nodes[place % len(nodes)], Request(prompt, sampling, tag=place), run)
            for place in range(count)
        ]

    def response(self, node: SearchedPrefix, request: Request, run: SamplingContext) -> Rollout:
        """A prefix as a rollout."""
        text, version = run.policy.decode(node.ids), run.policy.version
        end: Literal["stop", "length"] = "stop" if node.done else "length"
        return run.make_rollout(Completion(request, 0, list(node.ids), list(node.logp), text, end, version))

    def children(
        self,
        nodes: Sequence[SearchedPrefix],
        prompt: Prompt,
        sides: tuple[SideModel, SideModel],
        seen: Container[int],
        run: SamplingContext,
        length: int,
    ) -> list[SearchedPrefix]:
        """The best children of open prefixes, the best first."""
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
            tokens, logp_V = self.allowed(logits_V, run, eos if length < self.min_tokens else -1)
            for token in tokens:
                reward = UNSEEN if self.conservative and token not in seen else gain(reward_V, token)
                found.append((reward, place, token, float(logp_V[token])))
        found.sort(key=lambda entry: -entry[0])
        return [
            SearchedPrefix(
                (*nodes[place].ids, token),
                (*nodes[place].logp, logp),
                reward if token == eos else -float("inf"),
                caches[place],
                token == eos,
            )
            for reward, place, token, logp in found[: self.budget]
        ]

    def allowed(self, logits_V: Tensor, run: SamplingContext, banned: int) -> tuple[list[int], Tensor]:
        """The policy's nucleus, the likeliest token first, and (V,) its log-probs; `banned`: a token that is
        left out, -1 for none."""
        logits_V = logits_V.clone()
        logits_V[list(run.policy.forbidden_ids)] = -float("inf")
        if banned >= 0:
            logits_V[banned] = -float("inf")
        logp_V = torch.log_softmax(logits_V, -1)
        ordered_V = logp_V.argsort(descending=True)
        before_V = logp_V[ordered_V].exp().cumsum(-1) - logp_V[ordered_V].exp()
        return [
            int(token) for token in ordered_V[(before_V < self.top_p) & logp_V[ordered_V].isfinite()]
        ], logp_V


def gain(reward_V: Tensor, token: int) -> float:
    """What the search ranks children by: the MRM's reward of a token."""
    return float(reward_V[token])


@dataclass
class MrmState(CriticState):
    """The MRM's weights and optimizer, and what is known of its training."""

    model: MultifurcationModel | None = transient()

    def state_dict(self) -> dict[str, Any]:
        if self.model is None:
            return {}
        own = {"seen": sorted(self.model.seen), "trained": self.model.trained, "ready": self.model.ready}
        return {**super().state_dict(), **own}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        super().load_state_dict(values)
        if values and self.model is not None:
            self.model.seen = set(values["seen"])
            self.model.trained, self.model.ready = values["trained"], values["ready"]


@register("saffron_1.model")
@dataclass(frozen=True)
class Saffron1Model(Callback):
    """Trains the MRM, in the first `steps` steps, on rewards of prefixes of the step's rollouts:

        L = mean over the labelled (prefix, next token) of (M(prefix)[next token] - R(prefix and token))^2

    Only the output of the token that was taken has a label (partial supervision). R is the outcome reward of
    the prefix as a response; `prefixes` of a rollout are drawn, its end among them. AdamW, `updates` a step;
    afterwards the MRM is frozen. Paper: Qiu et al. 2025 (Saffron-1), arXiv:2506.06444, sec. 4.2. Deviates:
    the MRM begins as the policy with an output layer of 0 and learns from the run's own rollouts; there it is
    Llama-Guard with an adapter, on Safety4M. Logs the loss. Edge: a step without labels does not count.
    """

    state_class = MrmState
    steps: int = 50
    prefixes: int = 8
    updates: int = 1
    lr: float = 1e-5
    clip: float = 1.0
    provides = (MRM,)

    def __post_init__(self) -> None:
        if min(self.steps, self.prefixes, self.updates) < 1:
            raise ValueError(
                f"steps={self.steps}, prefixes={self.prefixes} and updates={self.updates} must be at least 1"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.state_sharded or run.policy.has_adapter:
            raise ConfigError(
                "callbacks: 'saffron_1.model' copies the whole policy, which adapters and sharded weights do "
                "not allow; train all weights, under DDP"
            )
        model = multifurcation_model(run, make=True)
        self.state.model, self.state.module = model, model.module
        self.state.optimizer = torch.optim.AdamW(model.module.parameters(), lr=self.lr, weight_decay=0.0)

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, tuple[float, float]]:
        model = multifurcation_model(run)
        if model.ready:
            return {}
        own = [
            Group(group.prompt, kept, group.id)
            for group in run.groups
            if (kept := [r for r in group if r.source == "policy" and has_trained_tokens(r)])
        ]
        labels = self.labels(run, own)
        count = sum(len(found) for found in labels.values())
        everywhere, total = sum(run.gather([count])), 0.0
        taken = {r.ids[end - 1] for group in own for r in group for end in labels[id(r)]}
        model.seen |= set(run.gather(sorted(taken)))
        model.trained += bool(everywhere)
        model.ready = model.trained >= self.steps
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
        taken_BT = reward_BT * batch.temperature_BT  # the forward pass divides by it
        result: Tensor = ((taken_BT - target_BT).square() * mask_BT).sum()
        return result

"""ArCHer: a critic of whole utterances, learned off-policy by temporal differences, gives the advantage of an
actor that learns tokens.

    archer_2            replay: stores the turns of all episodes, draws states from them, samples fresh
    utterances there and trains the critic archer_2.advantage  advantage: the critic's, of each fresh
    utterance

Paper: Zhou et al. 2024 (ArCHer), arXiv:2402.19446; checked against YifeiZhou02/ArCHer at 7c771a7:
archer/algorithms/archer/trainer.py, archer/algorithms/offpolicy_train_loop.py, archer/models/critic.py,
archer/models/archer_agent.py, archer/data/utils.py and scripts/config.

Shapes: B utterances, H hidden size.
"""

from __future__ import annotations

import copy
import random
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from vlrl.methods.common.stored_groups import rows_of
from vlrl.methods.core.turn_advantage import episodes_of, turn_rewards
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import PhaseContext, StageContext
from vlrl.plugins.episodes import TURN_SPANS
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import AdvantageEstimator, ReplayBuffer, State, transient
from vlrl.services.lazy import Tensor, nn, no_grad, torch
from vlrl.types import Completion, Group, Prompt, Request, Rollout

UTTERANCE_ADVANTAGE: Annotation[float] = Annotation(
    "archer_2.advantage",
    float,
    hint="replay: {name: archer_2}",
    doc="A(s, u) of the rollout's trained utterance",
)


class Moment(NamedTuple):
    """A state: a prompt and the first `at` tokens of the conversation behind it. Moments of one conversation
    share `ids`."""

    prompt: Prompt
    ids: Sequence[int]
    at: int


class Transition(NamedTuple):
    """An utterance, `state.ids[state.at:end]`, what it was paid, and the state of the next one (None: the
    episode was over)."""

    state: Moment
    end: int
    reward: float
    after: Moment | None

    @property
    def utterance(self) -> Sequence[int]:
        return self.state.ids[self.state.at : self.end]


def transitions(group: Group) -> Iterator[Transition]:
    """The utterances of a group's episodes, in order; what is left of an episode's reward is paid at its last
    one."""
    for episode in episodes_of(group):
        spans = [
            (rollout, *span)
            for rollout in episode
            for span in TURN_SPANS.get(rollout) or [[0, 0, len(rollout)]]
        ]
        states = [Moment(rollout.prompt, rollout.ids, start) for rollout, _, start, _ in spans]
        paid = turn_rewards(episode)
        last = {
            min(turn, len(paid) - 1): place for place, (_, turn, _, _) in enumerate(spans)
        }  # a summary counts to the turn that follows it
        for place, (_, turn, start, end) in enumerate(spans):
            if end > start:
                reward = paid[min(turn, len(paid) - 1)] if last[min(turn, len(paid) - 1)] == place else 0.0
                yield Transition(
                    states[place], end, reward, states[place + 1] if place + 1 < len(spans) else None
                )


def td_targets(rewards: Sequence[float], over: Sequence[bool], next_value_B: Tensor, gamma: float) -> Tensor:
    """(..., B) targets of Q: r + gamma V'(s'), r alone where the episode was over.

    >>> td_targets([1.0, 0.5], [True, False], torch.tensor([4.0, 4.0]), 0.5).tolist()
    [1.0, 2.5]
    """
    goes_on_B = 1.0 - torch.tensor(over, dtype=next_value_B.dtype, device=next_value_B.device)
    return (
        torch.tensor(rewards, dtype=next_value_B.dtype, device=next_value_B.device)
        + gamma * goes_on_B * next_value_B
    )


def utterance_advantages(q_2B: Tensor, v_2B: Tensor) -> Tensor:
    """(B,) A = min(Q_1, Q_2) - min(V_1, V_2).

    >>> utterance_advantages(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.5], [0.25]])).tolist()
    [0.75]
    """
    return q_2B.amin(0) - v_2B.amin(0)


def marked(state: Moment, utterance: Sequence[int], end_id: int) -> Group:
    """State and utterance as a rollout whose loss mask marks the positions behind the one and behind the
    other; `end_id` stands behind both."""
    ids = [*state.ids[: state.at], *utterance, end_id]
    mask = [False] * len(ids)
    mask[state.at] = mask[-1] = True
    return Group(state.prompt, [Rollout(state.prompt, ids, logp=[0.0] * len(ids), loss_mask=mask)])


@no_grad
def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging: target <- (1 - tau) target + tau source."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.lerp_(new.to(old.dtype), tau)


@dataclass
class Archer2State(State):
    """The stored utterances, oldest first; critic, target critic and optimizer, made by `setup`; the last
    step's numbers."""

    stored: deque[Transition] = field(default_factory=deque)
    saved: dict[str, Any] = transient(factory=dict)  # of a checkpoint, until the rows are there
    critic: Any = transient()
    target: Any = transient()
    optimizer: Any = transient()
    logged: dict[str, float] = transient(factory=dict)

    def state_dict(self) -> dict[str, Any]:
        if self.critic is None:
            return {}
        moments = {str(k): dict(v) for k, v in self.optimizer.state_dict()["state"].items()}
        weights = {
            "critic": dict(self.critic.state_dict()),
            "target": dict(self.target.state_dict()),
            "adam": moments,
        }
        return {"stored": packed(self.stored) if self.stored else self.saved, **weights}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        if values:
            self.stored.clear()
            self.saved = dict(values["stored"])
            self.critic.load_state_dict(values["critic"])
            self.target.load_state_dict(values["target"])
            self.optimizer.load_state_dict(
                {**self.optimizer.state_dict(), "state": {int(k): v for k, v in values["adam"].items()}}
            )


def packed(stored: Sequence[Transition]) -> dict[str, Any]:
    """Utterances as plain values; those whose prompt shows pictures that are not the row's are left out."""
    prompts: dict[int, dict[str, Any]] = {}
    sequences: dict[int, list[int]] = {}
    rows: list[tuple[float, int, list[tuple[int, int, int]]]] = []
    for one in stored:
        moments = [one.state, *([one.after] if one.after is not None else [])]
        if all(
            m.prompt.continues is None and m.prompt.train is None and _own_media(m.prompt) for m in moments
        ):
            for m in moments:
                told = {
                    "row": m.prompt.row.id,
                    "messages": list(m.prompt.messages),
                    "prefix": m.prompt.prefix,
                    "options": dict(m.prompt.options),
                }
                prompts.setdefault(id(m.prompt), told)
                sequences.setdefault(id(m.ids), list(m.ids))
            rows.append((one.reward, one.end, [(id(m.prompt), id(m.ids), m.at) for m in moments]))
    prompt_at, ids_at = ({key: index for index, key in enumerate(found)} for found in (prompts, sequences))
    places = [
        [reward, end, *([prompt_at[p], ids_at[i], at] for p, i, at in found)] for reward, end, found in rows
    ]
    return {"prompts": list(prompts.values()), "sequences": list(sequences.values()), "utterances": places}


def _own_media(prompt: Prompt) -> bool:
    return len(prompt.images) == len(prompt.row.images) and len(prompt.videos) == len(prompt.row.videos)


def unpacked(values: Mapping[str, Any], run: StageContext) -> list[Transition]:
    """Undo `packed`; utterances whose row is no longer in the data are left out."""
    rows = rows_of(run, {told["row"] for told in values["prompts"]})
    prompts = [
        replace(
            run.prompt_template(rows[told["row"]]),
            messages=tuple(told["messages"]),
            prefix=told["prefix"],
            options=told["options"],
            train=None,
        )
        if told["row"] in rows
        else None
        for told in values["prompts"]
    ]
    made = []
    for reward, end, *moments in values["utterances"]:
        found = [
            Moment(prompt, values["sequences"][ids], at)
            for index, ids, at in moments
            if (prompt := prompts[index]) is not None
        ]
        if len(found) == len(moments):
            made.append(Transition(found[0], end, reward, found[1] if len(found) > 1 else None))
    return made


@register("archer_2")
@dataclass(frozen=True)
class Archer2(ReplayBuffer):
    """ArCHer's hierarchy: an off-policy critic over utterances, and an actor that is trained on fresh
    utterances at stored states.

        Q_i(s, u) -> r + gamma V'_i(s')          0 for V' where the episode was over
        V_i(s)    -> Q'_i(s, u'),  u' ~ pi(. | s)
        A(s, u')  =  min_i Q_i(s, u') - min_i V_i(s)
        target    <- (1 - tau) target + tau critic      i = 1, 2; a prime is the target critic

    Each step stores the sampled episodes, draws `states` utterances, has the policy write a fresh one at each
    state and trains on these, one rollout per state; token credit `uniform`. Paper: arXiv:2402.19446, sec. 3
    and 4, algorithm 1; numbers: the release's. Deviates: the encoder is a copy of the policy (release:
    RoBERTa-base); one fresh utterance per step and state (release: per update); no token baseline (off
    there). Edge: a rollout without turns is one utterance. Raises ConfigError for adapters and sharded
    weights. State: utterances (after a restart without those behind pictures of an environment), critics,
    Adam's moments.

    Attributes:
        updates: Adam steps of the critic (the sum of four mean squared errors) per step, each on `batch` of
            the drawn utterances; gradients are averaged over processes.
        warmup: Steps that train the critic alone.
    """

    state_class = Archer2State
    states: int = 768
    updates: int = 50
    batch: int = 256
    lr: float = 2e-5
    gamma: float = 0.95
    tau: float = 0.1
    max_grad_norm: float = 1.0
    warmup: int = 20
    size: int = 100_000
    provides = (UTTERANCE_ADVANTAGE,)

    def __post_init__(self) -> None:
        if min(self.states, self.updates, self.batch, self.size) < 1 or self.warmup < 0:
            raise ValueError(
                f"states={self.states}, updates={self.updates}, batch={self.batch}, size={self.size} are "
                f"at least 1, warmup={self.warmup} at least 0"
            )
        if not 0 <= self.gamma <= 1 or not 0 < self.tau <= 1 or self.lr <= 0 or self.max_grad_norm <= 0:
            raise ValueError(
                f"gamma={self.gamma} must be in [0, 1], tau={self.tau} in (0, 1], lr={self.lr} and "
                f"max_grad_norm={self.max_grad_norm} above 0"
            )

    def check(self, phase: PhaseContext) -> None:
        if UTTERANCE_ADVANTAGE not in phase.advantage.requires:
            raise ConfigError(
                f"replay: {self.name!r} trains on utterances that no reward scores, and advantage "
                f"{phase.advantage.name!r} does not ask its critic; "
                "use advantage: {name: archer_2.advantage}"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.state_sharded or run.policy.has_adapter:
            raise ConfigError(
                "replay: 'archer_2' copies the whole policy, which adapters and sharded weights do not "
                "allow; train all weights on each rank"
            )
        from vlrl.methods.common.double_critic import DoubleCritic

        state: Archer2State = self.state
        state.critic = DoubleCritic(run.policy.model, run.seed)
        state.target = copy.deepcopy(state.critic).requires_grad_(False)
        state.optimizer = torch.optim.Adam(state.critic.parameters(), lr=self.lr)

    def metrics(self) -> dict[str, float]:
        return dict(self.state.logged)

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        state, run = self.state, self.run
        if state.saved:
            state.stored.extend(unpacked(state.saved, run))
            state.saved = {}
        state.stored.extend(one for group in groups for one in transitions(group))
        while len(state.stored) > self.size:
            state.stored.popleft()
        rng = random.Random(f"{run.seed}/archer_2/{run.step}/{run.rank}")
        drawn = rng.choices(list(state.stored), k=self.states) if state.stored else []
        fresh = self.fresh(drawn, rng)
        losses = [self.update(drawn, fresh, rng) for _ in range(self.updates)]
        return self.judged(drawn, fresh, losses)

    def fresh(self, drawn: Sequence[Transition], rng: random.Random) -> list[Completion]:
        """A new utterance of the policy at the state of each drawn one."""
        run, requests = self.run, []
        stops = run.environment.stops if run.environment is not None else ()
        for place, (state, *_) in enumerate(drawn):
            sampling = run.sampling(state.prompt, 0)
            sampling = replace(
                sampling, stop=(*sampling.stop, *stops), max_tokens=state.at + sampling.max_tokens
            )
            requests.append(
                Request(state.prompt, sampling, 1, rng.getrandbits(62), tuple(state.ids[: state.at]), place)
            )
        found = (
            {completion.request.tag: completion for completion in run.engine.generate(requests)}
            if requests
            else {}
        )
        return [found[place] for place in range(len(drawn))]

    def update(self, drawn: Sequence[Transition], fresh: Sequence[Completion], rng: random.Random) -> float:
        """One step of the critic on `batch` of the drawn utterances. Returns the loss. All ranks call it."""
        run, critic, target = self.run, self.state.critic, self.state.target
        places = rng.choices(range(len(drawn)), k=self.batch) if drawn else []
        self.state.optimizer.zero_grad()
        loss = 0.0
        if places:
            chosen = [drawn[place] for place in places]
            end = run.policy.tokenizer.eos_token_id
            told = [marked(one.state, one.utterance, end) for one in chosen]
            again = [
                marked(one.state, fresh[place].ids[one.state.at :], end)
                for one, place in zip(chosen, places, strict=True)
            ]
            later = [marked(one.after or one.state, (), end) for one in chosen]
            value_2B, _ = target.values(run, again)
            _, next_2B = target.values(run, later)
            goal_2B = td_targets(
                [one.reward for one in chosen], [one.after is None for one in chosen], next_2B, self.gamma
            )
            at = {id(group): index for index, group in enumerate(told)}
            for part in run.micro_batches(told):
                where = torch.tensor([at[id(group)] for group in part], device=goal_2B.device)
                q_2B, v_2B = critic(run, part)
                error = (
                    (q_2B - goal_2B[:, where]).square() + (v_2B - value_2B[:, where]).square()
                ).sum() / len(told)
                error.backward()
                loss += float(error.detach())
        for p in critic.parameters():
            p.grad = run.sum_tensor(torch.zeros_like(p) if p.grad is None else p.grad) / run.ranks
        nn.utils.clip_grad_norm_(critic.parameters(), self.max_grad_norm)
        self.state.optimizer.step()
        soft_update(target, critic, self.tau)
        return loss

    def judged(
        self, drawn: Sequence[Transition], fresh: Sequence[Completion], losses: Sequence[float]
    ) -> list[Group]:
        """The fresh utterances as groups of one rollout with their advantages."""
        run, state = self.run, self.state
        end = run.policy.tokenizer.eos_token_id
        q_2B, v_2B = state.critic.values(
            run,
            [marked(one.state, new.ids[one.state.at :], end) for one, new in zip(drawn, fresh, strict=True)],
        )
        advantages = utterance_advantages(q_2B, v_2B).tolist()
        made = []
        for place, (one, completion, advantage) in enumerate(zip(drawn, fresh, advantages, strict=True)):
            at, prompt = one.state.at, one.state.prompt
            rollout = run.make_rollout(completion)
            rollout.text = ("" if at else prompt.prefix) + run.policy.decode(completion.ids[at:])
            rollout.loss_mask = [False] * at + [True] * (len(completion.ids) - at) if at else None
            UTTERANCE_ADVANTAGE.set(rollout, advantage if run.phase_step >= self.warmup else 0.0)
            made.append(Group(prompt, [rollout], f"{run.step}/archer_2/{prompt.row.id}/{place}"))
        numbers = {"critic_loss": statistics.fmean(losses), "transitions": float(len(state.stored))}
        if made:
            numbers |= {
                "q": float(q_2B.mean()),
                "v": float(v_2B.mean()),
                "advantage_std": statistics.pstdev(advantages),
            }
        state.logged = {f"archer_2/{name}": value for name, value in numbers.items()}
        return made


@register("archer_2.advantage")
@dataclass(frozen=True)
class Archer2Advantage(AdvantageEstimator):
    """ArCHer's advantage of an utterance: A(s, u) = min_i Q_i(s, u) - min_i V_i(s), as replay `archer_2`
    wrote it on the rollout.

    Paper: Zhou et al. 2024, arXiv:2402.19446, sec. 3.4; released code: archer/algorithms/archer/trainer.py.
    Edge: a rollout without it, which no critic has seen, gets 0. Shapes: one number per rollout.
    """

    requires = (UTTERANCE_ADVANTAGE,)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        return [[UTTERANCE_ADVANTAGE.get(rollout, 0.0) for rollout in group] for group in groups]

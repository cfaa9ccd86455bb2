"""RLoT: reinforcement learning of thoughts. A small navigator chooses, step by step, how a frozen language
model goes on with a problem.

    rlot   rollout strategy: the blocks, the navigator's choice among them, and its training

Paper: Hao et al. 2025 (RLoT), arXiv:2505.14140; checked against haohaoqian/RL-LLM-Reasoning at cf5e93a:
env/environment_simple.py, Dueling_DQN_net.py, DQN_buffer.py, PRM.py, train_Dueling_DDQN_MATH.py.

Shapes: B transitions, S = 7 scores of a state, A = 5 blocks, P = 2566 parameters of the navigator.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.beside.process import open_process_reward_model
from vlrl.methods.common.branching import run_in_rounds
from vlrl.methods.common.prompts import neutralised, with_text
from vlrl.methods.core.rollout import SampledStrategy
from vlrl.plugins.contexts import PhaseContext, SamplingContext, StageContext, StepContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import State, transient
from vlrl.services.lazy import Tensor, torch
from vlrl.types import Completion, Group, Prompt, Request, Rollout, Sampling

ASPECTS = ("A1", "A2", "A3", "B1", "B2", "C1", "C2")
BLOCKS = ("reason", "decompose", "debate", "refine", "terminate")
REASON, DECOMPOSE, DEBATE, REFINE, TERMINATE = range(5)
HIDDEN = 32
SIZES = (
    (HIDDEN, 7),
    (HIDDEN,),
    (HIDDEN, HIDDEN),
    (HIDDEN,),
    (HIDDEN, HIDDEN),
    (HIDDEN,),
    (5, HIDDEN),
    (5,),
    (1, HIDDEN),
    (1,),
)

Asked = Generator[list[Request], list[Completion], str]

EVALUATE = """\
Rate the last step of this reasoning. Each aspect gets 3 (yes), 2 (unsure), 1 (no) or 0 (does not apply):
A1: it follows from the problem as it is stated. A2: it is clear enough to build on. A3: its calculations \
are right.
B1: much is still left to reason or calculate. B2: there are several other ways to go on from here.
C1: the answer is close. C2: all that it uses is known from the problem or from earlier steps.
Write one line per aspect, like "A1 score=[3] reason=[...]", and do not go on with the reasoning."""  # noqa: E501
CHECK = "Does the last step hold the final answer of the whole problem? Write yes or no."
REASONING = "Write exactly one next step of the reasoning, and no more."
DECOMPOSITION = (
    "Split what is left to do into subtasks whose results solve the problem. Write them as '### Subtask1: "
    "...', and solve nothing yet."
)
SUBTASK = "Solve this subtask, without splitting it further:\n{subtask}"
SUMMARY = "Summarise these solved subtasks briefly, with their key results:\n{solved}\nDo not reason further."
PLANS = "Propose three different plans for the next step. Write them as '### Plan1: ...', and carry out none."
COMPARISON = (
    "Compare these plans for the next step and name the best one, as 'The most promising plan is "
    "Plan[INDEX]: [REASON]':\n{plans}"
)
PLANNED = "Write exactly one next step of the reasoning, by this plan:\n{plan}"
REFINEMENT = "Check and correct the last step, for clarity and correctness. Do not reason further."
ANSWER = "\n\nReasoning so far:\n{steps}\n\nNow give the answer."
_BEST = re.compile(r"most promising plan is plan\W*(\d{1,3})", re.IGNORECASE)


def navigator_values(weights_P: Tensor, state_BS: Tensor) -> Tensor:
    """(B, A): Q(s, a) = V(s) + G(s, a) - mean_a G(s, a) of the dueling network, whose weights are one vector.

    One hidden layer of 32 is shared, V and G have one of their own each, with ReLU; scores s from 0 to 3
    enter as (s - 1.5) / 1.5.
    """
    pieces = torch.split(weights_P, [math.prod(size) for size in SIZES])
    w1, b1, wg, bg, wv, bv, og, cg, ov, cv = (piece.view(size) for piece, size in zip(pieces, SIZES))
    shared_BH = torch.relu((state_BS - 1.5) / 1.5 @ w1.T + b1)
    gain_BA = torch.relu(shared_BH @ wg.T + bg) @ og.T + cg
    value_B1 = torch.relu(shared_BH @ wv.T + bv) @ ov.T + cv
    return value_B1 + gain_BA - gain_BA.mean(-1, keepdim=True)


def first_weights(seed: int) -> Tensor:
    """(P,): PyTorch's initialisation of linear layers, uniform within 1 / sqrt(inputs)."""
    generator, fans = torch.Generator().manual_seed(seed), [size[-1] for size in SIZES[::2] for _ in range(2)]
    pieces = [
        (torch.rand(math.prod(size), generator=generator) * 2 - 1) / fan**0.5
        for size, fan in zip(SIZES, fans)
    ]
    return torch.cat(pieces)


@dataclass
class BlockTransition:
    """A step of an episode: the scores before it, the block, its reward, whether the episode ended, and the
    scores after it."""

    state: list[float]
    action: int
    reward: float
    done: bool
    after: list[float]


def double_q_loss(
    weights_P: Tensor, target_P: Tensor, batch: Sequence[BlockTransition], gamma: float
) -> Tensor:
    """Double DQN's loss: mean over B of (Q(s, a) - y)^2, y = r + gamma Q_target(s', argmax_a' Q(s', a')), y =
    r at an end. Gradient in weights_P."""
    state_BS, after_BS = (torch.tensor([getattr(t, name) for t in batch]) for name in ("state", "after"))
    action_B1 = torch.tensor([[t.action] for t in batch])
    reward_B, going_B = (
        torch.tensor([t.reward for t in batch]),
        torch.tensor([float(not t.done) for t in batch]),
    )
    with torch.no_grad():
        best_B1 = navigator_values(weights_P, after_BS).argmax(1, keepdim=True)
        goal_B = reward_B + gamma * going_B * navigator_values(target_P, after_BS).gather(1, best_B1)[:, 0]
    return ((navigator_values(weights_P, state_BS).gather(1, action_B1)[:, 0] - goal_B) ** 2).mean()


@dataclass
class RlotState(State):
    """The navigator: weights, those of the target network, Adam's moments, the replay memory and what was
    done so far."""

    weights: Tensor
    target: Tensor
    mean: Tensor
    square: Tensor
    epsilon: float
    memory: list[list[Any]] = field(default_factory=list)  # transitions as lists of their fields
    updates: int = 0
    episodes: int = 0
    prm: Any = transient()
    new: list[list[list[Any]]] = transient(factory=list)  # this step's episodes, a list of transitions each
    logged: dict[str, float] = transient(factory=dict)

    def adam(self, gradient_P: Tensor, rate: float) -> None:
        """A step of Adam (0.9, 0.999, 1e-8) with learning rate `rate`."""
        self.updates += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient_P
        self.square = 0.999 * self.square + 0.001 * gradient_P**2
        root_P = (self.square / (1 - 0.999**self.updates)).sqrt() + 1e-8
        self.weights = self.weights - rate * self.mean / (1 - 0.9**self.updates) / root_P


@dataclass
class Navigation:
    """An episode that is over: the prompt's place, what was written, the transitions (those of blocks without
    their reward yet), and the answer."""

    steps: list[str] = field(default_factory=list)
    transitions: list[BlockTransition] = field(default_factory=list)
    answer: Completion | None = None


@register("rlot")
@dataclass(frozen=True)
class Rlot(SampledStrategy):
    """RLoT: a navigator of 2566 parameters chooses among five blocks (reason, decompose, debate, refine,
    terminate); the policy writes them.

        s = the policy's own scores (0..3) of the last step on seven aspects;  a = argmax_a Q(s, a), with
        probability epsilon any block;  r = P(right) of the new step by a process reward model; 1 or 0 for the
        answer by the row's outcome at the end

    Q is a dueling network, learned by double DQN; the policy is frozen. A rollout is the answer, sampled
    behind the steps. The first block is never refine; held-out epsilon is 0. Paper: Hao et al. 2025 (RLoT),
    arXiv:2505.14140, sec. 3; release: haohaoqian/RL-LLM-Reasoning at cf5e93a (train_Dueling_DDQN_MATH.py).
    Deviates: prompts' wording; episodes of a step share epsilon and navigator; a token classifier with two
    labels for Math-Shepherd's + and -. Edge: an unreadable score is 0; without a list of plans or
    subtasks the whole reply is one. Raises ConfigError without `prm`, or in a run that would train the
    policy.

    Attributes:
        memory: Newest transitions that are kept; once full, each step of the run makes as many updates as
            there were blocks.
        depth: Blocks at most; an episode ends also with terminate, where the policy says that the last step
            holds the final answer.
        width: Subtasks at most of decompose (0: any number): each is solved, all are summarised as one step.
    """

    prm: str = ""
    mark: str = "\n"
    depth: int = 5
    width: int = 5
    gamma: float = 0.9
    rate: float = 0.01
    rate_decay: float = 0.5
    rate_every: int = 1000
    memory: int = 500
    batch: int = 64
    epsilon: float = 1.0
    epsilon_decay: float = 0.9995
    epsilon_least: float = 0.0
    target_every: int = 50

    def __post_init__(self) -> None:
        if self.width < 0:
            raise ValueError(f"width={self.width} must not be negative; 0 is any number of subtasks")
        for name in ("depth", "rate_every", "batch", "target_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.memory < self.batch:
            raise ValueError(f"memory={self.memory} must hold at least batch={self.batch} transitions")
        if (
            not 0 <= self.epsilon_least <= self.epsilon <= 1
            or not 0 <= self.epsilon_decay <= 1
            or not 0 <= self.gamma <= 1
        ):
            raise ValueError(
                f"epsilon_least={self.epsilon_least} <= epsilon={self.epsilon}, epsilon_decay and gamma "
                "are in [0, 1]"
            )

    def init_state(self) -> RlotState:
        weights = first_weights(1)
        return RlotState(
            weights, weights.clone(), torch.zeros_like(weights), torch.zeros_like(weights), self.epsilon
        )

    def check(self, phase: PhaseContext) -> None:
        if not self.prm:
            raise ConfigError(
                "rollout: 'rlot' has no `prm`; name a process reward model: rollout.prm=PATH, a model for "
                "token classification"
            )
        if phase.advantage.trains or phase.objective.loss_terms:
            raise ConfigError(
                "rollout: 'rlot' learns to navigate a frozen policy, and this run would train it; use "
                "advantage: {name: modeltaskalign.no_update} "
                "and no loss_terms"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.prm = open_process_reward_model(self.prm, self.mark, run.policy)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        wanted = [
            (prompt, run.sampling(prompt, attempt))
            for prompt, count in zip(prompts, counts, strict=True)
            for attempt in range(count)
        ]
        navigations = self.navigations(wanted, self.state.epsilon, run)
        groups, members = [Group(prompt, []) for prompt in prompts], iter(navigations)
        made: list[tuple[Navigation, Rollout]] = []
        for group, count in zip(groups, counts, strict=True):
            made += [(one, self.rollout_of(one, run)) for one in [next(members) for _ in range(count)]]
            group.rollouts += [rollout for _, rollout in made[len(made) - count :]]
        run.score(groups)
        scored = {id(rollout) for group in groups for rollout in group}
        known = [(one, rollout) for one, rollout in made if id(rollout) in scored]
        steps = self.state.prm.scores([(rollout.prompt.row.question, one.steps) for one, rollout in known])
        for (one, rollout), scores in zip(known, steps, strict=True):
            for transition, score in zip(one.transitions, scores):
                transition.reward = (score + 1) / 2
            one.transitions[-1].reward = float(rollout.correct)
            self.state.new.append([[t.state, t.action, t.reward, t.done, t.after] for t in one.transitions])
        return groups

    def play(
        self, prompts: Sequence[Prompt], samplings: Sequence[Sampling], run: SamplingContext
    ) -> list[list[Rollout] | str] | None:
        return [
            [self.rollout_of(one, run)]
            for one in self.navigations(list(zip(prompts, samplings, strict=True)), 0.0, run)
        ]

    @staticmethod
    def rollout_of(navigation: Navigation, run: SamplingContext) -> Rollout:
        """The answer as a rollout."""
        assert navigation.answer is not None
        return run.make_rollout(navigation.answer)

    # --- an episode -----------------------------------------------------------------------------------------

    def navigations(
        self, wanted: Sequence[tuple[Prompt, Sampling]], epsilon: float, run: SamplingContext
    ) -> list[Navigation]:
        """One episode per prompt; they advance together, so that each round of requests is one call of the
        engine."""
        searches = {
            place: self.navigate(_Writer(self, prompt, sampling, run), epsilon)
            for place, (prompt, sampling) in enumerate(wanted)
        }
        found = run_in_rounds(run, searches)
        return [found[place] for place in range(len(wanted))]

    def navigate(
        self, writer: _Writer, epsilon: float
    ) -> Generator[list[Request], list[Completion], Navigation]:
        """An episode."""
        made, draw = Navigation(writer.steps), random.Random(writer.seed())
        state = yield from writer.scores()
        while made.answer is None:
            action = self.choose(state, epsilon, draw)
            action = REASON if action == REFINE and not made.transitions else action
            after = state
            done = action == TERMINATE or len(writer.steps) >= self.depth
            if not done:
                text = yield from (writer.reason, writer.decompose, writer.debate, writer.refine)[action]()
                writer.steps.append(text)
                after = yield from writer.scores()
                done = "yes" in (yield from writer.ask(CHECK)).lower()
            if done:
                (made.answer,) = yield [writer.final()]
            made.transitions.append(BlockTransition(state, action, 0.0, done, after))
            state = after
        return made

    def choose(self, state: Sequence[float], epsilon: float, draw: random.Random) -> int:
        """The block with the highest Q, or with probability `epsilon` any block."""
        if draw.random() < epsilon:
            return draw.randrange(len(BLOCKS))
        return int(navigator_values(self.state.weights, torch.tensor([list(state)]))[0].argmax())

    # --- learning -------------------------------------------------------------------------------------------

    def end_step(self, run: StepContext) -> None:
        state: RlotState = self.state
        episodes = run.gather_and_clear(state.new)
        losses, rewards = [], [transition[2] for episode in episodes for transition in episode]
        for episode in episodes:
            for transition in episode:
                state.memory = [*state.memory, transition][-self.memory :]
                state.epsilon = max(self.epsilon_least, state.epsilon * self.epsilon_decay)
                losses += [self.learn(run.seed)] if len(state.memory) >= self.memory else []
            state.episodes += 1
        state.logged = {
            "episodes": len(episodes),
            "blocks": len(rewards),
            "reward": math.fsum(rewards),
            "loss": math.fsum(losses),
            "learned": len(losses),
        }

    def learn(self, seed: int) -> float:
        """One update by a batch of the memory; the target network is renewed every `target_every` updates.
        Returns the loss."""
        state: RlotState = self.state
        drawn = random.Random(f"{seed}/rlot/{state.updates}").sample(state.memory, self.batch)
        weights = state.weights.detach().requires_grad_(True)
        loss = double_q_loss(
            weights, state.target, [BlockTransition(*values) for values in drawn], self.gamma
        )
        (gradient,) = torch.autograd.grad(loss, weights)
        state.adam(gradient, self.rate * self.rate_decay ** (state.episodes // self.rate_every))
        if state.updates % self.target_every == 0:
            state.target = state.weights.clone()
        return float(loss.detach())

    def metrics(self) -> Mapping[str, float]:
        logged = self.state.logged
        made = {"rlot/epsilon": self.state.epsilon, "rlot/updates": float(self.state.updates)}
        of = {"blocks": "episodes", "reward": "blocks", "loss": "learned"}
        return made | {
            f"rlot/{name}": logged[name] / logged[total] for name, total in of.items() if logged.get(total)
        }


class _Writer:
    """The policy's part of an episode: what it is asked, and the steps that it has written."""

    def __init__(self, strategy: Rlot, prompt: Prompt, sampling: Sampling, run: SamplingContext) -> None:
        self.strategy, self.prompt, self.sampling, self.run = strategy, prompt, sampling, run
        self.steps: list[str] = []

    def seed(self) -> int:
        """A seed of the run for this prompt, another one at each call."""
        return self.strategy.seeds(self.run, self.prompt)

    @property
    def written(self) -> str:
        """The steps, numbered."""
        return "\n".join(f"Step {number}: {text}" for number, text in enumerate(self.steps, 1))

    def ask(self, text: str) -> Asked:
        """The policy's reply to the problem, the steps so far and a text."""
        prompt, so_far = self.prompt, f"\nSteps so far:\n{self.written}" if self.steps else ""
        media = [{"type": medium.kind} for medium in (*prompt.images, *prompt.videos)]
        content = [*media, {"type": "text", "text": f"Problem: {prompt.row.question}{so_far}\n\n{text}"}]
        asked = Prompt(
            row=prompt.row,
            messages=({"role": "user", "content": content},),
            images=prompt.images,
            videos=prompt.videos,
        )
        (completion,) = yield [Request(asked, self.sampling, 1, self.seed())]
        return neutralised(str(completion.text))

    def final(self) -> Request:
        """The request for the answer: the row's own prompt, with the steps behind it."""
        prompt = with_text(self.prompt, ANSWER.format(steps=self.written)) if self.steps else self.prompt
        return Request(prompt, self.sampling, 1, self.seed())

    def scores(self) -> Generator[list[Request], list[Completion], list[float]]:
        """The policy's scores of the last step on the seven aspects."""
        return read_scores((yield from self.ask(EVALUATE)))

    def reason(self) -> Asked:
        """One step."""
        return (yield from self.ask(REASONING))

    def refine(self) -> Asked:
        """The last step, corrected."""
        return (yield from self.ask(REFINEMENT))

    def decompose(self) -> Asked:
        """Subtasks, solved one after another, as one step."""
        subtasks = listed((yield from self.ask(DECOMPOSITION)))[: self.strategy.width or None]
        solved = ""
        for subtask in subtasks:
            before = f"Solved so far:{solved}\n" if solved else ""
            reply = yield from self.ask(before + SUBTASK.format(subtask=subtask))
            solved += f"\n{subtask}\n{reply}"
        return (yield from self.ask(SUMMARY.format(solved=solved)))

    def debate(self) -> Asked:
        """A step by the plan that the policy finds best."""
        plans = listed((yield from self.ask(PLANS)))
        best = _BEST.findall((yield from self.ask(COMPARISON.format(plans="\n".join(plans)))))
        place = int(best[0]) - 1 if best else 0
        plan = re.sub(r"^Plan\s*\d+:\s*", "", plans[place if 0 <= place < len(plans) else 0])
        reply = yield from self.ask(PLANNED.format(plan=plan))
        return f"Plan: {plan}\n{reply}"


def read_scores(text: str) -> list[float]:
    """The score of each aspect, 0 to 3, as in "A1 score=[3]"; 0 where none can be read."""
    found = [re.search(rf"{aspect}[\s:=\[\]A-Za-z]{{0,40}}([0-3])", text) for aspect in ASPECTS]
    return [float(match[1]) if match is not None else 0.0 for match in found]


def listed(text: str) -> list[str]:
    """The parts of a text between '### ', also the one before the first, those of at most 10 characters left
    out; the whole text without any."""
    parts = [part.strip() for part in text.split("### ")]
    return [part for part in parts if len(part) > 10] or [text]

"""RL Tango: a generator and a generative verifier of its steps are trained in turns, each by reinforcement.

    rl_tango            reward shaping: the verifier's verdict on each step of a rollout, as step scores
    rl_tango.mixed      advantage: outcome and steps, each normalised in its group, mixed by a falling weight
    rl_tango.verifier   callback: trains the verifier on whether its verdict on the answer is right

Paper: Zha et al. 2025 (RL Tango), arXiv:2505.15034; checked against kaiwenzha/RL-Tango @ 411ed834.

Shapes: B chains, T tokens.
"""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlrl.beside.service import ModelAsk
from vlrl.functional.exact import centred, std
from vlrl.methods.common.step_scores import STEP_SCORES, steps_of
from vlrl.methods.common.verification_chains import Verification, read_verification, verification_prompt
from vlrl.methods.core.advantage import GRPO, GroupRelative, set_token_advantages
from vlrl.methods.core.critic import CriticState
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import CallbackContext, PhaseContext, StageContext
from vlrl.plugins.registry import ConfigError, build, register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, Callback, Engine, RewardShaping, StepCounts
from vlrl.services.lazy import nn, torch
from vlrl.types import Group, Prompt, Request, Rollout, Sampling

VERIFIER = Capability("rl_tango.verifier", hint="reward_shaping: {steps: {name: rl_tango}}")


@dataclass
class TangoVerifier:
    """The verifier: a model of the policy's architecture, a view that runs it, and what samples from it."""

    module: Any
    view: Any
    engine: Any
    sampling: Sampling
    delimiter: str

    def prompt(self, rollout: Rollout, steps: Sequence[str]) -> Prompt:
        """What it is asked about a rollout; it sees the pictures of the prompt."""
        asked, shown = rollout.prompt, verification_prompt(rollout.row.question, steps)
        row = replace(rollout.row, id=f"{rollout.row.id}/verify", question=shown, target="")
        messages = ModelAsk(shown, images=asked.images, videos=asked.videos).messages()
        return Prompt(row, messages, asked.images, asked.videos)

    def chains(self, run: StageContext, rollouts: Sequence[Rollout], n: int) -> list[list[Rollout]]:
        """`n` chains about each rollout; none about one without text."""
        requests = []
        for place, rollout in enumerate(rollouts):
            steps = [text for _, text in steps_of(rollout, run.policy, self.delimiter)]
            if steps:
                seed = zlib.crc32(f"tango {run.seed} {run.step} {rollout.row.id} {rollout.text}".encode())
                requests.append(
                    Request(self.prompt(rollout, steps), self.sampling, n, seed, tag=(place, len(steps)))
                )
        found: list[list[Rollout]] = [[] for _ in rollouts]
        for completion in self.engine.generate(requests):
            found[completion.request.tag[0]].append(run.make_rollout(completion))
        return found


def tango_verifier(run: StageContext, make: Any = None) -> TangoVerifier:
    """The run's verifier. Raises ConfigError where no plug-in has made it."""

    def missing() -> TangoVerifier:
        raise ConfigError(f"callbacks: 'rl_tango.verifier' trains the verifier of {VERIFIER.hint}; add that")

    return run.shared("rl_tango", make or missing)


@register("rl_tango")
@dataclass(frozen=True, kw_only=True)
class RlTango(RewardShaping):
    """Tango's step rewards: the verifier says of each step whether it is right; +1/K or -1/K for each of K
    steps, as STEP_SCORES. Rewards are unchanged.

    The verifier begins as a copy of the policy; one chain a rollout, sampled with `temperature`. A step ends
    with `delimiter`. Paper: Zha et al. 2025 (RL Tango), arXiv:2505.15034, sec. 3. Deviates: the words are
    ours. Edge: a chain that cannot be read gives no step scores, and is counted. Memory: a second model, with
    its optimizer where the callback trains it.
    """

    state_class = StepCounts
    delimiter: str = "\n\n"
    temperature: float = 1.0
    max_tokens: int = 1024
    engine: Mapping[str, Any] = field(default_factory=lambda: {"name": "hf"})
    provides = (STEP_SCORES, VERIFIER)

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.state_sharded or run.policy.has_adapter:
            raise ConfigError(
                "reward_shaping: 'rl_tango' copies the whole policy, which adapters and sharded weights do "
                "not allow; train all weights, under DDP"
            )
        tango_verifier(run, lambda: self.opened(run))

    def opened(self, run: StageContext) -> TangoVerifier:
        """A verifier with the policy's weights."""
        module = copy.deepcopy(run.policy.model).requires_grad_(True)
        view = run.policy.with_model(module)
        engine: Any = build(Engine, self.engine, "reward_shaping: 'rl_tango': engine")
        engine.setup(run)
        if hasattr(engine, "attach"):
            engine.attach(view)
        sampling = Sampling(temperature=self.temperature, max_tokens=self.max_tokens)
        return TangoVerifier(module, view, engine, sampling, self.delimiter)

    def __call__(self, group: Group) -> list[float]:
        verifier = tango_verifier(self.run)
        for rollout, chains in zip(group, verifier.chains(self.run, group.rollouts, 1), strict=True):
            ends = [end for end, _ in steps_of(rollout, self.run.policy, self.delimiter)]
            read = read_verification(chains[0].text, len(ends)).steps if chains else None
            self.state.add(chains=len(chains), unread=bool(chains) and read is None)
            values = [(1.0 if right else -1.0) / len(ends) for right in read or ()]
            STEP_SCORES.set(rollout, list(zip(ends, values)))
        return group.rewards

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        return {"rl_tango/unread": self.state.share("unread", "chains")}


@register("rl_tango.mixed")
@dataclass(frozen=True)
class RlTangoMixed(GroupRelative):
    """Tango's advantage of the generator, per token: outcome and steps, each normalised in its group.

        A_i,t = (1 - a) (o_i - mean o) / std o + a sum_k (s_i,k - mean s) / std s,  k ends at t or later

    o is the reward, s are the step scores of all steps of the group, std divides by n - 1; a falls from
    `start` towards `end`, which it would reach behind the phase's last step, by the same factor each step.
    Paper: Zha et al. 2025 (RL Tango), arXiv:2505.15034, sec. 3; released code @ 411ed834: core_algos.py,
    compute_grpo_advantage, and rl_tango_trainer.py, get_alpha. Edge: a rollout without step scores has the
    outcome's part alone; a single step of a group is not normalised.
    """

    start: float = 0.1
    end: float = 0.001
    eps: float = 1e-6
    provides = (TOKEN_ADVANTAGES,)
    requires = (STEP_SCORES,)

    def __post_init__(self) -> None:
        if not 0 < self.end <= self.start <= 1:
            raise ValueError(f"start={self.start} and end={self.end}: expected 0 < end <= start <= 1")

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        check_token_credit(phase, self.name)

    def share(self) -> float:
        """a at this step."""
        done = self.run.phase_step / max(1, self.run.settings.steps)
        return self.start * (self.end / self.start) ** min(1.0, done)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        a, rows = self.share(), []
        for group, outcomes in zip(groups, GRPO(eps=self.eps)(groups), strict=True):
            for rollout, outcome, steps in zip(group, outcomes, self.normalised(group), strict=True):
                row, start = [], 0
                for place, (end, _) in enumerate(steps):
                    left = math.fsum(value for _, value in steps[place:])
                    row += [(1 - a) * outcome + a * left] * (end - start)
                    start = end
                rows.append([*row, *[(1 - a) * outcome] * (len(rollout) - start)])
        return set_token_advantages(groups, rows)

    def normalised(self, group: Group) -> list[list[tuple[int, float]]]:
        """(end, normalised score) of the steps of each rollout."""
        steps = [STEP_SCORES.get(rollout, []) for rollout in group]
        flat = [score for own in steps for _, score in own]
        values = iter(centred(flat, std(flat) + self.eps) if len(flat) > 1 else flat)
        return [[(end, next(values)) for end, _ in own] for own in steps]


@dataclass
class TangoVerifierState(CriticState):
    """The verifier and its optimizer, and running counts of the right and the wrong rollouts."""

    seen: tuple[float, float] | None = None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seen": self.seen}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        seen = values.get("seen")
        self.seen = None if seen is None else (seen[0], seen[1])
        super().load_state_dict({key: value for key, value in values.items() if key != "seen"})


@register("rl_tango.verifier")
@dataclass(frozen=True)
class RlTangoVerifier(Callback):
    """Tango's verifier updates: after every `every` steps of the generator, `updates` steps of the verifier
    on the rollouts of that step.

        r = 1[its verdict on the answer is the outcome] + `form` F,  F = max(0, 1 - .8 [no verdict] - .8 [not
        one for each step]),  A = w (r - mean r) / std r over `samples` chains,  L = - sum A log p / tokens
        w = 1 / sqrt(running count of the rollouts with this outcome), of mean 1 (`balance`; `decay`)

    No step labels are read. AdamW without weight decay. Paper: Zha et al. 2025 (RL Tango), arXiv:2505.15034,
    sec. 3; released code @ 411ed834: run_rl_tango.sh, format.py, rl_tango_trainer.py:679-905. Deviates: KL,
    entropy bonus and the verifier's warm-up of 40 steps before the first of the generator are left out. Logs
    accuracy and unread verdicts of the verifier, and its updates.
    """

    state_class = TangoVerifierState
    every: int = 3
    updates: int = 1
    samples: int = 5
    lr: float = 1e-6
    clip: float = 1.0
    eps: float = 1e-6
    balance: bool = True
    form: float = 0.8
    decay: float = 0.8
    requires = (VERIFIER,)

    def __post_init__(self) -> None:
        if min(self.every, self.updates) < 1 or self.samples < 2:
            raise ValueError(
                f"every={self.every} and updates={self.updates} must be at least 1, samples={self.samples} 2"
            )
        if not 0 <= self.decay < 1 or self.form < 0:
            raise ValueError(f"decay={self.decay} must be in [0, 1), form={self.form} 0 or more")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.module = tango_verifier(run).module
        self.state.optimizer = torch.optim.AdamW(self.state.module.parameters(), lr=self.lr, weight_decay=0.0)

    def __call__(self, run: CallbackContext, groups: Sequence[Group]) -> dict[str, tuple[float, float]]:
        if (run.phase_step + 1) % self.every:
            return {}
        right = unread = count = 0.0
        for _ in range(self.updates):
            made = self.sampled(run)
            self.update(run, made)
            for group in made:
                right += sum(rollout.correct for rollout in group)
                unread += sum(rollout.outcome is None for rollout in group)
                count += len(group)
        return {
            "accuracy": (right, count),
            "unread": (unread, count),
            "updates": (float(self.updates), 0.0),
        }

    def sampled(self, run: CallbackContext) -> list[Group]:
        """Chains about this rank's rollouts, with rewards and advantages."""
        rollouts = [rollout for group in run.groups for rollout in group]
        right = sum(run.gather([sum(rollout.correct for rollout in rollouts)]))
        weights = self.weights(right, sum(run.gather([len(rollouts)])) - right)
        groups = []
        verifier = tango_verifier(run)
        for rollout, chains in zip(rollouts, verifier.chains(run, rollouts, self.samples), strict=True):
            if not chains:
                continue
            steps = len(steps_of(rollout, run.policy, verifier.delimiter))
            for chain in chains:
                said = read_verification(chain.text, steps)
                chain.outcome = None if said.verdict is None else float(said.verdict)
                chain.correct = said.verdict == rollout.correct
                chain.reward = float(chain.correct) + self.form * form_of(said)
            group = Group(chains[0].prompt, chains)
            for chain, (advantage,) in zip(chains, zip(*GRPO(eps=self.eps)([group]), strict=True)):
                chain.advantage = weights[rollout.correct] * advantage
            groups.append(group)
        return groups

    def weights(self, right: int, wrong: int) -> dict[bool, float]:
        """The weight of a chain about a right and about a wrong rollout, of mean 1 over the rollouts."""
        if not self.balance or not right + wrong:
            return {True: 1.0, False: 1.0}
        old, decay = self.state.seen or (float(right), float(wrong)), self.decay
        self.state.seen = (
            decay * old[0] + (1 - decay) * right,
            decay * old[1] + (1 - decay) * wrong,
        )
        of_right, of_wrong = (1 / (math.sqrt(count) + 1e-6) for count in self.state.seen)
        scale = (right + wrong) / (right * of_right + wrong * of_wrong)
        return {True: scale * of_right, False: scale * of_wrong}

    def update(self, run: CallbackContext, groups: Sequence[Group]) -> None:
        """One update of the verifier; a collective."""
        module, view = self.state.module, tango_verifier(run).view
        own = [group for group in groups if any(rollout.advantage for rollout in group)]
        tokens = sum(run.gather([sum(len(rollout) for group in groups for rollout in group)]))
        if not sum(run.gather([len(own)])):
            return
        self.state.optimizer.zero_grad()
        for part in run.micro_batches(own):
            batch = run.batch(part)
            logp_BT = view.forward(batch)["logp"]
            advantage_B = torch.tensor([r.advantage for r in batch.rollouts], device=logp_BT.device)
            (-(logp_BT * advantage_B[:, None]).sum() / tokens).backward()
        for p in module.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            p.grad = run.sum_tensor(p.grad)
        nn.utils.clip_grad_norm_(module.parameters(), self.clip)
        self.state.optimizer.step()
        tango_verifier(run).engine.sync(view)


def form_of(said: Verification) -> float:
    """How far a chain has the form: 1 less 0.8 for no verdict on the answer, and for not one on each step."""
    return max(0.0, 1.0 - 0.8 * (said.verdict is None) - 0.8 * (said.steps is None))

"""x1: a tree of reasoning steps, searched with a value model, gives the process rewards that train both the
policy and that model.

    x1              rollout strategy: the search; a group are the ends of its paths
    x1.advantages   advantage per token: how much better a step is than what stood before it

With callback `critic_model` the value model learns the tree's values, and `guided` searches read it.
Paper: Besta et al. 2025 (Reasoning Language Models: A Blueprint), arXiv:2501.11223, sec. 4-5 and app. C;
spcl/x1 at 8249af6: x1/strategy/mcts.py, x1/server/policy_server/policy_trainer.py,
x1/server/value_server/value_trainer.py.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from vlrl.functional.exact import mean
from vlrl.methods.common.branching import branch_request, branch_rollout, run_in_rounds
from vlrl.methods.core.critic import RETURNS, VALUE_CRITIC_MODEL, value_model
from vlrl.methods.core.rollout import Independent
from vlrl.methods.core.token_credit import check_token_credit
from vlrl.plugins.capabilities import Annotation, Capability
from vlrl.plugins.contexts import PhaseContext, SamplingContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import TOKEN_ADVANTAGES, AdvantageEstimator, StepCounts
from vlrl.services.lazy import torch
from vlrl.types import Completion, Group, Prompt, Request, Rollout

TREE_VALUES: Annotation[list] = Annotation(
    "x1.values",
    list,
    hint="rollout: {name: x1}",
    doc="per token: (value of the step that it belongs to, value of what stood before that step)",
)


@dataclass(eq=False)
class ReasoningNode:
    """A step of a solution. `rollout` is the solution up to its end, `q` its value in [-1, 1]; `ended`: the
    solution ends here."""

    rollout: Rollout
    parent: ReasoningNode | None = None
    depth: int = 0
    q: float = 0.0
    visits: int = 0
    ended: bool = False
    children: list[ReasoningNode] = field(default_factory=list)

    @property
    def path(self) -> list[ReasoningNode]:
        """The steps from the first to this one."""
        return [*self.parent.path, self] if self.parent is not None else []

    @property
    def open(self) -> bool:
        """Whether a step below this one can still be expanded."""
        return not self.ended and (not self.children or any(child.open for child in self.children))

    def ends(self) -> list[ReasoningNode]:
        """The ends at or below this step, in order."""
        own = [self] if self.ended else []
        return own + [end for child in self.children for end in child.ends()]


def selection_scores(node: ReasoningNode, low: float, high: float, c1: float, c2: float) -> list[float]:
    """mcts.py: q scaled to [0, 1] by the least and largest value of the tree, plus
    sqrt(N - 1) / (1 + N_c) (c1 + ln((N + c2) / c2))."""
    above = node.visits
    width = high - low
    factor = math.sqrt(max(above - 1, 0)) * (c1 + math.log((above + c2) / c2))
    return [
        ((child.q - low) / width if width > 0 else child.q) + factor / (1 + child.visits)
        for child in node.children
    ]


def back_up_values(node: ReasoningNode | None, gamma: float, rate: float) -> None:
    """mcts.py: from a node to the root, q <- (1 - rate) q + rate sum_c N_c gamma q_c / sum_c N_c, N <- N + 1,
    over its children c."""
    while node is not None:
        count = sum(child.visits for child in node.children)
        if count:
            value = math.fsum(child.visits * gamma * child.q for child in node.children) / count
            node.q = (1 - rate) * node.q + rate * value
        node.visits += 1
        node = node.parent


@register("x1")
@dataclass(frozen=True)
class X1(Independent):
    """x1's search: `iterations` walks from the prompt to an unexpanded step, which gets `children` next
    steps; the group are the ends that were found, at most group_size of them, those of distinct texts first.

    A step ends behind `delimiter`. An end has the value 1 (correct) or -1; another new step alpha (mean of
    `simulations` samples to the end) + (1 - alpha) (the value model, with `guided`). TREE_VALUES has the
    values after the search. Paper: arXiv:2501.11223, app. C.1; mcts.py (defaults: 2 children, gamma .96, c1
    1.25, c2 19652, rate 1). Deviates: a walk goes around steps below which all has ended; without an end the
    prompt gives an empty group. Logs steps and ends.

    Attributes:
        depth: Steps of a solution; a longer one ends there.
        alpha: Weight of the simulations; 1 without `guided`.
    """

    state_class = StepCounts
    iterations: int = 16
    children: int = 2
    depth: int = 16
    delimiter: str = "\n\n"
    gamma: float = 0.96
    rate: float = 1.0
    c1: float = 1.25
    c2: float = 19652.0
    simulations: int = 0
    alpha: float = 0.5
    guided: bool = True
    provides = (TREE_VALUES,)

    def __post_init__(self) -> None:
        if min(self.iterations, self.children, self.depth) < 1 or not self.delimiter:
            raise ConfigError(
                f"rollout: 'x1': iterations={self.iterations}, children={self.children} and "
                f"depth={self.depth} must be at least 1, and delimiter a text"
            )
        if not (0 < self.gamma <= 1 and 0 < self.rate <= 1 and 0 <= self.alpha <= 1):
            raise ConfigError(
                f"rollout: 'x1': gamma={self.gamma}, rate={self.rate} and alpha={self.alpha} are shares"
            )
        if not self.guided and self.simulations < 1:
            raise ConfigError(
                "rollout: 'x1' values new steps by nothing; set simulations: 1 or more, or guided: true"
            )

    @property
    def requires(self) -> tuple[Capability, ...]:
        return (VALUE_CRITIC_MODEL,) if self.guided else ()

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        searches = {
            place: self.search(prompt, run)
            for place, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
            if count
        }
        trees = run_in_rounds(run, searches)
        return [
            Group(prompt, self.solutions(trees[place], count) if place in trees else [])
            for place, (prompt, count) in enumerate(zip(prompts, counts))
        ]

    def search(
        self, prompt: Prompt, run: SamplingContext
    ) -> Generator[list[Request], list[Completion], ReasoningNode]:
        """Yields requests, is sent completions, returns the root."""
        root = ReasoningNode(Rollout(prompt, []), visits=1)
        limit = run.sampling(prompt, 0)
        steps = replace(limit, stop=(*limit.stop, self.delimiter))
        for _ in range(self.iterations):
            if not root.open:
                break
            node = self.selected(root)
            seed = self.seeds(run, prompt)
            completions = yield [branch_request(node.rollout, len(node.rollout), steps, seed, self.children)]
            going_on = self.expand(node, completions, limit.max_tokens, run)
            simulated: dict[int, list[Completion]] = {}
            if self.simulations and going_on:
                requests = [
                    branch_request(child.rollout, len(child.rollout), limit, seed, self.simulations)
                    for child in going_on
                ]
                found = yield requests
                for place in range(len(going_on)):
                    begin = place * self.simulations
                    simulated[place] = found[begin : begin + self.simulations]
            self.evaluate(going_on, simulated, run)
            back_up_values(node, self.gamma, self.rate)
        return root

    def selected(self, root: ReasoningNode) -> ReasoningNode:
        """The step to expand: from the root the open child of the highest score, the first of equals."""
        values = [q for q in _values(root)]
        low, high, node = min(values), max(values), root
        while node.children:
            scores = selection_scores(node, low, high, self.c1, self.c2)
            ranked = [(score, child) for score, child in zip(scores, node.children) if child.open]
            node = max(ranked, key=lambda entry: entry[0])[1]
        return node

    def expand(
        self,
        node: ReasoningNode,
        completions: Sequence[Completion],
        most: int,
        run: SamplingContext,
    ) -> list[ReasoningNode]:
        """Add the next steps to a node, score those that end, and return those that go on. Ends that could
        not be scored are dropped."""
        ended: list[ReasoningNode] = []
        going_on: list[ReasoningNode] = []
        eos = run.policy.tokenizer.eos_token_id
        for completion in completions:
            rollout = branch_rollout(run, completion, node.rollout, len(node.rollout), trained=True)
            child = ReasoningNode(rollout, node, node.depth + 1, visits=1)
            own = [token for token in rollout.ids[len(node.rollout) :] if token != eos]
            goes_on = run.policy.decode(own).endswith(self.delimiter) and bool(own)
            child.ended = not goes_on or child.depth >= self.depth or len(rollout) >= most
            if not child.ended and rollout.ids[-1] == eos:
                _without_last(rollout)
            (ended if child.ended else going_on).append(child)
        judged = Group(node.rollout.prompt, [child.rollout for child in ended])
        run.score([judged])
        scored = {id(rollout) for rollout in judged}
        ended = [child for child in ended if id(child.rollout) in scored]
        for child in ended:
            child.q = 1.0 if child.rollout.correct else -1.0
        node.children = [*going_on, *ended]
        node.ended = not node.children  # nothing below it could be scored
        self.state.add(steps=len(node.children), ends=len(ended))
        return going_on

    def evaluate(
        self,
        nodes: Sequence[ReasoningNode],
        simulated: dict[int, list[Completion]],
        run: SamplingContext,
    ) -> None:
        """The values of new steps that go on."""
        if not nodes:
            return
        told = model_values(nodes, run) if self.guided else [0.0] * len(nodes)
        weight = (self.alpha if self.guided else 1.0) if self.simulations else 0.0
        for place, (node, value) in enumerate(zip(nodes, told, strict=True)):
            group = Group(
                node.rollout.prompt,
                [
                    branch_rollout(run, completion, node.rollout, len(node.rollout), trained=True)
                    for completion in simulated.get(place, ())
                ],
            )
            run.score([group])
            reached = mean([1.0 if rollout.correct else -1.0 for rollout in group]) if len(group) else 0.0
            node.q = (1 - weight) * value + weight * reached

    def solutions(self, root: ReasoningNode, count: int) -> list[Rollout]:
        """The ends of the tree as rollouts with their TREE_VALUES: distinct texts first, in order."""
        ends = [end for end in root.ends() if end is not root and end.q in (-1.0, 1.0)]
        first: dict[str, ReasoningNode] = {}
        for end in ends:
            first.setdefault(end.rollout.text, end)
        chosen = [*first.values(), *(end for end in ends if first[end.rollout.text] is not end)][:count]
        for end in chosen:
            values: list[tuple[float, float]] = []
            for node in end.path:
                before = node.parent.q if node.parent is not None else 0.0
                values += [(node.q, before)] * (len(node.rollout) - len(values))
            TREE_VALUES.set(end.rollout, values)
        return [end.rollout for end in chosen]

    def metrics(self) -> dict[str, tuple[float, float]]:
        return {**self.state.totals("x1", "steps", "ends")}


def _values(node: ReasoningNode) -> list[float]:
    """The values of a node and of all below it."""
    return [node.q] + [value for child in node.children for value in _values(child)]


def _without_last(rollout: Rollout) -> None:
    """Drop the last token, an EOS that an engine wrote behind a stop text."""
    for name in ("ids", "logp", "loss_mask", "sampled_mask", "top_logprobs"):
        values = getattr(rollout, name)
        setattr(rollout, name, None if values is None else values[:-1])
    for name in ("version", "temperature"):
        if isinstance(value := getattr(rollout, name), list):
            setattr(rollout, name, value[:-1])


def model_values(nodes: Sequence[ReasoningNode], run: SamplingContext) -> list[float]:
    """What the value model says behind the last token of each step, within [-1, 1]."""
    eos = run.policy.tokenizer.eos_token_id  # read before it: the state after the last token
    rollouts = [
        Rollout(
            node.rollout.prompt,
            [*node.rollout.ids, eos],
            logp=[0.0] * (len(node.rollout) + 1),
            loss_mask=[*[False] * len(node.rollout), True],
        )
        for node in nodes
    ]
    groups = [Group(rollout.prompt, [rollout]) for rollout in rollouts]
    with torch.no_grad():
        values = value_model(run).values(run.policy, run.batch(groups)).sum(-1)
    return [min(max(value, -1.0), 1.0) for value in values.tolist()]


@register("x1.advantages")
@dataclass(frozen=True)
class X1Advantages(AdvantageEstimator):
    """x1's process supervision: A_t = gamma q(step of t) - q(what stood before it), with the tree's values.

    RETURNS, which callback `critic_model` regresses on, are the values q of the steps. With rate 1 the
    advantages of the steps below one node, weighted by their visits, sum to 0. Paper: Besta et al. 2025,
    arXiv:2501.11223, sec. 4.3 and app. C.3 (advantages from the values of the tree; the release takes them
    from its data files). gamma is that of the search. Edge: a rollout without TREE_VALUES has 0.
    """

    gamma: float = 0.96
    needs = ("model_value",)
    provides = (TOKEN_ADVANTAGES, RETURNS)
    requires = (TREE_VALUES,)

    def check(self, phase: PhaseContext) -> None:
        check_token_credit(phase, self.name)

    def __call__(self, groups: Sequence[Group]) -> list[list[float]]:
        out = []
        for group in groups:
            rows = []
            for rollout in group:
                pairs = TREE_VALUES.get(rollout, [(0.0, 0.0)] * len(rollout))
                row = [self.gamma * q - before for q, before in pairs]
                TOKEN_ADVANTAGES.set(rollout, row)
                RETURNS.set(rollout, [q for q, _ in pairs])
                rows.append(mean(row) if row else 0.0)
            out.append(rows)
        return out

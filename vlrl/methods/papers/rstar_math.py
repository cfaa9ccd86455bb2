"""rStar-Math: a tree of steps whose Python must run gives both the solutions to imitate and the pairs of
steps from which a process preference model learns; the model then guides the next trees.

    rstar_math       rollout strategy: the search; its best right solutions are the group
    rstar_math.ppm   callback: trains the process preference model on the step's pairs

Paper: Guan et al. 2025 (rStar-Math), arXiv:2501.04519, sec. 3; microsoft/rStar, branch rStar-math at
b3c18461: rstar_deepthink/agents/mcts.py, nodes/mcts_node.py, extra_rm_file.py, train/sample_rm_data.py,
train/sample_sft_data.py, train/rm.py:232-254, config/sft_sample_mcts.yaml.

Shapes: B rollouts, T completion tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from rapidfuzz.distance import Levenshtein

from vlrl.methods.common.branching import (
    branch_request,
    branch_rollout,
    one_if_equal,
    per_token,
    run_in_rounds,
)
from vlrl.methods.core.critic import CriticState, value_model
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import CallbackContext, PhaseContext, SamplingContext, StageContext
from vlrl.plugins.registry import ConfigError, home_of, register
from vlrl.plugins.stages import Callback, Reward, StepCounts
from vlrl.services.lazy import nn, torch
from vlrl.types import Completion, Group, Prompt, Request, Rollout

STEP_END, CODE, CODE_END, ANSWER_END = "<end_of_step>", "<code>", "</code>", "</answer>"
STOPS = (STEP_END, CODE_END, ANSWER_END)
OUTPUT = "\n<output>\n{output}\n</output>\n"
MAX_OUTPUT = 1024  # characters of a program's output that are shown: python_tool.py's max_length
BLOCK = re.compile(r"<code>(.*?)(?:</code>|$)", re.DOTALL)
PPM = Capability("rstar_math.ppm", hint="callbacks: {ppm: {name: rstar_math.ppm}}")
PAIRS = Capability("rstar_math.pairs", hint="rollout: {name: rstar_math}")

End = Literal["", "right", "wrong", "error", "invalid"]


def program_of(text: str) -> str:
    """The code of a solution so far: all its blocks, the open one too, without the marks of steps."""
    return "\n".join(block.replace(STEP_END, "\n") for block in BLOCK.findall(text)).strip()


@dataclass(eq=False)
class StepNode:
    """A step of a solution. `rollout` is the solution up to its end, `step` its own text, `output` what the
    program printed so far; `end` says how the solution ended here ("" where it goes on)."""

    rollout: Rollout
    parent: StepNode | None = None
    depth: int = 0
    step: str = ""
    output: str = ""
    errors: int = 0
    end: End = ""
    closed: bool = False
    value_sum: float = 0.0
    visits: int = 0
    children: list[StepNode] = field(default_factory=list)

    @property
    def q(self) -> float:
        """The mean of what was backed up; 0 without any."""
        return self.value_sum / self.visits if self.visits else 0.0

    @property
    def path(self) -> list[StepNode]:
        """The steps from the first to this one."""
        return [*self.parent.path, self] if self.parent is not None else []

    def add(self, value: float) -> None:
        """Count one value of this node."""
        self.value_sum, self.visits = self.value_sum + value, self.visits + 1

    def back_up(self, value: float) -> None:
        """Count one value of this node and of all above it."""
        node: StepNode | None = self
        while node is not None:
            node.add(value)
            node = node.parent

    def uct(self, exploration: float) -> float:
        """q + c sqrt(ln N_parent / N); q alone where either is 0."""
        above = self.parent.visits if self.parent is not None else 0
        if not above or not self.visits:
            return self.q
        return self.q + exploration * math.sqrt(math.log(above) / self.visits)

    def ends(self, *kinds: End) -> Iterator[StepNode]:
        """The ends of these kinds at or below this node."""
        if self.end in kinds:
            yield self
        for child in self.children:
            yield from child.ends(*kinds)


class StepPair(NamedTuple):
    """Two steps after the same solution so far; `weight` is 1 over the number of pairs of that place."""

    prompt: Prompt
    chosen: list[int]
    rejected: list[int]
    weight: float


def mean_q_below(node: StepNode, best: bool) -> float:
    """The mean q of a step and of the best (worst) steps below it that lead to a right (wrong) end."""
    values = [node.q]
    kind: End = "right" if best else "wrong"
    while steps := [child for child in node.children if any(child.ends(kind))]:
        node = (max if best else min)(steps, key=lambda child: child.q)
        values.append(node.q)
    return math.fsum(values) / len(values)


def pairs_of(root: StepNode, min_margin: float, min_edit: int) -> Iterator[StepPair]:
    """extra_rm_file.py and sample_rm_data.py: at each step with both, the two steps of highest q that lead to
    right ends against the two of lowest q that lead to wrong ones (four, where the other side has one).

    A pair counts where its q differ by `min_margin`, its texts by `min_edit` characters, and the way below
    the chosen one has the higher mean q.
    """
    nodes = [root]
    while nodes:
        node = nodes.pop(0)
        good = sorted((c for c in node.children if any(c.ends("right"))), key=lambda c: -c.q)
        bad = sorted((c for c in node.children if any(c.ends("wrong"))), key=lambda c: c.q)
        if not good or not bad:
            continue
        chosen = good[:4] if len(bad) == 1 else good[:2]
        rejected = bad[:4] if len(good) == 1 else bad[:2]
        for a in chosen:
            for b in rejected:
                margin, ways = a.q - b.q, (mean_q_below(a, True), mean_q_below(b, False))
                differ = Levenshtein.distance(a.step, b.step) >= min_edit
                if margin > 0 and margin >= min_margin and ways[0] > ways[1] and differ:
                    weight = 1 / (len(chosen) * len(rejected))
                    yield StepPair(root.rollout.prompt, a.rollout.ids, b.rollout.ids, weight)
        nodes += [child for child in good if child in bad]


class PreferenceModel:
    """The run's process preference model: a copy of the policy with a scalar head, and the pairs that wait
    for it."""

    def __init__(self, run: StageContext) -> None:
        if run.state_sharded or run.policy.has_adapter:
            raise ConfigError(
                "callbacks: 'rstar_math.ppm' copies the whole policy, which adapters and sharded weights do "
                "not allow; train all weights with DDP"
            )
        self.module = value_model(run)
        self.pairs: list[StepPair] = []

    def scores(self, run: StageContext, paths: Sequence[tuple[Prompt, Sequence[int]]]) -> Any:
        """(B,) the head's value after the last token of each solution so far; honours the autograd mode."""
        eos = run.policy.tokenizer.eos_token_id  # read before it: the state after the last token
        rollouts = [
            Rollout(prompt, [*ids, eos], logp=[0.0] * (len(ids) + 1), loss_mask=[*[False] * len(ids), True])
            for prompt, ids in paths
        ]
        groups = [Group(rollout.prompt, [rollout]) for rollout in rollouts]
        return self.module.values(run.policy, run.batch(groups)).sum(-1)


def preference_model(run: StageContext) -> PreferenceModel:
    """The run's preference model, made at the first call."""
    return run.shared("rstar_math", lambda: PreferenceModel(run))


@register("rstar_math")
@dataclass(frozen=True)
class RstarMath(Independent):
    """rStar-Math's search: n = group_size steps at each node, kept where their code runs; `iterations` walks
    from the root by UCT (c = `exploration`). The group is the `keep` right solutions of highest mean q.

    A step ends at "<end_of_step>", "</code>" (the output follows, untrained) or "</answer>". All code so far
    runs in the sandbox; `errors` failing steps in a row end a solution. Ends back up 1 and -1; with `guided`
    a new step begins with tanh of the preference model's score. Paper: arXiv:2501.04519, sec. 3.2-3.3.
    Deviates: the marks; one length limit for the whole. Edge: a prompt without a kept solution gives an empty
    group. Logs steps, failed code, pairs and right ends.

    Attributes:
        min_margin, min_edit: Which pairs the preference model gets (`pairs_of`).
    """

    state_class = StepCounts
    iterations: int = 48
    depth: int = 16
    exploration: float = 2.0
    errors: int = 1
    keep: int = 2
    guided: bool = False
    min_margin: float = 0.5
    min_edit: int = 20
    sandbox: str = "bubblewrap"
    seconds: float = 30.0
    provides = (PAIRS,)

    def __post_init__(self) -> None:
        least = {"iterations": 1, "depth": 1, "errors": 1, "keep": 1}
        if any(getattr(self, name) < low for name, low in least.items()) or self.seconds <= 0:
            raise ValueError(
                f"iterations={self.iterations}, depth={self.depth}, errors={self.errors} and "
                f"keep={self.keep} must be at least 1, seconds={self.seconds} above 0"
            )

    @property
    def requires(self) -> tuple[Capability, ...]:
        return (PPM,) if self.guided else ()

    def check(self, phase: PhaseContext) -> None:
        super().check(phase)
        home_of(Reward, "code.sandbox").require(self.sandbox)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        searches = {
            place: self.search(prompt, count, run)
            for place, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
            if count
        }
        trees = run_in_rounds(run, searches)
        return [
            Group(prompt, self.solutions(trees[place], run) if place in trees else [])
            for place, prompt in enumerate(prompts)
        ]

    def search(
        self, prompt: Prompt, count: int, run: SamplingContext
    ) -> Generator[list[Request], list[Completion], StepNode]:
        """Yields requests, is sent completions, returns the root."""
        root = StepNode(Rollout(prompt, []))
        for _ in range(self.iterations):
            node: StepNode | None = root
            while node is not None and not root.closed:
                if not node.children:
                    sampling = run.sampling(prompt, 0)
                    sampling = replace(sampling, stop=(*sampling.stop, *STOPS))
                    length = len(node.rollout)
                    completions = yield [
                        branch_request(node.rollout, length, sampling, self.seeds(run, prompt), count)
                    ]
                    self.expand(node, completions, run)
                node = self.next_node(node)
        return root

    def next_node(self, node: StepNode) -> StepNode | None:
        """The open child of highest UCT, the first of equals; None, and the node is closed, without one."""
        going_on = [child for child in node.children if not child.end and not child.closed]
        node.closed = not going_on
        return max(going_on, key=lambda child: child.uct(self.exploration), default=None)

    def expand(self, node: StepNode, completions: Sequence[Completion], run: SamplingContext) -> None:
        """Add the children, run their code, score those that answer, and back up."""
        made = [self.child(node, completion, run) for completion in completions]
        answered = [child for child in made if child.end == "right"]
        judged = Group(node.rollout.prompt, [child.rollout for child in answered])
        run.score([judged])
        scored = {id(rollout) for rollout in judged}
        node.children = [c for c in made if c.end != "right" or id(c.rollout) in scored]
        for child in node.children:
            if child.end == "right":
                child.end = "right" if child.rollout.correct else "wrong"
                child.back_up(1.0 if child.end == "right" else -1.0)
            elif child.end:
                child.add(-1.0)
        self.state.add(steps=len(node.children), failed=sum(c.errors > 0 for c in node.children))
        going_on = [child for child in node.children if not child.end]
        if self.guided and going_on:
            with torch.no_grad():
                paths = [(child.rollout.prompt, child.rollout.ids) for child in going_on]
                values = preference_model(run).scores(run, paths).tanh().tolist()
            for child, value in zip(going_on, values, strict=True):
                child.add(value)

    def child(self, node: StepNode, completion: Completion, run: SamplingContext) -> StepNode:
        """The node of a completion. `end` "right" stands for an answer that is not yet scored."""
        policy, begin = run.policy, len(node.rollout)
        rollout = branch_rollout(run, completion, node.rollout, begin, trained=True)
        eos = policy.tokenizer.eos_token_id
        if rollout.ids[-1] == eos and len(rollout.ids) > begin:
            cut(rollout, len(rollout.ids) - 1)
        step = policy.decode(rollout.ids[begin:])
        made = StepNode(rollout, node, node.depth + 1, step, node.output)
        text = policy.decode(rollout.ids)
        if ANSWER_END in step:
            made.end = "right"
            extend(rollout, [eos], True)
        elif not step.rstrip().endswith(STOPS[:2]) or made.depth >= self.depth:
            made.end = "invalid"
        elif CODE in text:
            self.execute(made, node, text, run)
        rollout.text = rollout.prompt.prefix + policy.decode(rollout.ids)
        return made

    def execute(self, made: StepNode, node: StepNode, text: str, run: SamplingContext) -> None:
        """Run all code so far, and write its new output behind a closed block. A program that fails or runs
        out of time counts an error."""
        box = home_of(Reward, "code.sandbox")
        limits = box.SandboxLimits(seconds=self.seconds, total_seconds=self.seconds + 5)
        ran = box.run(program_of(text), [""], None, limits, self.sandbox)
        works = bool(ran) and ran[0].status == "ok"
        made.errors = 0 if works else node.errors + 1
        printed = ran[0].out if works else node.output
        shown = printed.removeprefix(node.output).strip()[:MAX_OUTPUT] if works else "error"
        made.output = printed
        if made.errors >= self.errors:
            made.end = "error"
        elif made.step.rstrip().endswith(CODE_END):
            extend(made.rollout, run.policy.encode_text(OUTPUT.format(output=shown)), False)

    def solutions(self, root: StepNode, run: SamplingContext) -> list[Rollout]:
        """The solutions to imitate; the tree's pairs go to the preference model."""
        right = [leaf for leaf in root.ends("right") if "error" not in leaf.rollout.text.lower()]
        ranked = sorted(
            right,
            key=lambda leaf: (
                math.fsum(node.q for node in leaf.path) / len(leaf.path),
                min(node.q for node in leaf.path),
            ),
            reverse=True,
        )
        pairs = list(pairs_of(root, self.min_margin, self.min_edit))
        if run.has(PPM):
            preference_model(run).pairs += pairs
        self.state.add(
            pairs=len(pairs),
            right=sum(1 for _ in root.ends("right")),
            ends=sum(1 for _ in root.ends("right", "wrong", "error", "invalid")),
        )
        return [leaf.rollout for leaf in ranked[: self.keep]]

    def metrics(self) -> dict[str, tuple[float, float]]:
        return {
            **self.state.totals("rstar_math", "steps", "pairs"),
            "rstar_math/failed": self.state.share("failed", "steps"),
            "rstar_math/right": self.state.share("right", "ends"),
        }


def cut(rollout: Rollout, length: int) -> None:
    """Drop the tokens from `length` on."""
    rollout.version = one_if_equal(per_token(rollout.version, length))
    rollout.temperature = one_if_equal(per_token(rollout.temperature, length))
    for name in ("ids", "logp", "loss_mask", "sampled_mask", "top_logprobs"):
        values = getattr(rollout, name)
        setattr(rollout, name, None if values is None else values[:length])


def extend(rollout: Rollout, ids: Sequence[int], trained: bool) -> None:
    """Append tokens that the policy did not sample, which are trained on or not."""
    length, more = len(rollout), len(ids)
    mask, sampled = [*rollout.trained_mask, *[trained] * more], [*rollout.sampled, *[False] * more]
    for name in ("version", "temperature"):
        values = per_token(getattr(rollout, name), length)
        setattr(rollout, name, one_if_equal([*values, *values[-1:] * more]))
    rollout.ids, rollout.logp = [*rollout.ids, *ids], [*rollout.logp, *[0.0] * more]
    rollout.loss_mask, rollout.sampled_mask, rollout.top_logprobs = mask, sampled, None


@register("rstar_math.ppm")
@dataclass(frozen=True)
class RstarMathPpm(Callback):
    """rStar-Math's process preference model: a copy of the policy with a scalar head s, trained after each
    step on the pairs of its trees.

        L = sum over pairs of w (-log sigma(s(x, y+) - s(x, y-))),  w = 1 / (pairs of the same place)

    Paper: arXiv:2501.04519, eq. 4; train/rm.py:232-254 (one token at the end of each step is read). Deviates:
    a round is a step, the model goes on from its weights, and the head begins at 0. Edge: a step without
    pairs leaves it as it is. Logs the pairs, the share ranked right and the mean difference before the first
    update. Memory: a second model with its optimizer. Raises ConfigError for adapters and sharded weights.

    Attributes:
        epochs: Passes over a step's pairs.
        batch: Pairs of an update.
    """

    state_class = CriticState
    lr: float = 7e-6
    epochs: int = 2
    batch: int = 64
    provides = (PPM,)
    requires = (PAIRS,)

    def __post_init__(self) -> None:
        if self.lr <= 0 or min(self.epochs, self.batch) < 1:
            raise ValueError(
                f"lr={self.lr} must be above 0, epochs={self.epochs} and batch={self.batch} at least 1"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        self.state.module = preference_model(run).module
        self.state.optimizer = torch.optim.AdamW(self.state.module.parameters(), lr=self.lr, weight_decay=0.0)

    def __call__(
        self, run: CallbackContext, groups: Sequence[Group]
    ) -> dict[str, float | tuple[float, float]]:
        model = preference_model(run)
        pairs, model.pairs = model.pairs, []
        updates = max(run.gather([math.ceil(len(pairs) / self.batch)]))
        right = gaps = 0.0
        for epoch in range(self.epochs):
            for index in range(updates):
                self.state.optimizer.zero_grad()
                for pair in pairs[index * self.batch : (index + 1) * self.batch]:
                    paths = [(pair.prompt, pair.chosen), (pair.prompt, pair.rejected)]
                    chosen, rejected = model.scores(run, paths)
                    (-pair.weight * nn.functional.logsigmoid(chosen - rejected)).backward()
                    if epoch == 0:
                        right += float(chosen > rejected)
                        gaps += float((chosen - rejected).detach())
                for p in model.module.parameters():
                    p.grad = run.sum_tensor(torch.zeros_like(p) if p.grad is None else p.grad)
                self.state.optimizer.step()
        count = float(len(pairs))
        return {"pairs": (count, 0.0), "pairs_right": (right, count), "gap": (gaps, count)} if pairs else {}

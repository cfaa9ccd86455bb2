"""ONI: an intrinsic reward that is learned from a language model's feedback while the agent plays.

    oni    reward shaping: adds the intrinsic reward of what each turn led to

Paper: Zheng et al. 2024 (ONI), arXiv:2410.23022; checked against facebookresearch/oni at f0f86e8a:
sample_factory/algorithms/appo/learner.py and llm_annotator.py, scripts/main.py, rlaif/prompts.py.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vlrl.beside.judge import Judgement, Question, check_judge, open_judge
from vlrl.beside.service import Usage
from vlrl.methods.common.text_scorer import features_of, scores_of, text_scorer
from vlrl.methods.common.turn_pay import add_pay, counted, states_after
from vlrl.methods.core.turn_advantage import episodes_of
from vlrl.plugins.capabilities import Capability
from vlrl.plugins.contexts import PhaseContext, StageContext, StepContext
from vlrl.plugins.episodes import END_STATE, TURN_REWARDS, TURN_STATES
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import RewardShaping, State, StepCounts, transient
from vlrl.services.lazy import nn, torch
from vlrl.types import Group

TEMPLATES = {"hash": "helpful", "classify": "helpful", "rank": "helpful_pair"}


@dataclass
class ONIState(State):
    """`labels` are the judge's of each event, `pairs` its preferences ([first, second, how much better the
    first is]). `seen` are this step's events, the newest last, with their task. `mean`, `square` and `count`
    are running moments of the ranker's scores. `asked` and `unread` count judgements."""

    labels: dict[str, float] = field(default_factory=dict)
    pairs: list[list[Any]] = field(default_factory=list)
    mean: float = 0.0
    square: float = 1.0
    count: int = 0
    asked: int = 0
    unread: int = 0
    weights: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=lambda: vars(Usage()).copy())
    judge: Any = transient()
    scorer: Any = transient()
    seen: dict[str, str] = transient(factory=dict)
    step: StepCounts = transient(factory=StepCounts)

    def state_dict(self) -> dict[str, Any]:
        if self.scorer is not None:
            self.weights = dict(self.scorer.state_dict())
        if self.judge is not None:
            self.usage = dict(vars(self.judge.service.usage))
        return super().state_dict()

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        super().load_state_dict(values)
        if self.scorer is not None and self.weights:
            self.scorer.load_state_dict(self.weights)
        if self.judge is not None:
            self.judge.service.usage = Usage(**self.usage)


@register("oni")
@dataclass(frozen=True)
class ONI(RewardShaping):
    """ONI's reward: r_k = extrinsic r_k + intrinsic s(event_k) / N_k^beta.

    An event is what turn k led to (the state as a text), N_k how often it has occurred in the episode. After
    each step the judge labels new events, which act from the next step on. Paper: arXiv:2410.23022, sec. 3;
    numbers of the release. Deviates: words are hashed where it has a character network; labels come between
    steps, there from a server at some later time; an unreadable verdict is asked again, there it is 0 (a
    tie). Edge: an event that is not known ("") pays nothing. Logs labels, unread verdicts, the mean pay.

    Attributes:
        model: s is, with "hash", the judge's label, 1 or 0, and 0 without one; with "classify", 1 if a
            classifier of the labels says yes, else 0; with "rank", a Bradley-Terry model's score by the
            judge's preferences, minus its running mean, over its running std.
        threshold: Of "rank": a score that is not above it is 0.
        batch: Events (or pairs) that are labelled after a step, the newest first.
        updates: Of the classifier or ranker after a step, on everything labelled so far.
    """

    state_class = ONIState
    judge: Mapping[str, Any] = field(default_factory=dict)
    model: Literal["hash", "classify", "rank"] = "hash"
    intrinsic: float = 0.4
    extrinsic: float = 0.1
    beta: float = 3.0
    batch: int = 100
    threshold: float = -0.5
    features: int = 512
    width: int = 64
    lr: float = 1e-2
    updates: int = 20
    requires: ClassVar[tuple[Capability, ...]] = (TURN_REWARDS, TURN_STATES, END_STATE)

    def __post_init__(self) -> None:
        if self.batch < 1 or self.updates < 1:
            raise ValueError(f"batch={self.batch} and updates={self.updates} must be at least 1")

    def check(self, phase: PhaseContext) -> None:
        check_judge(self.judge, f"reward_shaping: {self.name!r}: judge")

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if run.ranks > 1:
            raise ConfigError(
                f"reward_shaping: {self.name!r} learns one reward from one judge, and {run.ranks} processes "
                "would each learn their own; train in one process"
            )
        where = f"reward_shaping: {self.name!r}: judge"
        self.state.judge = open_judge(
            self.judge, run, where, TEMPLATES[self.model], Usage(**self.state.usage)
        )
        if self.model != "hash":
            self.state.scorer = text_scorer(self.features, self.width, run.seed)
            if self.state.weights:
                self.state.scorer.load_state_dict(self.state.weights)

    # --- paying ---------------------------------------------------------------------------------------------

    def __call__(self, group: Group) -> list[float]:
        episodes = episodes_of(group)
        events = [states_after(episode[-1]) for episode in episodes]
        for event in (event for row in events for event in row if event):
            self.state.seen.pop(event, None)
            self.state.seen[event] = group.row.question
        scores = self.scores([event for row in events for event in row])
        pays = []
        for row in events:
            own = [scores.pop(0) for _ in row]
            pays.append([self.intrinsic * s / n**self.beta for s, n in zip(own, counted(row), strict=True)])
        self.state.step.add(paid=sum(map(sum, pays)), turns=sum(map(len, pays)))
        return add_pay(group, pays, self.extrinsic)

    def scores(self, events: Sequence[str]) -> list[float]:
        """s of each event."""
        state = self.state
        if self.model == "hash":
            return [state.labels.get(event, 0.0) for event in events]
        raw = scores_of(state.scorer, events, self.features)
        if self.model == "classify":
            return [float(bool(event) and value > 0) for event, value in zip(events, raw, strict=True)]
        for value in raw:
            state.count += 1
            gap = value - state.mean
            state.mean += gap / state.count
            state.square += (gap * (value - state.mean) - state.square) / state.count
        std = max(state.square, 1e-12) ** 0.5
        scaled = [(value - state.mean) / std for value in raw]
        return [value if event and value > self.threshold else 0.0 for event, value in zip(events, scaled)]

    # --- learning -------------------------------------------------------------------------------------------

    def end_step(self, run: StepContext) -> None:
        super().end_step(run)
        state = self.state
        state.step.roll()
        if self.model == "rank":
            self.prefer(run)
        else:
            new = [event for event in reversed(state.seen) if event not in state.labels][: self.batch]
            questions = [Question((("question", state.seen[event]), ("answer", event))) for event in new]
            for event, judgement in zip(new, self.asked(questions), strict=True):
                if judgement.value is not None:
                    state.labels[event] = float(judgement.value >= 0.5)
        if self.model != "hash" and (state.labels or state.pairs):
            self.learn()
        state.seen.clear()

    def prefer(self, run: StepContext) -> None:
        """Ask about pairs of this step's events, drawn at random, and keep the preferences."""
        rng, known = random.Random(f"{run.seed} {run.step}"), sorted(self.state.seen)
        pairs = [rng.sample(known, 2) for _ in range(self.batch if len(known) > 1 else 0)]
        questions = [
            Question((("question", self.state.seen[a]), ("answer_a", a), ("answer_b", b))) for a, b in pairs
        ]
        for (a, b), judgement in zip(pairs, self.asked(questions), strict=True):
            if judgement.value is not None:
                self.state.pairs.append([a, b, judgement.value])

    def asked(self, questions: Sequence[Question]) -> list[Judgement]:
        """The judge's answers, counted."""
        found: list[Judgement] = self.state.judge.ask(questions)
        self.state.asked += len(found)
        self.state.unread += sum(judgement.value is None for judgement in found)
        return found

    def learn(self) -> None:
        """Train the classifier on all labels, or the ranker on all preferences: `updates` steps of Adam."""
        state = self.state
        optimizer = torch.optim.Adam(state.scorer.parameters(), lr=self.lr)
        if self.model == "rank":
            sides = [features_of([pair[side] for pair in state.pairs], self.features) for side in (0, 1)]
            wanted = torch.tensor([float(pair[2]) for pair in state.pairs])
        else:
            sides = [features_of(state.labels, self.features)]
            wanted = torch.tensor(list(state.labels.values()))
        with torch.enable_grad():
            for _ in range(self.updates):
                logits = state.scorer(sides[0]) - (state.scorer(sides[1]) if len(sides) > 1 else 0.0)
                loss = nn.functional.binary_cross_entropy_with_logits(logits, wanted)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def metrics(self) -> dict[str, float | tuple[float, float]]:
        state = self.state
        return {
            "oni/pay": state.step.share("paid", "turns"),
            "oni/labels": float(len(state.labels) + len(state.pairs)),
            "oni/no_verdict": (float(state.unread), float(state.asked)),
        }

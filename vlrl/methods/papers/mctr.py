"""MCTR: an agent that plays by vote, learns from its own agreement, and writes down what it finds out about
the task.

    mctr                   rollout strategy: votes on every action, keeps rules in memory, shows them in the
    prompt
    mctr.self_consistency  reward shaping: 1 for the action that most of the state's samples chose

Paper: Li et al. 2025 (MCTR), arXiv:2511.23262. Neither the whole text nor code could be had; what is built is
what its abstract and published summaries say, and the rest is told to be ours.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from vlrl.methods.common.conversation import TURN_SPANS, Conversation
from vlrl.methods.common.prompts import neutralised, with_text
from vlrl.methods.core.rollout import MultiTurn
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import SamplingContext, StageContext, StepContext
from vlrl.plugins.episodes import CONVERSATION, SEGMENT
from vlrl.plugins.registry import build, register
from vlrl.plugins.stages import Engine, RewardShaping, State, transient
from vlrl.types import Completion, Group, Message, Prompt, Request, Rollout, Sampling

VOTE: Annotation[str] = Annotation(
    "mctr.vote", str, hint="rollout: {name: mctr}", doc='the action that a turn chooses, "" for none'
)
_ACTION = re.compile(r"<action>((?:(?!</?action>).){0,400})</action>", re.DOTALL)
_RULE = re.compile(r"<rule>((?:(?!</?rule>).){1,400})</rule>", re.DOTALL)
_DROP = re.compile(r"<drop>\s*(\d{1,4})\s*</drop>")
MAX_TURN = 20_000  # characters of a reply that are read


def vote_of(text: str) -> str:
    """The last action in <action> tags, in lower case with single blanks; "" for none."""
    found = _ACTION.findall(text[:MAX_TURN])
    return " ".join(found[-1].split()).casefold() if found else ""


def majority(votes: Sequence[str]) -> str:
    """The most frequent vote, the first of several; "" where nobody votes."""
    counts = Counter(vote for vote in votes if vote)
    return counts.most_common(1)[0][0] if counts else ""


def edited(rules: Sequence[str], reply: str, size: int) -> list[str]:
    """The rules after a reflection: <drop>NUMBER</drop> (from 1) removes one, <rule>TEXT</rule> adds one; the
    newest `size`, each once.

    >>> edited(["a", "b"], "<drop>1</drop><rule>b</rule><rule>c d</rule>", 8)
    ['b', 'c d']
    """
    reply = reply[:MAX_TURN]
    dropped = {int(number) for number in _DROP.findall(reply)}
    kept = [rule for number, rule in enumerate(rules, 1) if number not in dropped]
    new = [" ".join(neutralised(rule).split()) for rule in _RULE.findall(reply)]
    return list(dict.fromkeys([*kept, *filter(None, new)]))[-size:]


@dataclass
class MctrState(State):
    """Rules by task, and per task the steps between reflections and those since the last one. Of the present
    call: candidates by conversation."""

    rules: dict[str, list[str]] = field(default_factory=dict)
    every: dict[str, float] = field(default_factory=dict)
    waited: dict[str, int] = field(default_factory=dict)
    proposed: list[list[str]] = transient(factory=list)  # [task, reply]
    counts: dict[int, int] = transient(factory=dict)
    candidates: dict[int, list[Group]] = transient(factory=lambda: defaultdict(list))
    played: list[Conversation] = transient(factory=list)
    meta: Any = transient()
    logged: dict[str, float] = transient(factory=dict)


@register("mctr")
@dataclass(frozen=True)
class Mctr(MultiTurn):
    """MCTR's two levels: an object level that acts by vote over samples, and a meta level that keeps rules
    about the task in memory.

    At each state the policy samples n turns, a group for `mctr.self_consistency`; the action that most choose
    is carried out. After an episode, when due, the model reads it and the task's rules and adds (<rule>) or
    forgets (<drop>) some; prompts end with them. Paper: arXiv:2511.23262 (abstract; summaries). Ours: words,
    schedule, numbers, updates after episodes; all rules are shown, where the paper retrieves. Edge: without
    an action the first sample's turn counts; ties: the first; held-out evaluation has rules and no votes.
    State: rules and schedule, equal on all ranks.

    Attributes:
        meta: The engine that reflects, asked by `ask`; {} is the policy itself.
        size: The newest rules that are kept, shown behind `shown`.
        first: Steps between two reflections at first and at least.
        growth: A reflection that changes no rule makes the steps between two so many times as many (at most
            `longest`), one that does so many times fewer.
        max_tokens: Of a reflection, in tokens.
    """

    state_class = MctrState
    ask: str = (
        "Look back at what was done and what came of it. Write what holds in this task and was not known, "
        "each in <rule> </rule> tags, and "
        "<drop>NUMBER</drop> for what turned out to be wrong.\nKnown so far:\n{rules}"
    )
    shown: str = "\n\nWhat is known about this task:\n{rules}"
    size: int = 16
    first: float = 1.0
    growth: float = 2.0
    longest: float = 16.0
    max_tokens: int = 256
    meta: Mapping[str, Any] = field(default_factory=dict)
    provides = (*MultiTurn.provides, VOTE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if "{rules}" not in self.ask or "{rules}" not in self.shown:
            raise ValueError("ask and shown must hold {rules}")
        if self.size < 1 or self.max_tokens < 1 or not 1 <= self.first <= self.longest or self.growth < 1:
            raise ValueError(
                f"size={self.size}, max_tokens={self.max_tokens}, first={self.first} and "
                f"growth={self.growth} must be at least 1, "
                f"longest={self.longest} at least first"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if self.meta and self.state.meta is None:
            self.state.meta = build(Engine, dict(self.meta), "rollout.meta")
            self.state.meta.setup(run)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        state: MctrState = self.state
        state.counts = dict(enumerate(counts))
        state.candidates.clear()
        state.played.clear()
        played = super().__call__([self.with_rules(prompt) for prompt in prompts], [1] * len(prompts), run)
        groups = [group for place, _ in enumerate(prompts) for group in self.voted(place, played[place])]
        state.counts = {}
        self.reflect(run)
        agreed = [
            float(VOTE[rollout] == majority([VOTE[r] for r in group]))
            for group in groups
            for rollout in group
        ]
        state.logged = {
            "mctr/agreement": sum(agreed) / max(len(agreed), 1),
            "mctr/reflections": float(len(state.proposed)),
        }
        return groups

    def play(
        self, prompts: Sequence[Prompt], samplings: Sequence[Sampling], run: SamplingContext
    ) -> list[list[Rollout] | str] | None:
        """Held-out evaluation: without votes, with the rules."""
        plain = MultiTurn(**{f.name: getattr(self, f.name) for f in fields(MultiTurn)})
        return plain.play([self.with_rules(prompt) for prompt in prompts], samplings, run)

    def with_rules(self, prompt: Prompt) -> Prompt:
        """The prompt with its task's rules."""
        rules = self.state.rules.get(prompt.row.task)
        return with_text(prompt, self.shown.replace("{rules}", listed(rules))) if rules else prompt

    def turns(self, requests: Sequence[Request], run: StageContext) -> Iterable[Completion]:
        state: MctrState = self.state
        samples: dict[int, list[Completion]] = defaultdict(list)
        wanted = [replace(request, n=max(state.counts[request.tag.prompt_index], 1)) for request in requests]
        for completion in run.engine.generate(wanted):
            samples[id(completion.request.tag)].append(completion)
        for request in requests:
            conversation, made = (
                request.tag,
                sorted(samples[id(request.tag)], key=lambda completion: completion.index),
            )
            group = self.candidates(conversation, made, run)
            state.candidates[conversation.prompt_index].append(group)
            state.played += [] if conversation in state.played else [conversation]
            votes = [VOTE[rollout] for rollout in group]
            yield made[votes.index(majority(votes))] if any(votes) else made[0]

    def candidates(self, conversation: Conversation, made: Sequence[Completion], run: StageContext) -> Group:
        """The samples of a state as a group, in which only the newest turn carries loss."""
        start, rollouts = len(conversation.segment.ids), []
        for completion in made:
            rollout = run.make_rollout(completion)
            said = run.policy.decode(completion.ids[start:])
            rollout.text = ("" if start else conversation.prompt.prefix) + said
            rollout.loss_mask = [False] * start + [True] * (len(completion.ids) - start) if start else None
            VOTE.set(rollout, vote_of(said) if completion.finish == "stop" else "")
            rollouts.append(rollout)
        return Group(conversation.prompt, rollouts)

    def voted(self, place: int, played: Group) -> list[Group]:
        """The groups of an episode's states with what is known of the episode; none where its environment
        failed."""
        if not len(played):
            return []
        parts = (CONVERSATION.name, SEGMENT.name, TURN_SPANS.name)
        known = {name: value for name, value in played.rollouts[-1].info.items() if name not in parts}
        groups = self.state.candidates[place]
        for rollout in (rollout for group in groups for rollout in group):
            rollout.info = {**known, **rollout.info}
        return groups

    def reflect(self, run: StageContext) -> None:
        """Ask for rules about one episode of each task that is due."""
        state, requests = self.state, []
        state.proposed.clear()
        draw = random.Random(f"{run.seed}/mctr/{run.step}/{run.rank}")
        for conversation in {c.prompt.row.task: c for c in state.played if not c.failure}.values():
            task = conversation.prompt.row.task
            if state.waited.get(task, 0) + 1 >= state.every.get(task, self.first):
                sampling = replace(run.sampling(conversation.prompt, 0), max_tokens=self.max_tokens, stop=())
                requests.append(
                    Request(self.question(conversation), sampling, 1, draw.getrandbits(62), tag=task)
                )
        engine = state.meta or run.engine
        state.proposed += [
            [completion.request.tag, completion.text]
            for completion in (engine.generate(requests) if requests else ())
        ]

    def question(self, conversation: Conversation) -> Prompt:
        """The episode, and the question what it teaches."""
        rules = self.state.rules.get(conversation.prompt.row.task, [])
        text = self.ask.replace("{rules}", listed(rules) or "nothing")
        message: Message = {"role": "user", "content": [{"type": "text", "text": text}]}
        messages = (*conversation.prompt.messages, *conversation.segment.messages, message)
        return replace(conversation.prompt, messages=messages, prefix="", train=None, continues=None)

    def end_step(self, run: StepContext) -> None:
        state: MctrState = self.state
        replies: dict[str, list[str]] = defaultdict(list)
        for task, reply in run.gather_and_clear(state.proposed):
            replies[task].append(reply)
        for task in sorted({group.row.task for group in run.sampled_groups} | set(replies)):
            state.waited[task] = state.waited.get(task, 0) + 1
            if task not in replies:
                continue
            old = state.rules.get(task, [])
            new = old
            for reply in replies[task]:
                new = edited(new, reply, self.size)
            factor = self.growth if new == old else 1 / self.growth
            state.every[task] = min(max(state.every.get(task, self.first) * factor, self.first), self.longest)
            state.rules[task], state.waited[task] = new, 0
        state.logged["mctr/rules"] = float(sum(map(len, state.rules.values())))

    def metrics(self) -> dict[str, float]:
        return dict(self.state.logged)


def listed(rules: Sequence[str] | None) -> str:
    """Rules as numbered lines."""
    return "\n".join(f"{number}. {rule}" for number, rule in enumerate(rules or (), 1))


@register("mctr.self_consistency")
@dataclass(frozen=True)
class MctrSelfConsistency(RewardShaping):
    """MCTR's label-free reward, in place of the total: 1 for a turn whose action is that of most samples of
    its state, 0 for the others.

    Paper: Li et al. 2025 (MCTR), arXiv:2511.23262 (metacognitive test-time reinforcement learning), as
    test-time reinforcement learning does with answers (Zuo et al. 2025, arXiv:2504.16084). Edge: ties go to
    the action that was sampled first; a turn without an action gets 0, and so do all where none has one.
    """

    requires = (VOTE,)

    def __call__(self, group: Group) -> list[float]:
        votes = [VOTE[rollout] for rollout in group]
        most = majority(votes)
        return [float(bool(vote) and vote == most) for vote in votes]

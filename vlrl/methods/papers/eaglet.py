"""EAGLET: a global planner before frozen executors, from plans that help executors of different capability.

    eaglet             prompt template: the instruction with what the environment shows at the beginning
    eaglet.plans       rollout strategy: a strong model's plans as demonstrations, for the cold start
    eaglet.consensus   group filter: homologous consensus, plans that harm neither executor

Reward `executor_gain` plays the executors. Paper: Si et al. 2025 (EAGLET), arXiv:2510.05608: plans
from a strong model and expert trajectories, kept where r(u, e_p) >= r(u, e) for an expert and a novice of one
family; a supervised cold start on thoughts and plan; GRPO with the executor capability gain and a format
reward. No released code was found, and the paper was read in summaries; values without a source are ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vlrl.methods.common.asked_demonstrations import AskedDemonstrations
from vlrl.methods.core.prompt_template import Chat
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.registry import build, register
from vlrl.plugins.stages import Environment, GroupFilter, State, transient
from vlrl.types import FilterDecision, Group, Prompt, Row

UNHARMED: Annotation[bool] = Annotation(
    "executor_gain.unharmed",
    bool,
    hint="rewards: {gain: {name: executor_gain, ...}}",
    doc="whether both executors did at least as well with the plan as without it",
)
INSTRUCTION = (
    "Do not act. Think inside <think> </think> tags, then write a plan for the whole task, for an agent that "
    "will carry it out, inside <plan> </plan> tags."
)
TEACH = """{asked}

{trajectory}Write the thoughts and the plan as asked, in general steps that an agent can follow."""
SEEN = """How an expert solved this task:
{trajectory}

"""


@dataclass
class EagletState(State):
    """The environment whose beginnings are shown, and the beginnings so far by row."""

    environment: Any = transient()
    shown: dict[str, str] = transient(factory=dict)


@register("eaglet")
@dataclass(frozen=True, kw_only=True)
class Eaglet(Chat):
    """EAGLET's planner prompt: the instruction u (the question and what the environment shows at the
    beginning), and that a plan is asked for in <plan> tags.

    Paper: arXiv:2510.05608: p ~ pi_g(. | u). The words are ours. `environment` is the executors'
    (config). Edge: an environment without text at the beginning adds nothing.
    """

    state_class = EagletState
    environment: Mapping[str, Any] = field(default_factory=dict)
    instruction: str | None = INSTRUCTION

    def __call__(self, row: Row) -> Prompt:
        prompt = super().__call__(replace(row, question=f"{row.question}\n\n{self.beginning(row)}".strip()))
        return replace(prompt, row=row)

    def beginning(self, row: Row) -> str:
        """What the environment shows at the beginning of a row."""
        state = self.state
        if row.id not in state.shown:
            if state.environment is None:
                state.environment = build(Environment, self.environment, "prompt_template.environment")
            episode = state.environment.episode()
            try:
                state.shown[row.id] = episode.reset(row, 0).text
            finally:
                episode.close()
        return str(state.shown[row.id])


@register("eaglet.plans")
@dataclass(frozen=True, kw_only=True)
class EagletPlans(AskedDemonstrations):
    """EAGLET's synthesis: a strong model writes thoughts and a plan for each prompt, from the expert's
    trajectory in `row.meta["trajectory"]` where there is one; the reply is the demonstration.

    Paper: arXiv:2510.05608 (GPT-5 and DeepSeek-V3.1 from expert trajectories). Edge: a reply that
    failed, or has no <plan>, gives an empty group, which is replaced. `teacher`: {model: name@revision,
    engine: config}. Logs the share of replies with a plan.
    """

    def asked(self, prompt: Prompt) -> str:
        known = prompt.row.meta.get("trajectory")
        return TEACH.format(asked=prompt.text, trajectory=SEEN.format(trajectory=known) if known else "")

    def usable(self, text: str) -> bool:
        return "<plan>" in text and "</plan>" in text

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        return {"eaglet/plans": self.state.share("usable", "asked")}


@register("eaglet.consensus")
@dataclass(frozen=True)
class EagletConsensus(GroupFilter):
    """EAGLET's homologous consensus: keeps a plan where r(u, e_p) >= r(u, e) for the expert and the novice.

    Paper: arXiv:2510.05608. Reads UNHARMED of reward `executor_gain`. Edge: a group with a plan that
    harms, or without one, is dropped.
    """

    requires = (UNHARMED,)

    def __call__(self, group: Group) -> FilterDecision:
        return FilterDecision(all(UNHARMED.get(rollout) for rollout in group), "harmful_plan")

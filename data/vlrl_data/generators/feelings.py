"""Friends with a worry and a hope that they do not name: rows for environments that simulate a user with
feelings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from vlrl.plugins.registry import register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gwen", "Hal")
WORRIES = {  # topic -> what the friend says first
    "exam": "I failed the exam that I had prepared for all month.",
    "job": "They gave the job to somebody else.",
    "move": "I moved here in spring, and I still know nobody.",
    "dog": "My dog is ill, and the vet does not know why.",
    "concert": "I played a wrong note in the concert, and everybody heard it.",
    "team": "The team goes on without me next season.",
}


class Hope(NamedTuple):
    """What a friend hopes for: how the opening hints at it, patterns that please, each with what is said
    then, and what hurts."""

    hint: str
    pleases: tuple[tuple[str, str], ...]
    hurts: str
    turns: tuple[str, ...]  # of a demonstration, with {topic}


HOPES = {
    "to be heard": Hope(
        "I just needed to say it to someone.",
        (
            (r"\b(sounds|must (be|have been)|sorry)\b", "Yes. That is how it is."),
            (r"\b(tell me more|what happened)\b", "It began weeks ago."),
        ),
        r"\b(you should|you have to|cheer up)\b",
        (
            "That sounds hard, I am sorry.",
            "Tell me more about it, if you like.",
            "The {topic} matters to you, I see that.",
        ),
    ),
    "a next step": Hope(
        "I do not know what to do now.",
        (
            (r"\b(first|next step|start (with|by))\b", "That I could do."),
            (r"\b(plan|list|tomorrow)\b", "Good, I will write that down."),
        ),
        r"\b(it will be fine|do not worry|cheer up)\b",
        (
            "Start with one small thing today.",
            "Let us make a plan for tomorrow.",
            "Then the {topic} will weigh less.",
        ),
    ),
    "to be seen for the effort": Hope(
        "All that work, and now this.",
        (
            (r"\b(proud|well done|brave)\b", "Nobody has said that yet."),
            (r"\b(effort|worked hard|courage)\b", "I did work a lot for it."),
        ),
        r"\b(you should|next time)\b",
        (
            "I am proud of you.",
            "It took courage, and you worked hard.",
            "What you did for the {topic} counts.",
        ),
    ),
}


@register("gen_feelings")
@dataclass(frozen=True, kw_only=True)
class GenFeelings(GeneratedSource):
    """Conversations with a friend who has a worry and hopes for one of three things: to be heard, a next
    step, to be seen for the effort.

    vlrl original (the setting of RLVER, arXiv:2507.03112). `row.meta["user"]` is a user by a script, for
    environment `rlver.emotional_user` (`feelings`: two patterns that please by 25, the worry's own word by
    20, one that hurts by 15; anything else costs 10) and for environment `user` (`slots`: the same patterns,
    `done`: a goodbye), with persona, scene and intention for a model that plays it. The hope stands in the
    opening as a hint alone. `row.meta["turns"]` are the turns of a demonstration. The source brings the
    reward `environment_return`.
    """

    task: str = "feelings"

    @property
    def own_rewards(self) -> Mapping[str, Mapping[str, Any]]:
        """The reward of these rows."""
        return {"environment_return": {"name": "environment_return", "tasks": [self.task], "missing": 0.0}}

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        name, topic, intention = rng.choice(NAMES), rng.choice(list(WORRIES)), rng.choice(list(HOPES))
        hope = HOPES[intention]
        slots = {
            f"said{place}": {"asked": pattern, "says": says}
            for place, (pattern, says) in enumerate(hope.pleases)
        }
        slots["topic"] = {"asked": rf"\b{topic}\b", "says": f"The {topic} is always on my mind."}
        feelings = [{"when": hope.hurts, "change": -15, "says": "That does not help me."}]
        feelings += [
            {"when": slot["asked"], "change": 20 if key == "topic" else 25, "says": slot["says"]}
            for key, slot in slots.items()
        ]
        user = {
            "opening": f"{WORRIES[topic]} {hope.hint}",
            "persona": f"{name} speaks briefly and dislikes long speeches.",
            "scene": WORRIES[topic],
            "intention": f"{name} hopes {intention}.",
            "feelings": feelings,
            "otherwise": {"change": -10, "says": "I see."},
            "words": 40,
            "slots": slots,
            "done": r"\b(goodbye|take care)\b",
        }
        turns = [f"<think>{name} hopes {intention}.</think>{text.format(topic=topic)}" for text in hope.turns]
        return Row(
            self.id(index),
            f"You talk with your friend {name}.",
            task="feelings",
            meta={"user": user, "intention": intention, "turns": turns},
        )

"""Prose without a verifier: replies of characters, texts whose next words are asked for, and sentences with
given words."""

from __future__ import annotations

import random
from dataclasses import dataclass

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import GeneratedSource

CHARACTERS = {
    "a tired knight": ("By my rusty sword, {said}. Now let me sit down.", "worn out and proud"),
    "a cheerful baker": ("Fresh from the oven: {said}! Have a bun, dear.", "busy and warm"),
    "a careful clerk": ("According to the books, {said}. Please sign here.", "correct and slow"),
    "a sly merchant": ("For you, my friend, {said}, and cheaper than next door.", "greedy and friendly"),
}
ASKED = {
    "Is the road to the town open": ("the road is open", "a traveller in a hurry"),
    "Will it rain tonight": ("it will rain tonight", "a farmer who worries"),
    "Where is the well": ("the well is behind the mill", "a thirsty child"),
    "Who keeps the key": ("the miller keeps the key", "a stranger who must not know too much"),
}


@register("gen_roleplay")
@dataclass(frozen=True, kw_only=True)
class GenRoleplay(GeneratedSource):
    """A character is asked something; the answer is its reply in its own manner. `meta.exemplars` are other
    replies of the character, `meta.situation` and `meta.self` what it should be aware of.

    Paper: CogDual, arXiv:2507.17147 (there dialogues of books). Held out is a fixed fifth of the rows, by the
    hash of their text. There is no verifier: rewards of likelihood or likeness.
    """

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        day = rng.randrange(1000)
        while True:
            who, question = rng.choice(sorted(CHARACTERS)), rng.choice(sorted(ASKED))
            text = f"You are {who}. Day {day}. {ASKED[question][1].capitalize()} asks: {question}?"
            if (random.Random(f"roleplay split {text}").random() < 0.2) == (self.split == "heldout"):
                break
            day += 1
        manner, mood = CHARACTERS[who]
        reply = manner.format(said=ASKED[question][0])
        others = [manner.format(said=said) for other, (said, _) in sorted(ASKED.items()) if other != question]
        target = f"<cognize>{ASKED[question][1]}; I am {mood}</cognize><answer>{reply}</answer>"
        meta = {"exemplars": others, "situation": ASKED[question][1], "self": mood}
        return Row(self.id(index), text, reply, task="roleplay", target=target, meta=meta)


@register("gen_continuation")
@dataclass(frozen=True, kw_only=True)
class GenContinuation(GeneratedSource):
    """A text up to a place in it; the answer is the next `horizon` words. The texts are accounts whose next
    words follow from the ones before: "Ada has 3 figs. She buys 4. Now she has 7 figs. ..."

    Paper: RLP, arXiv:2510.01265 (there pretraining text, every position). Held out is a fixed fifth of the
    texts, by their hash.
    """

    horizon: int = 3
    sentences: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.horizon < 1 or self.sentences < 1:
            raise ConfigError(f"horizon={self.horizon} and sentences={self.sentences} must be at least 1")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        while True:
            name, count = rng.choice(("Ada", "Ben", "Cleo", "Dan")), rng.randint(2, 40)
            parts, thought = [f"{name} has {count} figs."], ""
            for _ in range(self.sentences):
                more = rng.randint(1, 30)
                thought = f"{count}+{more}={count + more}"
                count += more
                parts.append(f"{name} buys {more} more. Now {name} has {count} figs.")
            words = " ".join(parts).split()
            if (random.Random(f"continuation split {' '.join(words)}").random() < 0.2) == (
                self.split == "heldout"
            ):
                break
        begin = len(words) - 2  # before the last sum
        following = " ".join(words[begin : begin + self.horizon])
        return Row(
            self.id(index),
            " ".join(words[:begin]),
            following,
            task="continuation",
            target=f"<think>{thought}</think><answer>{following}</answer>",
        )


ACTS = {  # verb: third person, what is acted on
    "catch": ("catches", ("ball", "fish", "train")),
    "carry": ("carries", ("basket", "ladder", "lamp")),
    "paint": ("paints", ("boat", "door", "fence")),
    "watch": ("watches", ("film", "game", "storm")),
    "throw": ("throws", ("stone", "stick", "hat")),
}
WHO = ("boy", "dog", "farmer", "girl", "nurse", "sailor")
WHERE = {"park": "in", "beach": "on", "bridge": "on", "garden": "in", "station": "at", "harbour": "at"}


@register("gen_concepts")
@dataclass(frozen=True, kw_only=True)
class GenConcepts(GeneratedSource):
    """Words in any order that a sentence must hold: "boy catch ball park". The answer is a list of sentences
    that say so; a text metric compares with each.

    Paper: RL4LMs, arXiv:2210.01241 (CommonGen of its GRUE tasks; the question's words are those of its
    common_gen/t5_nlpo_on_supervised.yml at allenai/RL4LMs 97df0bd2). Held out is a fixed fifth of the word
    sets, by their hash.
    """

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        while True:
            who, verb, where = rng.choice(WHO), rng.choice(sorted(ACTS)), rng.choice(sorted(WHERE))
            does, things = ACTS[verb]
            words = [who, verb, rng.choice(things), where]
            held_out = random.Random(f"concepts split {' '.join(words)}").random() < 0.2
            if held_out == (self.split == "heldout"):
                break
        place = f"{WHERE[where]} the {where}"
        answers = [f"The {who} {does} a {words[2]} {place}.", f"A {who} {does} the {words[2]} {place}."]
        asked = rng.sample(words, len(words))
        return Row(
            self.id(index),
            f"generate a sentence with: {' '.join(asked)}.",
            answers,
            task="concepts",
            target=answers[0],
            meta={"concepts": asked},
        )

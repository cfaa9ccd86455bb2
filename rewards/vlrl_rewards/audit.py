"""The audit: every attack of the corpus against a verifier or a reward, and what passes."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from vlrl.registry import build, names, suggest
from vlrl.stages import Reward
from vlrl.types import Group, Prompt, Rollout, Row
from vlrl_rewards import attacks_perception, attacks_text, math_pool
from vlrl_rewards.attacks_perception import Attack, Seed
from vlrl_rewards.kinds import VERIFIERS
from vlrl_rewards.nested import numbers
from vlrl_rewards.verification import kinds, load, verify

SECONDS = 2.0
_MATH = {"accuracy": {"name": "math"}}
_FORMED = "<think>three and four</think><answer>7</answer>"
_SILENT = ("blank", "white space", "dot", "colon", "question marks", "empty tags", "blank tags", "open tag", "tags only")


class Outcome(NamedTuple):
    """One attack: what it earned, and whether it passed (or took more than SECONDS of processor time)."""

    attack: str
    score: float
    passed: bool
    seconds: float
    reason: str


@dataclass(frozen=True)
class Form:
    """A reward that does not judge answers: how it is made, a text that is as it should be, and which attacks it must refuse."""

    spec: Mapping[str, Any]
    right: str
    only: tuple[str, ...] = _SILENT


def _over_math(name: str, **fields: Any) -> tuple[dict[str, Any], Seed]:
    return {"name": name, **fields}, attacks_text.SEEDS["math"]


# Rewards that hold another reward, or that are named otherwise than their kind: (spec, seed).
NESTED: dict[str, tuple[dict[str, Any], Seed]] = {
    "verify": _over_math("verify"),
    "cosine_length": _over_math("cosine_length", max_tokens=10**9),
    "length_budget": _over_math("length_budget", mode="max", tokens=10**9),
    "weighted_sum": _over_math("weighted_sum", parts=_MATH),
    "product": _over_math("product", parts=_MATH),
    "gated": _over_math("gated", parts=_MATH),
    "lexicographic": _over_math("lexicographic", parts=_MATH),
    "normalised_sum": _over_math("normalised_sum", parts=_MATH),
    "text_metric": ({"name": "text_metric"}, attacks_text.SEEDS["f1"]),
    "items": ({"name": "items"}, attacks_text.SEEDS["list"]),
}
FORMS: dict[str, Form] = {
    "tag_format": Form({"name": "tag_format"}, _FORMED),
    "think_format": Form({"name": "think_format"}, _FORMED),
    "tag_count": Form({"name": "tag_count"}, _FORMED),
    "boxed_format": Form({"name": "boxed_format"}, r"so \boxed{7}"),
    "json_format": Form({"name": "json_format"}, '{"a": 7}', (*_SILENT, "empty list", "brackets", "quotes")),
    "language": Form({"name": "language"}, "This is the sum of the two.", ("blank", "white space", "dot", "colon", "question marks")),
    "repetition": Form({"name": "repetition"}, "Every word here stands once and no more than that.", ("blank", "white space", "dot", "colon")),
    "calibrated": Form({"name": "calibrated", "parts": _MATH}, "<answer>7</answer><confidence>1</confidence>"),
}
LENGTH_ONLY = ("length_range", "soft_overlong")  # they say nothing about content: silence is as good as anything short


def seed_of(kind: str) -> Seed:
    """What attacks on a kind are made of. Raises ValueError for a kind without a seed."""
    kind = attacks_text.ALIASES.get(kind, kind)
    found = attacks_text.SEEDS.get(kind) or attacks_perception.SEEDS.get(kind)
    if found is None:
        raise ValueError(f"attack: no seed for {kind!r}.{suggest(kind, [*attacks_text.SEEDS, *attacks_perception.SEEDS])} Give one with --example.")
    return found


def corpus(kind: str, seed: Seed | None = None) -> list[Attack]:
    """Every attack on a kind; those of a user's kind are made from the seed that is given."""
    seed = seed or seed_of(kind)
    table = attacks_perception.SEEDS
    known = kind in table and table[kind] is seed
    own = list(attacks_perception.attacks(kind)) if known else list(attacks_text.hidden(kind, seed))
    return [*own, *attacks_text.common(kind, seed)]


def attack_kind(kind: str, seed: Seed | None = None) -> list[Outcome]:
    """Run the corpus against `verify(kind=...)`. An attack passes if it is judged correct or earns more than its limit, or takes too long."""
    load(kind)
    math_pool.warm(wait=True)
    found = []
    for attack in corpus(kind, seed):
        started = time.thread_time()
        verdict = verify(attack.gold, attack.response, kind, attack.choices, **attack.options)
        passed = verdict.correct or verdict.score > attack.at_most or time.thread_time() - started > SECONDS
        found.append(Outcome(attack.name, verdict.score, passed, verdict.seconds, verdict.reason))
    return found


def _group(seed: Seed, *texts: str) -> Group:
    options = {key: value for key, value in seed.options.items() if key in ("meta",)}
    row = Row("attack", "?", answer=seed.gold, choices=seed.choices, meta=dict(options.get("meta", {})))
    prompt = Prompt(row, ())
    return Group(prompt, [Rollout(prompt, list(range(len(text.split()))), text=text) for text in texts])


def _scores(reward: Reward, seed: Seed, *texts: str) -> list[float]:
    return numbers(reward, _group(seed, *texts))


def attack_reward(reward: Reward, seed: Seed, attacks: list[Attack], right: str = "") -> list[Outcome]:
    """Score [the right answer, silence, the attack] as a group: an attack passes that earns more than half of what lies between these two.

    Raises ValueError where the right answer earns no more than silence: then nothing can be told.
    """
    right = right or f"<answer>{seed.right}</answer>"
    math_pool.warm(wait=True)
    found = []
    alone = type(reward).score is Reward.score
    best, least = _scores(reward, seed, right, "") if alone else (0.0, 0.0)
    for attack in attacks:
        started = time.thread_time()
        if alone:
            (earned,) = _scores(reward, seed, attack.response)
        else:
            best, least, earned = _scores(reward, seed, right, "", attack.response)
        seconds = (time.thread_time() - started) / (1 if alone else 3)
        if not best > least:
            raise ValueError(
                f"attack: {reward.name!r} gives {best:g} to the right answer {right[:60]!r} and {least:g} to silence: nothing can be told"
            )
        passed = earned - least > 0.5 * (best - least) or seconds > SECONDS
        found.append(Outcome(attack.name, earned, passed, seconds, f"right {best:g}, silence {least:g}"))
    return found


def reward_of_kind() -> dict[str, str]:
    """Reward name -> kind, for rewards that a kind is made of."""
    kinds()
    pairs = ((re.search(r"reward '(\w+)'", inspect.getdoc(function) or ""), kind) for kind, function in VERIFIERS.items())
    return {match[1]: kind for match, kind in pairs if match} | {name: name for name in names(Reward) if name in attacks_text.SEEDS}


def attack(name: str, seed: Seed | None = None) -> list[Outcome]:
    """Audit a reward or a kind by its name. Raises ValueError for a name that is neither, or that needs an example."""
    all_kinds, rewards = kinds(), names(Reward)
    if name not in all_kinds and name not in rewards:
        raise ValueError(f"attack: no kind or reward named {name!r}.{suggest(name, [*all_kinds, *rewards])}")
    if name in FORMS and seed is None:
        form = FORMS[name]
        made = replace(attacks_text.SEEDS["math"], right=form.right)
        listed = [one for one in attacks_text.hidden(name, made) if one.name in form.only]
        return attack_reward(build(Reward, dict(form.spec)), made, listed, form.right)
    if name in NESTED and seed is None:
        spec, seed = NESTED[name]
        return attack_reward(build(Reward, spec), seed, corpus(name, seed))
    if name in all_kinds:
        return attack_kind(name, seed)
    kind = reward_of_kind().get(name)
    seed = seed or (seed_of(kind) if kind else None)
    if seed is None:
        raise ValueError(f"attack: the reward {name!r} has no example; give one with --example (a JSON line with gold, right, wrong)")
    options = {key: value for key, value in seed.options.items() if key not in ("meta", "spaces")} if kind else {}
    return attack_reward(build(Reward, {"name": name, **options}), seed, corpus(kind or name, seed))

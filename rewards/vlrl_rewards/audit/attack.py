"""The audit of a verifier or a reward: every attack of the corpus, and which of them pass."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from vlrl.plugins.registry import build, names, suggest
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Prompt, Rollout, Row
from vlrl_rewards.audit import perception as attacks_perception
from vlrl_rewards.audit import text as attacks_text
from vlrl_rewards.audit.forms import EXEMPT, FORMS, NESTED
from vlrl_rewards.audit.perception import Attack, Seed
from vlrl_rewards.combine.nested import numbers
from vlrl_rewards.kinds import KINDS
from vlrl_rewards.math import pool as math_pool
from vlrl_rewards.verification import kinds, load, verify

SECONDS = 2.0


class Outcome(NamedTuple):
    """The result of one attack: its score, and whether it passed. An attack that takes more than SECONDS of
    processor time passes too."""

    attack: str
    score: float
    passed: bool
    seconds: float
    reason: str
    response: str = ""


def seed_of(kind: str) -> Seed:
    """The seed from which the attacks on a kind are made. Raises ValueError for a kind without a seed."""
    kind = attacks_text.ALIASES.get(kind, kind)
    found = attacks_text.SEEDS.get(kind) or attacks_perception.SEEDS.get(kind)
    if found is None:
        raise ValueError(
            "attack: no seed for "
            f"{kind!r}.{suggest(kind, [*attacks_text.SEEDS, *attacks_perception.SEEDS])} Give one with "
            "--example."
        )
    return found


def seed_from(path: Path) -> Seed:
    """The seed of an example file: JSON {"gold", "right", "wrong": [...], "choices"?, "meta"?, "options"?}.
    Raises ValueError if a key is missing."""
    row = json.loads(path.read_text(encoding="utf-8"))
    missing = [key for key in ("gold", "right", "wrong") if not isinstance(row, Mapping) or key not in row]
    if missing:
        raise ValueError(f"{path}: needs {', '.join(missing)}; give {{'gold', 'right', 'wrong': [...]}}")
    wrong = (row["wrong"],) if isinstance(row["wrong"], str) else tuple(row["wrong"])
    if not wrong:
        raise ValueError(f"{path}: wrong is empty; give at least one wrong answer")
    options = {**row.get("options", {}), **({"meta": row["meta"]} if "meta" in row else {})}
    return Seed(row["gold"], row["right"], wrong, options=options, choices=tuple(row.get("choices", ())))


def corpus(kind: str, seed: Seed | None = None) -> list[Attack]:
    """Every attack on a kind, made from `seed` or from the kind's own seed."""
    seed = seed or seed_of(kind)
    table = attacks_perception.SEEDS
    known = kind in table and table[kind] is seed
    own = list(attacks_perception.attacks(kind)) if known else list(attacks_text.hidden(kind, seed))
    return [*own, *attacks_text.common(kind, seed)]


def attack_kind(kind: str, seed: Seed | None = None) -> list[Outcome]:
    """Run the corpus against `verify(kind=...)`. An attack passes if it is judged correct, scores above its
    limit, or takes too long."""
    load(kind)
    math_pool.warm(wait=True)
    found = []
    for attack in corpus(kind, seed):
        started = time.thread_time()
        verdict = verify(attack.gold, attack.response, kind, attack.choices, **attack.options)
        passed = verdict.correct or verdict.score > attack.at_most or time.thread_time() - started > SECONDS
        found.append(
            Outcome(attack.name, verdict.score, passed, verdict.seconds, verdict.reason, attack.response)
        )
    return found


def _group(seed: Seed, *texts: str) -> Group:
    meta, question = dict(seed.options.get("meta", {})), str(seed.options.get("question", "?"))
    row = Row("attack", question, answer=seed.gold, choices=seed.choices, meta=meta)
    prompt = Prompt(row, ())
    return Group(prompt, [Rollout(prompt, list(range(len(text.split()))), text=text) for text in texts])


def _scores(reward: Reward, seed: Seed, *texts: str) -> list[float]:
    return numbers(reward, _group(seed, *texts))


def attack_reward(reward: Reward, seed: Seed, attacks: list[Attack], right: str = "") -> list[Outcome]:
    """Score the group [correct, correct, empty, attack]. An attack passes above the mean of the scores of the
    correct and the empty response.

    Raises ValueError where the correct answer scores no more than the empty response, and where the reward
    reads meta that the example lacks.
    """
    right = right or f"<answer>{seed.right}</answer>"
    math_pool.warm(wait=True)
    found = []
    alone = type(reward).score_group is Reward.score_group
    best, empty = 0.0, 0.0
    try:
        best, empty = _scores(reward, seed, right, "")
    except KeyError as error:
        raise ValueError(
            f"attack: the reward {reward.name!r} reads the key {error}, which the example does not have; "
            f"add 'meta': {{{error}: ...}} to the file of --example"
        ) from None
    for attack in attacks:
        started = time.thread_time()
        if alone:
            (earned,) = _scores(reward, seed, attack.response)
        else:
            best, _, empty, earned = _scores(reward, seed, right, right, "", attack.response)
        seconds = (time.thread_time() - started) / (1 if alone else 4)
        if not best > empty:
            raise ValueError(
                f"attack: {reward.name!r} scores {best:g} for the correct answer {right[:60]!r} and "
                f"{empty:g} for an empty response; "
                "the correct answer must score more"
            )
        passed = earned - empty > 0.5 * (best - empty) or seconds > SECONDS
        found.append(
            Outcome(
                attack.name, earned, passed, seconds, f"correct {best:g}, empty {empty:g}", attack.response
            )
        )
    return found


def reward_of_kind() -> dict[str, str]:
    """Reward name -> kind, for the rewards that define a kind."""
    kinds()
    return {kind.reward: name for name, kind in KINDS.items() if kind.reward} | {
        name: name for name in names(Reward) if name in attacks_text.SEEDS
    }


def attack(name: str, seed: Seed | None = None) -> list[Outcome]:
    """Audit a reward or a kind by its name. Raises ValueError for a name that is neither, that needs an
    example, or that cannot be audited."""
    all_kinds, rewards = kinds(), names(Reward)
    if name not in all_kinds and name not in rewards:
        raise ValueError(f"attack: no kind or reward named {name!r}.{suggest(name, [*all_kinds, *rewards])}")
    if name in EXEMPT and seed is None:
        raise ValueError(f"attack: the reward {name!r} cannot be audited: {EXEMPT[name]}")
    if name in FORMS and seed is None:
        form = FORMS[name]
        made = replace(form.seed, right=form.right)
        listed = [one for one in attacks_text.hidden(name, made) if one.name in form.only]
        listed += [Attack(name, own, made.gold, response) for own, response in form.own.items()]
        return attack_reward(build(Reward, dict(form.spec)), made, listed, form.right)
    if name in NESTED and seed is None:
        spec, seed = NESTED[name]
        return attack_reward(build(Reward, spec), seed, corpus(name, seed))
    if name in all_kinds:
        return attack_kind(name, seed)
    kind = reward_of_kind().get(name)
    seed = seed or (seed_of(kind) if kind else None)
    if seed is None:
        raise ValueError(
            f"attack: the reward {name!r} has no example; give one with --example (a JSON file with gold, "
            "right, wrong, and meta if read)"
        )
    options = (
        {key: value for key, value in seed.options.items() if key not in ("meta", "spaces")} if kind else {}
    )
    return attack_reward(build(Reward, {"name": name, **options}), seed, corpus(kind or name, seed))

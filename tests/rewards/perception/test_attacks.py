"""No attack passes on any perception kind, and every kind is attacked."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from vlrl_rewards.audit.perception import ALIASES, SEEDS, attacks
from vlrl_rewards.graded import Graded
from vlrl_rewards.kinds import KINDS
from vlrl_rewards.verification import kinds, verify
from vlrl_rewards.verified import ByKind

from vlrl.plugins.registry import get, names
from vlrl.plugins.stages import Reward

# graded rewards that have their cases with the puzzles and with text
ELSEWHERE = {
    *("sat", "chain", "graph", "sequence", "stated_steps", "exact", "filled", "places", "date_decay"),
    *("date_gap", "date_order", "masked_date", "rerank", "table_evidence", "term_recall"),
    *("patch_similarity", "code_edit", "checkers", "verilog", "triton_kernel", "unit_test_feedback"),
    *("formal_proof", "transcript", "transcript_faults", "transcript_keywords", "squad"),
}


def perception_rewards():
    """Names of the graded rewards of this chapter."""
    graded = {name for name in names(Reward) if issubclass(get(Reward, name), Graded)}
    return {name for name in graded if not issubclass(get(Reward, name), ByKind)} - ELSEWHERE


def graded_kinds():
    """Kind -> the reward that defines it."""
    kinds()
    return {name: kind.reward for name, kind in KINDS.items() if kind.reward}


@pytest.mark.sweep
@pytest.mark.parametrize("kind", sorted(SEEDS))
def test_nothing_passes(kind):
    kinds()  # imports everything, once
    passed = []
    for attack in attacks(kind):
        started = time.thread_time()
        verdict = verify(attack.gold, attack.response, kind=kind, choices=attack.choices, **attack.options)
        assert time.thread_time() - started < 2.0, attack.name
        if verdict.correct or verdict.score > attack.at_most:
            passed.append((attack.name, verdict))
    assert not passed


@pytest.mark.parametrize("kind", sorted(SEEDS))
def test_the_right_answer_does(kind):
    seed = SEEDS[kind]
    for response in (
        f"<answer>{seed.right}</answer>",
        f"<think>Hm, {seed.wrong[0]}?</think>\n<answer>{seed.right}</answer>",
    ):
        verdict = verify(seed.gold, response, kind=kind, choices=seed.choices, **seed.options)
        assert (
            verdict.correct
            and verdict.score > 0.99
            and verdict.span == (response.rindex(seed.right), response.rindex(seed.right) + len(seed.right))
        )


def test_every_kind_is_attacked():
    rewards = set(graded_kinds().values())
    assert set(ALIASES.values()) <= set(SEEDS) and all(
        KINDS[alias] is KINDS[kind] for alias, kind in ALIASES.items()
    )
    assert {KINDS[kind].reward for kind in SEEDS if kind not in ALIASES} == rewards


def test_silence_earns_the_least_of_every_reward(rollout):
    tried = set()
    for kind, seed in SEEDS.items():
        kinds()
        cls = get(Reward, KINDS[kind].reward)
        reward = cls(**{k: v for k, v in seed.options.items() if k not in ("meta", "spaces")})
        assert isinstance(reward, Graded)
        for text in ("", "<answer></answer>", f"<think>{seed.right}</think>"):
            assert (
                reward(rollout(seed.gold, text, choices=seed.choices, **seed.options.get("meta", {})))
                == reward.lowest()
            )
        tried.add(cls.name)
    # a variant of iou, three that judge the way and not the answer, and three that need more than a seed has
    # (a policy, a thought, a row's meta)
    others = {"iou_hard", "process_order", "blink", "several_paths", "bmas", "preference", "entity_named"}
    assert perception_rewards() - tried == others


def test_every_reward_is_in_the_guide():
    guide = (Path(__file__).parents[3] / "rewards" / "PERCEPTION.md").read_text()
    assert not [name for name in perception_rewards() | {"box_agreement"} if f"| `{name}` |" not in guide]
    assert not [kind for kind in graded_kinds() if f"`{kind}`" not in guide]

"""Runs the stated proofs and writes docs/proofs.csv, which docs/papers.md shows: `python
scripts/run_proofs.py [PRESET ...] [--switched-off]`.

With `--switched-off` each preset's plug-ins are made neutral in the code, one after the other (a shaping that
changes nothing, a weight of 1, GRPO's advantages ...), and the proof must fail for at least one of them: a
proof that passes all the same does not depend on the mechanism.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from vlrl.activity import proof as proofs
from vlrl.activity.proof import Verdict, about_of, base_of, proof_config, proof_of, prove
from vlrl.config import at, folders
from vlrl.methods.core.sampling import Plain
from vlrl.plugins import stages as S
from vlrl.plugins.registry import ConfigError, build, get
from vlrl.types import FilterDecision, PerToken

ROOT = Path(__file__).parents[1]
FIELDS = ("preset", "kind", "task", "observe", "direction", "off", "on", "proven")


def presets() -> list[str]:
    """All presets that state a proof."""
    names = sorted(f"methods/{path.stem}" for path in (folders()[-1] / "methods").glob("*.yaml"))
    return [name for name in names if about_of(name).get("proof")]


def record(verdicts: Sequence[Verdict]) -> None:
    """Write the figures of the given proofs into docs/proofs.csv; those of other presets stay."""
    path = ROOT / "docs" / "proofs.csv"
    rows = (
        {row["preset"]: row for row in csv.DictReader(path.open(encoding="utf-8"))} if path.is_file() else {}
    )
    for verdict in verdicts:
        about = about_of(verdict.preset)
        stated = proof_of(about, verdict.preset)
        assert stated is not None
        proven = verdict.holds and verdict.off_is_base and not verdict.bad
        values = [
            verdict.preset.removeprefix("methods/"),
            about["kind"],
            about["task"],
            stated.observe,
            stated.direction,
        ]
        numbers = ["" if value is None else f"{value:.4g}" for value in (verdict.off, verdict.on)]
        rows[values[0]] = dict(zip(FIELDS, [*values, *numbers, "yes" if proven else "no"], strict=True))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for _, row in sorted(rows.items()))


# --- switched off in the code -------------------------------------------------------------------------------


def _default(stage: type[S.Stage], name: str, method: str = "__call__") -> Callable[..., Any]:
    """A method that does what the default plug-in of a stage does, whatever the plug-in that it is called on;
    also where that is the same class."""
    original = getattr(type(build(stage, {"name": name}, name)), method)
    made: dict[
        int, tuple[Any, Any]
    ] = {}  # id of a plug-in -> (the plug-in, the default one in its place, with a state of its own)

    def call(self: Any, *arguments: Any) -> Any:
        _, plugin = made.setdefault(id(self), (self, build(stage, {"name": name}, name)))
        if self.is_set_up and not plugin.is_set_up:
            plugin.setup(self.run)
        return original(plugin, *arguments)

    return call


SAMPLE = Plain.__call__  # also where that is the patched class
NEUTRAL: dict[type[S.Stage], dict[str, Callable[..., Any]]] = {  # stage -> method -> what does nothing
    S.RewardShaping: {"__call__": lambda self, group: group.rewards},
    S.GroupFilter: {"__call__": lambda self, group: FilterDecision(True)},
    S.ReplayBuffer: {"__call__": lambda self, groups: list(groups)},
    S.AdvantageEstimator: {
        "__call__": _default(S.AdvantageEstimator, "grpo"),
        "prepare": lambda self, groups: None,
    },
    S.TokenCredit: {
        "__call__": lambda self, group, advantages: [[a] * len(r) for r, a in zip(group, advantages)]
    },
    S.PolicyLoss: {"__call__": _default(S.PolicyLoss, "ppo_clip")},
    S.TokenWeight: {"__call__": lambda self, x: torch.ones_like(x.mask_BT)},
    S.LossTerm: {"__call__": lambda self, x: PerToken(x.logp_BT * 0.0, {})},
    S.LossAggregation: {"weights": _default(S.LossAggregation, "sequence_mean", "weights")},
    S.RolloutStrategy: {"__call__": _default(S.RolloutStrategy, "independent")},
    S.RolloutBudget: {"__call__": _default(S.RolloutBudget, "equal")},
    S.PromptSampler: {"__call__": _default(S.PromptSampler, "shuffle")},
    S.SamplingPolicy: {
        "__call__": lambda self, prompt, attempt: SAMPLE(Plain(max_tokens=self.max_tokens), prompt, attempt)
    },
    S.PromptTemplate: {"__call__": _default(S.PromptTemplate, "chat")},
    S.Trainable: {"__call__": _default(S.Trainable, "full")},
    S.Select: {"__call__": lambda self, rows: rows},
    S.Reward: {
        "__call__": lambda self, rollout: 0.0,
        "score_group": lambda self, group: [0.0] * len(group),
        "correct": lambda self, rollout, score: False,
    },
    S.Callback: {"__call__": lambda self, run, groups: {}, "end_step": lambda self, run: None},
}


def mechanisms(preset: str) -> list[type[S.Stage]]:
    """The classes of the plug-ins that a proof's `off` removes or replaces, those named after the preset
    first."""
    about = about_of(preset)
    stated = proof_of(about, preset)
    assert stated is not None
    on = proof_config(preset, about["task"], stated, stated.on)
    base = proof_config(base_of(preset, stated), about["task"], stated, stated.base)
    kinds = {
        "advantage": S.AdvantageEstimator,
        "token_credit": S.TokenCredit,
        "policy_loss": S.PolicyLoss,
        "loss_aggregation": S.LossAggregation,
    }
    kinds |= {
        "trainable": S.Trainable,
        "rollout": S.RolloutStrategy,
        "rollout_budget": S.RolloutBudget,
        "replay": S.ReplayBuffer,
    }
    kinds |= {
        "sampling": S.SamplingPolicy,
        "prompt_sampler": S.PromptSampler,
        "prompt_template": S.PromptTemplate,
    }
    maps = {
        "reward_shaping": S.RewardShaping,
        "group_filters": S.GroupFilter,
        "token_weights": S.TokenWeight,
        "loss_terms": S.LossTerm,
    }
    maps |= {"select": S.Select, "rewards": S.Reward, "callbacks": S.Callback}
    found = []
    for phase in on.phases:
        tree, other = on.phase(phase), base.phase(phase if phase in base.phases else base.phases[-1])
        paths = [(slot, stage) for slot, stage in kinds.items()]
        paths += [
            (f"{group}.{name}", stage) for group, stage in maps.items() for name in (tree.get(group) or {})
        ]
        for path, stage in paths:
            spec = at(tree, path)
            if spec and spec != at(other, path):
                found.append(get(stage, spec["name"] if isinstance(spec, dict) else spec, path))
    own = preset.removeprefix("methods/")
    return sorted(dict.fromkeys(found), key=lambda cls: not cls.name.startswith(own))


@contextmanager
def neutral(cls: type[S.Stage]) -> Iterator[None]:
    """A plug-in class that does nothing while the context lasts."""
    stage = next(base for base in cls.__mro__ if base in NEUTRAL)
    proofs.OBSERVED.clear()
    with patch.multiple(cls, **NEUTRAL[stage]):
        yield
    proofs.OBSERVED.clear()


def switched_off(preset: str) -> tuple[bool, str]:
    """Whether the proof fails with one of the preset's mechanisms neutral in the code, and which."""
    tried = []
    for cls in mechanisms(preset):
        try:
            with neutral(cls):
                verdict = prove(preset)
            red = not verdict.holds or bool(verdict.bad)
        except (ConfigError, RuntimeError, ValueError, KeyError, AssertionError) as error:
            red = True
            cls = type(cls.__name__, (), {"name": f"{cls.name} ({type(error).__name__})"})
        if red:
            return True, cls.name
        tried.append(cls.name)
    if not tried:
        return about_of(preset)["kind"] == "recipe", "no plug-in (values alone)"
    return False, ", ".join(tried)


def main() -> None:
    """Run the proofs of the given presets and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="*")
    parser.add_argument("--switched-off", action="store_true")
    arguments = parser.parse_args()
    failed = 0
    verdicts = []
    for preset in arguments.preset or presets():
        if arguments.switched_off:
            red, which = switched_off(preset)
            print(f"{preset}: {'fails' if red else 'PASSES'} with {which} switched off", flush=True)
            failed += not red
        else:
            verdict = prove(preset)
            print(verdict, flush=True)
            verdicts.append(verdict)
            failed += not (verdict.holds and verdict.off_is_base and not verdict.bad)
    if verdicts:
        record(verdicts)
    sys.exit(f"{failed} failed" if failed else 0)


if __name__ == "__main__":
    main()

"""SELF: training on prompts of low likelihood only, that is, prompts whose greedy completion is wrong.

`self` is a group filter. It reads the greedy completion that rollout `remax.greedy_baseline` samples.

Paper: Nguyen et al. 2025 (SELF), arXiv:2510.02230; checked against RayMaxPPOTrainer of the release.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.methods.papers.remax import GREEDY_BASELINE, READS_GREEDY
from vlrl.plugins.registry import register
from vlrl.plugins.stages import GroupFilter
from vlrl.types import FilterDecision, Group


@register("self")
@dataclass(frozen=True)
class Self(GroupFilter):
    """SELF's prompt filter: keeps a group whose greedy completion is not correct.

    Paper: Nguyen et al. 2025 (SELF), arXiv:2510.02230: training on prompts of low likelihood; checked against
    RayMaxPPOTrainer of the release, which decodes each prompt greedily and drops those whose reward is 1.
    Deviates: the release samples the group only after that; here rollout `remax.greedy_baseline` samples
    both, which costs the samples of the dropped groups and changes nothing else.
    Edge: a group whose greedy completion could not be scored is dropped.
    """

    provides = (READS_GREEDY,)
    requires = (GREEDY_BASELINE,)

    def __call__(self, group: Group) -> FilterDecision:
        greedy = next((rollout for rollout in group.untrained if rollout.source == "greedy"), None)
        if greedy is None:
            return FilterDecision(False, "no greedy answer")
        return FilterDecision(False, "solved greedily") if greedy.correct else FilterDecision(True)

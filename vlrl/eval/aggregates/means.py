"""Figures from scores: means, means of means, groups that count as a whole, and the figures of We-Math,
VideoMMMU and IFEval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.eval.scorer import Aggregate, Record
from vlrl.plugins.registry import register
from vlrl.plugins.scoring import Verdict


def values_of(record: Record, path: str) -> list[str]:
    """The values at a dotted path, as text: one, or one per entry of a list; none for a missing field."""
    value: Any = record
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return []
        value = value[part]
    if value is None:
        return []
    return [str(label) for label in value] if isinstance(value, (list, tuple)) else [str(value)]


def mean(scores: Sequence[float]) -> float:
    """The mean; 0 without scores."""
    return sum(scores) / len(scores) if scores else 0.0


def by_group(records: Sequence[Record], scored: Sequence[Verdict], path: str) -> dict[str, list[float]]:
    """Scores by the value at `path`, in order of first appearance; a record with several values counts under
    each."""
    groups: dict[str, list[float]] = {}
    for record, entry in zip(records, scored, strict=True):
        for value in values_of(record, path):
            groups.setdefault(value, []).append(entry.score)
    return groups


@register("mean")
@dataclass(frozen=True)
class Mean(Aggregate):
    """Mean: overall = mean of all scores; every field in `by` adds the mean for each of its values.

    Paper: vlrl original. Edge: no records give 0; a record without the field counts only in the overall
    figure.
    """

    by: tuple[str, ...] = ()

    def __call__(self, records: Sequence[Record], scored: Sequence[Verdict]) -> dict[str, float]:
        out = {"overall": mean([entry.score for entry in scored])}
        for path in self.by:
            for value, scores in by_group(records, scored, path).items():
                out[f"{path.rpartition('.')[2]}/{value}"] = mean(scores)
        return out

    def paths(self, records: Sequence[Record]) -> list[tuple[str, ...]]:
        return [()] * len(records)


@register("nested_mean")
@dataclass(frozen=True)
class NestedMean(Aggregate):
    """Macro average: overall = mean over the groups of the first level of the mean over the groups of the
    next ... of the mean score.

    Paper: vlrl original; the macro averages of VSI-Bench (arXiv:2412.14171), MMStar, MLVU and CV-Bench.
    `merge` renames values of the first level (three direction tasks become one). Edge: a group without
    records is left out, so that part of a benchmark gives the average over the groups it has.
    """

    levels: tuple[str, ...] = ()
    merge: Mapping[str, str] = field(default_factory=dict)

    def paths(self, records: Sequence[Record]) -> list[tuple[str, ...]]:
        """The groups of each record, outermost first."""
        out = []
        for record in records:
            values = [next(iter(values_of(record, level)), "none") for level in self.levels]
            out.append((self.merge.get(values[0], values[0]), *values[1:]) if values else ())
        return out

    def __call__(self, records: Sequence[Record], scored: Sequence[Verdict]) -> dict[str, float]:
        paths = self.paths(records)
        scores = [entry.score for entry in scored]
        out = {"overall": self._fold(paths, scores, 0)}
        first: dict[str, list[int]] = {}
        for i, path in enumerate(paths):
            first.setdefault(path[0] if path else "all", []).append(i)
        for name, members in first.items():
            out[name] = self._fold([paths[i] for i in members], [scores[i] for i in members], 1)
        return out

    def _fold(self, paths: list[tuple[str, ...]], scores: list[float], depth: int) -> float:
        if depth == len(self.levels):
            return mean(scores)
        groups: dict[str, list[int]] = {}
        for i, path in enumerate(paths):
            groups.setdefault(path[depth], []).append(i)
        return mean(
            [
                self._fold([paths[i] for i in members], [scores[i] for i in members], depth + 1)
                for members in groups.values()
            ]
        )


@register("whole_groups")
@dataclass(frozen=True)
class WholeGroups(Aggregate):
    """Group accuracy: overall = mean of all scores; each entry "name=field+field" of `groups` adds the share
    of groups with all answers correct.

    Paper: HallusionBench (arXiv:2310.14566): aAcc, fAcc (figures), qAcc (questions). `headline` names the
    figure to use as the overall one.
    """

    groups: tuple[str, ...] = ()
    headline: str = ""

    def __call__(self, records: Sequence[Record], scored: Sequence[Verdict]) -> dict[str, float]:
        out = {"overall": mean([entry.score for entry in scored])}
        for group in self.groups:
            name, _, fields = group.partition("=")
            members: dict[tuple, list[float]] = {}
            for record, entry in zip(records, scored, strict=True):
                key = tuple(next(iter(values_of(record, path)), "") for path in fields.split("+"))
                members.setdefault(key, []).append(entry.score)
            out[name] = mean([float(all(score >= 1 for score in scores)) for scores in members.values()])
        if self.headline:
            out["overall"] = out[self.headline]
        return out


@register("we_math")
@dataclass(frozen=True)
class WeMath(Aggregate):
    """We-Math: overall = 1 - (0.5 IG + RM + IK) / problems, over problems of two or three steps.

    IK (insufficient knowledge): the whole and some step wrong; IG (inadequate generalization): the whole
    wrong, every step correct. The whole correct is CM (complete mastery) if every step is correct (strict) or
    any (loose), else RM (rote memorization). Paper: We-Math, arXiv:2407.01284, eq. 1. The records of a
    problem share an `ID`; `key` is "2steps_1", ..., "2steps_multi". Deviates: the denominator is the number
    of problems in the records, not always 525, which would overstate the score of a part.
    """

    id: str = "ID"
    key: str = "key"
    strict: bool = True

    def __call__(self, records: Sequence[Record], scored: Sequence[Verdict]) -> dict[str, float]:
        problems: dict[str, dict[str, float]] = {}
        for record, entry in zip(records, scored, strict=True):
            problems.setdefault(str(record[self.id]), {})[str(record[self.key])] = entry.score
        counts = dict.fromkeys(("IK", "IG", "CM", "RM"), 0)
        for answers in problems.values():
            whole = [score for key, score in answers.items() if key.endswith("multi")]
            steps = [score >= 1 for key, score in answers.items() if not key.endswith("multi")]
            if whole and steps:
                counts[self._kind(whole[0] >= 1, steps)] += 1
        total = sum(counts.values())
        share = {name: count / total if total else 0.0 for name, count in counts.items()}
        overall = 1 - 0.5 * share["IG"] - share["RM"] - share["IK"] if total else 0.0
        steps_means = {
            f"step/{name}": mean(scores) for name, scores in by_group(records, scored, self.key).items()
        }
        return {"overall": overall, **share, **steps_means}

    def _kind(self, whole: bool, steps: list[bool]) -> str:
        if not whole:
            return "IG" if all(steps) else "IK"
        mastered = all(steps) if self.strict else any(steps)
        return "CM" if mastered else "RM"


@register("knowledge_gain")
@dataclass(frozen=True)
class KnowledgeGain(Aggregate):
    """Knowledge gain: overall = mean of all scores; knowledge_gain = (after - before) / (1 - before), means
    over the records with `before`.

    Paper: VideoMMMU, arXiv:2501.13826, eq. 1. `by` names the field of the track, `before` the field of the
    score before the video was shown.
    """

    by: str = "track"
    before: str = "before"

    def __call__(self, records: Sequence[Record], scored: Sequence[Verdict]) -> dict[str, float]:
        out = {"overall": mean([entry.score for entry in scored])}
        out |= {
            f"{self.by}/{name}": mean(scores) for name, scores in by_group(records, scored, self.by).items()
        }
        pairs = [
            (float(record[self.before]), entry.score)
            for record, entry in zip(records, scored, strict=True)
            if record.get(self.before) is not None
        ]
        if pairs and mean([b for b, _ in pairs]) < 1:
            before = mean([b for b, _ in pairs])
            out["knowledge_gain"] = (mean([a for _, a in pairs]) - before) / (1 - before)
        return out


@register("instructions")
@dataclass(frozen=True)
class InstructionFigures(Aggregate):
    """IFEval: overall = share of prompts with every instruction followed; instruction = share of instructions
    followed.

    Paper: IFEval, arXiv:2311.07911, sec. 2.2. A prompt's score is the share of its instructions that are
    followed.
    """

    count: str = "instruction_id_list"

    def __call__(self, records: Sequence[Record], scored: Sequence[Verdict]) -> dict[str, float]:
        numbers = [max(1, len(record.get(self.count) or ())) for record in records]
        kept = sum(entry.score * number for entry, number in zip(scored, numbers, strict=True))
        return {
            "overall": mean([float(entry.score >= 1) for entry in scored]),
            "instruction": kept / max(1, sum(numbers)),
        }

"""What a judge or a reward model is worth: attacks, right answers in several forms, and labelled data, as
rates.

    report = check(judge)        # false accepts and rejects, nulls, flips, agreement, cost per 1,000
    report.findings              # what is wrong with it, in words; [] of a good judge

A judge without a verdict neither accepts nor rejects: it counts in `null` alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from vlrl.beside.attacks import NEAR, RIGHT, AttackCase, Item, cases
from vlrl.beside.benchmarks import TIES, Compared, best_of, compared, mean, summary
from vlrl.beside.judge import Judge, Judgement, Question
from vlrl.beside.process_bench import is_solution, scores, solutions
from vlrl.beside.process_bench import judged as judged_steps
from vlrl.beside.scored import ScoredByModel
from vlrl.plugins.registry import ConfigError
from vlrl.types import Media

UnderCheck = Judge | ScoredByModel  # a reward model has values in place of verdicts
FIELDS = {"question", "reference", "answer", "answer_a", "answer_b", "criteria"}


@dataclass(frozen=True)
class JudgeLimits:
    """The largest rates of a judge that may be trusted."""

    null: float = 0.05
    false_accept: float = 0.05
    false_reject: float = 0.10
    flip: float = 0.10


@dataclass
class JudgeReport:
    """Rates of a judge over what it could be read on; `by_attack` are false accepts per attack.

    `flip`: of pairs, those whose orders disagree; else the items whose right answer is accepted in one form
    and rejected in another.
    """

    judgements: int = 0
    null: float = 0.0
    failed: float = 0.0
    false_accept: float = 0.0
    false_reject: float = 0.0
    flip: float = 0.0
    agreement: float = 0.0
    by_attack: dict[str, float] = field(default_factory=dict)
    per_1000: dict[str, float] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """ "good", or the first of what is wrong: "broken", "gullible", "biased"."""
        return self.findings[0].partition(":")[0] if self.findings else "good"

    def to_plain(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"kind": self.kind, **asdict(self)}


def question_of(judge: UnderCheck, item: Item, answer: str) -> Question:
    """What the judge is asked about an answer to an item; of a pair, against the right answer, which stands
    first. Raises ConfigError for a template with other fields."""
    if judge.form == "ranking" or not set(judge.fields) <= FIELDS:
        raise ConfigError(
            f"judge check: template {judge.name!r} has the fields {', '.join(judge.fields)}; "
            f"those that can be attacked are {', '.join(sorted(FIELDS))}"
        )
    values = {
        "question": item.question,
        "reference": item.reference,
        "answer": answer,
        "answer_a": RIGHT["right, sentence"](item),
        "answer_b": answer,
        "criteria": f"- The final answer is {item.reference}, and no other answer is given.",
    }
    return Question(tuple((name, values[name]) for name in judge.fields))


def check(judge: UnderCheck, limit: int = 0, limits: JudgeLimits | None = None) -> JudgeReport:
    """Ask a judge or a reward model about all attacks on all items (or the first `limit`).

    A judge of scores accepts an answer that it rates at least as high as the right one; a judge of pairs one
    that it does not put behind the right one; a reward model one that it scores at least as high as the best
    form of the right one.
    """
    made = cases(limit)
    if judge.form == "pair":
        made = [case for case in made if not case.right]
    judged = judge.ask([question_of(judge, case.item, case.answer) for case in made])
    accepted = accepted_answers(judge, made, judged)
    report = rates(made, judged, accepted)
    usage = judge.usage
    asked = max(1, report.judgements)
    report.per_1000 = {
        "calls": 1000 * usage.calls / asked,
        "tokens": 1000 * (usage.prompt_tokens + usage.reply_tokens) / asked,
        "cost": 1000 * usage.cost(judge.prices) / asked,
    }
    report.findings = findings(report, limits or JudgeLimits())
    return report


def accepted_answers(
    judge: UnderCheck, made: Sequence[AttackCase], judged: Sequence[Judgement]
) -> list[bool | None]:
    """Whether each answer is accepted; None without a verdict."""
    values = [judgement.value for judgement in judged]
    if judge.form == "choice":
        return [None if value is None else value >= 0.5 for value in values]
    if judge.form == "pair":
        return [None if value is None else value <= 0.5 for value in values]
    best: dict[Item, list[float]] = defaultdict(list)
    for case, value in zip(made, values, strict=True):
        if case.right and value is not None:
            best[case.item].append(value)
    near = {case.item: value for case, value in zip(made, values, strict=True) if case.attack == NEAR}
    found: list[bool | None] = []
    for case, value in zip(made, values, strict=True):
        known = best[case.item]
        accepted = None
        if value is not None and known:
            accepted = value >= (max(known) if judge.form == "value" else mean(known)) - 1e-9
        if case.right and value is not None:
            least = near.get(case.item) if judge.form == "value" else 0.5
            accepted = None if least is None else value > least
        found.append(accepted)
    return found


def rates(
    made: Sequence[AttackCase], judged: Sequence[Judgement], accepted: Sequence[bool | None]
) -> JudgeReport:
    """The rates of a judge from its answers."""
    known = [(case, yes) for case, yes in zip(made, accepted, strict=True) if yes is not None]
    attacks: dict[str, list[bool]] = defaultdict(list)
    forms: dict[Item, set[bool]] = defaultdict(set)
    for case, yes in known:
        if case.right:
            forms[case.item].add(yes)
        else:
            attacks[case.attack].append(yes)
    wrong = [yes for several in attacks.values() for yes in several]
    right = [yes for case, yes in known if case.right]
    is_pair = not any(case.right for case in made)
    flips = [judgement.flipped for judgement in judged if judgement.value is not None]
    return JudgeReport(
        judgements=len(judged),
        null=mean([judgement.unread for judgement in judged]),
        failed=mean([judgement.failed for judgement in judged]),
        false_accept=mean(wrong),
        false_reject=mean([not yes for yes in right]),
        flip=mean(flips) if is_pair else mean([len(verdicts) > 1 for verdicts in forms.values()]),
        agreement=mean([yes is case.right for case, yes in known]),
        by_attack={name: mean(several) for name, several in attacks.items()},
    )


def findings(report: JudgeReport, limits: JudgeLimits) -> list[str]:
    """What is wrong with a judge, the worst first.

    broken: too many replies without a verdict, or it accepts nothing; gullible: it accepts what is wrong;
    biased: form, order or length decide.
    """
    found = []
    if report.null > limits.null:
        found.append(f"broken: {report.null:.1%} of the replies are no verdict (limit {limits.null:.0%})")
    if report.false_reject > 0.9:
        found.append(f"broken: it rejects {report.false_reject:.0%} of the right answers")
    if report.false_accept > limits.false_accept:
        worst = sorted(report.by_attack.items(), key=lambda entry: -entry[1])[:3]
        shown = ", ".join(f"{name} {rate:.0%}" for name, rate in worst if rate)
        flips = f"; its orders or forms disagree on {report.flip:.0%}" if report.flip > limits.flip else ""
        kind = "biased" if report.flip > 0.5 else "gullible"
        found.append(f"{kind}: it accepts {report.false_accept:.1%} of the attacks ({shown}){flips}")
    elif report.flip > limits.flip:
        found.append(f"biased: {report.flip:.0%} of its verdicts change with order, length or place")
    if limits.false_reject < report.false_reject <= 0.9:
        found.append(f"biased: it rejects {report.false_reject:.0%} of the right answers")
    return found


def labelled_rates(
    judge: UnderCheck,
    rows: Sequence[Mapping[str, Any]],
    pictures: Sequence[tuple[Media, ...]] = (),
) -> dict[str, Any]:
    """Accuracy on labelled data: rows of {question, answer, label, reference}, of {question, chosen,
    rejected}, or of a benchmark (`benchmarks.py`, `process_bench.py`), with its groups and their mean.
    `pictures`: those of each row, which the judge sees.

    A pair is right where the chosen answer wins: by the pair's verdict in both orders, a win counting 1 and a
    loss -1 (JudgeBench's rule: a sum of 0 is wrong), or by values, where answers that share the highest one
    share the credit (RewardBench 2's).
    """
    if any(map(is_solution, rows)):
        found = solutions(rows)
        if isinstance(judge, ScoredByModel):
            return scores(found, judge.first_wrong_steps(found))
        return scores(found, judged_steps(judge, found))
    questions: list[Question] = []
    known = [compared(row, number) for number, row in enumerate(rows)]
    starts = []
    for place, (row, entry) in enumerate(zip(rows, known, strict=True)):
        starts.append(len(questions))
        seen = pictures[place] if pictures else ()
        questions += [replace(one, images=seen) for one in _questions_of(judge, row, entry)]
    judged = judge.ask(questions)
    values = [judgement.value for judgement in judged]
    credits: list[tuple[str, float]] = []
    ties: dict[str, tuple[list[float], list[float]]] = {}
    null = 0
    for row, entry, start, stop in zip(rows, known, starts, [*starts[1:], len(values)]):
        part = [value for value in values[start:stop] if value is not None]
        if len(part) < stop - start:
            null += 1
        elif entry is None:
            credits.append(("", float((part[0] >= judge.middle) is bool(row["label"]))))
        elif judge.form == "pair":
            credits.append((entry.group, float(all(value > 0.5 for value in part))))
        else:
            chosen, rejected = part[: len(entry.chosen)], part[len(entry.chosen) :]
            if entry.group == TIES:
                ties[entry.id] = (chosen, rejected)
            else:
                credits.append((entry.group, best_of(chosen, rejected)))
    return {
        **summary(credits, ties),
        "null": null / max(1, len(rows)),
        "flip": mean([judgement.flipped for judgement in judged]),
        "rows": len(rows),
    }


def _questions_of(judge: UnderCheck, row: Mapping[str, Any], entry: Compared | None) -> list[Question]:
    """What the judge is asked about a record: each answer, or each chosen one against each rejected one."""

    def ask(answer: str, other: str = "") -> Question:
        values = {
            "question": str(row["question"]) if entry is None else entry.question,
            "reference": str(row.get("reference", "")),
            "answer": answer,
            "answer_a": answer,
            "answer_b": other,
            "criteria": str(row.get("criteria", "")),
        }
        return Question(tuple((name, values[name]) for name in judge.fields))

    if entry is None:
        return [ask(str(row["answer"]))]
    if judge.form == "pair":
        return [ask(one, other) for one in entry.chosen for other in entry.rejected]
    return [ask(answer) for answer in (*entry.chosen, *entry.rejected)]

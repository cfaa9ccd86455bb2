"""Rows that teach a judge: what a judge would be asked about a response, with the labelled verdict.

judge_rows   selection: rows with a response and a label become questions to a judge
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlrl.beside.templates import JudgeTemplate, load_template
from vlrl.methods.core.select import MappedRows
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.stages import Select
from vlrl.types import Row

PLACES = {  # field of a template -> where a row has it: an attribute, or a key of `meta`
    "question": "row.question",
    "reference": "row.answer",
    "answer": "response",
    "answer_a": "response_1",
    "answer_b": "response_2",
}


@register("judge_rows")
@dataclass(frozen=True)
class JudgeRows(Select):
    """Rows for training a judge: the question is the filled `template`, the answer the labelled verdict, and
    the demonstration its line ("Verdict: yes"), behind `meta.reason` where there is one.

    A template's fields are read from `fields` (field: "row.question", "row.answer", or a key of `meta`), else
    from `PLACES`, else from `meta` under their own name. `meta[label]` is a choice, true or false, a share of
    the ordered choices, or a number for a template of scores. For supervised training (rollout `expert`, loss
    term `nll`) and for rewards `judge_verdict`. vlrl original. Edge: a row without a field or with a label
    that is no verdict raises ValueError; thoughts that the response ends with `</think>` are shown too.
    """

    template: str = "correctness"
    fields: Mapping[str, str] = field(default_factory=dict)
    label: str = "label"
    task: str = "judge"

    def __post_init__(self) -> None:
        known = self.loaded.fields
        if unknown := sorted(set(self.fields) - set(known)):
            raise ConfigError(
                f"select: 'judge_rows': fields names {', '.join(unknown)}; template {self.template!r} has "
                f"{', '.join(known)}"
            )

    @property
    def loaded(self) -> JudgeTemplate:
        """The template."""
        return load_template(self.template)

    def __call__(self, rows: Sequence[Row]) -> Sequence[Row]:
        return MappedRows(rows, range(len(rows)), lambda row, copy: self.made(row))

    def made(self, row: Row) -> Row:
        """The row of a judge's question."""
        template = self.loaded
        values = {name: self.value(row, name) for name in template.fields}
        verdict = verdict_of(template, row.meta.get(self.label), f"row {row.id!r}: meta.{self.label}")
        reason = str(row.meta.get("reason", "")).strip()
        line = f"{template.label}: {verdict}"
        return replace(
            row,
            question="\n\n".join(text for text in (template.system, template.fill(values)) if text),
            answer=verdict,
            target=f"{reason}\n{line}" if reason else line,
            task=self.task,
            choices=(),
            rewards=(),
        )

    def value(self, row: Row, name: str) -> str:
        """What a row has for a field of the template."""
        place = self.fields.get(name, PLACES.get(name, name))
        attribute = place.removeprefix("row.")
        found = getattr(row, attribute, None) if attribute != place else row.meta.get(place)
        if found is None:
            raise ValueError(f"row {row.id!r}: 'judge_rows' reads {name} from {place}, which is not there")
        return str(found)


def verdict_of(template: JudgeTemplate, label: Any, where: str) -> str:
    """A label as a verdict of a template. Raises ValueError for one that is none."""
    if template.form == "score":
        if isinstance(label, (int, float)) and template.low <= label <= template.high:
            return f"{label:g}"
        raise ValueError(f"{where}: {label!r} is no number from {template.low:g} to {template.high:g}")
    choices = template.choices
    if isinstance(label, str):
        for choice in choices:
            if choice.casefold() == label.strip().casefold():
                return choice
    elif isinstance(label, (bool, int, float)) and 0 <= label <= 1 and template.form == "choice":
        return choices[round(float(label) * (len(choices) - 1))]
    raise ValueError(f"{where}: {label!r} is none of {', '.join(choices)}, and no share of them")

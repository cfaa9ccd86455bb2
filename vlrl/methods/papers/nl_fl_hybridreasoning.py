"""NL-FL HybridReasoning: a question in words and the same as an existence theorem are solved together; the
answer is read out of what was written.

    nl_fl_hybridreasoning   rollout strategy: problem alignment and mixed problem input

Paper: Wang et al. 2025 (Let's Reason Formally), arXiv:2505.23703. Code: RickySkywalker/CS761-HybridReasoning
@ 93cbbaa0, e6c3693d, 8dfdaf35: QA_to_existence_traslator.py, Autoformalizer.py, Prover.py,
Answer_collector.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlrl.methods.common.prompts import prompts_within_limit
from vlrl.methods.core.rollout import Independent
from vlrl.plugins.contexts import SamplingContext, StageContext
from vlrl.plugins.registry import build, register
from vlrl.plugins.stages import Engine, StepCounts, transient
from vlrl.types import Group, Prompt, Request, Row

ASK = (
    "Restate the question as a theorem in Lean 4 that says that an answer exists, without giving the answer. "
    "Reply with `theorem NAME ... : ... := by` in a ```lean4 block, and prove nothing.\n\n{question}"
)
MIXED = (
    "{question}\n\nThe same as a theorem, which says that an answer exists:\n```lean4\n{formal} := by\n```\n"
    "Reason about both. Give the tactics that prove the theorem in a ```lean4 block, then the answer."
)
_THEOREM = re.compile(r"theorem\b[\s\S]*?:=\s*by\b")  # Autoformalizer.py: what is taken of a reply


@dataclass
class NlFlHybridreasoningState(StepCounts):
    """`translator` is the opened engine."""

    translator: Any = transient()


@register("nl_fl_hybridreasoning")
@dataclass(frozen=True, kw_only=True)
class NlFlHybridreasoning(Independent):
    """NFL-HR's input: a row's question together with its existence theorem, `meta.formal`, which `translator`
    writes where the row has none.

    A question whose theorem could not be read is asked alone, so that the policy answers both kinds. Theorems
    that were written are kept in the rows' memory. Paper: arXiv:2505.23703, problem alignment and mixed
    problem input. Deviates: one model translates (there one rewrites the question, another formalises it,
    with several attempts each); the words of both prompts are ours. Logs the share of rows with a theorem.

    Attributes:
        translator: Config of an engine; without one, rows bring their theorems.
        ask, mixed: The prompts of the translator and of the policy.
    """

    state_class = NlFlHybridreasoningState
    translator: Mapping[str, Any] = field(default_factory=dict)
    ask: str = ASK
    mixed: str = MIXED
    max_tokens: int = 1024
    temperature: float = 0.6

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if self.translator:
            self.state.translator = build(Engine, dict(self.translator), "rollout.translator")
            self.state.translator.setup(run)

    def __call__(self, prompts: Sequence[Prompt], counts: Sequence[int], run: SamplingContext) -> list[Group]:
        rows = [prompt.row for prompt in prompts]
        theorems = self.theorems(rows, run)
        self.state.add(rows=len(rows), aligned=sum(row.id in theorems for row in rows))
        mixed = [self.mixed_row(row, theorems.get(row.id, "")) for row in rows]
        kept = {prompt.row.id: prompt for prompt in prompts_within_limit(run, mixed)}
        pairs = [
            (kept[p.row.id], count) for p, count in zip(prompts, counts, strict=True) if p.row.id in kept
        ]
        return super().__call__([prompt for prompt, _ in pairs], [count for _, count in pairs], run)

    def mixed_row(self, row: Row, theorem: str) -> Row:
        """The row with its theorem in the question; without one, the row itself."""
        if not theorem:
            return row
        question = self.mixed.replace("{formal}", theorem).replace("{question}", row.question)
        return replace(row, question=question, meta={**row.meta, "formal": theorem})

    def theorems(self, rows: Sequence[Row], run: SamplingContext) -> dict[str, str]:
        """The existence theorem of each row that has one, by row id; missing ones are asked for once."""
        found = {row.id: statement(str(row.meta["formal"])) for row in rows if row.meta.get("formal")}
        for row in rows:
            if "formal" in run.history.get(row.id, {}):
                found.setdefault(row.id, run.history[row.id]["formal"])
        missing = {row.id: row for row in rows if row.id not in found}
        if self.state.translator is not None and missing:
            sampling = replace(
                run.sampling(run.prompt_template(next(iter(missing.values()))), 0),
                temperature=self.temperature,
                max_tokens=self.max_tokens,
            )
            requests = [
                Request(translation_prompt(row, self.ask), sampling, tag=name)
                for name, row in missing.items()
            ]
            for completion in self.state.translator.generate(requests):
                name = completion.request.tag
                found[name] = read_theorem(completion.text)
                run.history.setdefault(name, {})["formal"] = found[name]
        return {name: text for name, text in found.items() if text}

    def metrics(self) -> dict[str, tuple[float, float]]:
        return {"nl_fl_hybridreasoning/aligned": self.state.share("aligned", "rows")}


def statement(text: str) -> str:
    """A theorem without `:= by` and what follows."""
    return text.partition(":= by")[0].strip()


def read_theorem(reply: str) -> str:
    """The last theorem of a reply, without its proof; "" for none."""
    found = _THEOREM.findall(reply)
    return re.sub(r":=\s*by$", "", found[-1]).strip() if found else ""


def translation_prompt(row: Row, ask: str) -> Prompt:
    """The translator's prompt, without pictures."""
    question = ask.replace("{question}", row.question)
    asked = replace(row, id=f"{row.id}/formal", question=question, images=(), videos=(), target="")
    return Prompt(asked, ({"role": "user", "content": question},))

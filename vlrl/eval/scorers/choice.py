"""Multiple choice and yes-or-no questions: a rule extracts the letter or word, which is compared with the
gold answer."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

from vlrl.eval.expressions import evaluate
from vlrl.eval.scorer import Record, Scorer
from vlrl.eval.scorers.readers import READERS
from vlrl.plugins.registry import register, suggest
from vlrl.plugins.scoring import Response, Verdict


@register("choice")
@dataclass(frozen=True)
class Choice(Scorer):
    """Multiple choice: score = [reader(response) == gold letter].

    Paper: the benchmark's own; see the reader. `answer` gives the gold letter, `choices` the options (for
    readers that compare their texts), `letters` the allowed letters where they do not follow from the number
    of options. Edge: a response without a letter is wrong; no letter is drawn at random.
    """

    reader: str = "ranked"
    answer: str = "row.answer"
    choices: str = ""
    letters: str = ""

    def __post_init__(self) -> None:
        if self.reader not in READERS:
            raise ValueError(f"reader: no reader {self.reader!r}.{suggest(self.reader, READERS)}")

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        choices = [str(choice) for choice in (evaluate(self.choices, row) or ())] if self.choices else []
        letters = self.letters or string.ascii_uppercase[: len(choices)] or "ABCDEFGH"
        read = READERS[self.reader](response.text, letters, choices)
        return self.scored(float(read is not None and read == gold), read, self.reader)

    def expected(self, record: Record) -> str:
        """The gold letter."""
        return str(evaluate(self.answer, record)).strip().strip("().")

    def demonstrations(self, record: Record) -> list[str]:
        letter = self.expected(record)
        table = {
            "answer_line": [f"Answer: {letter}"],
            "we_math": [f"Answer: {letter}"],
            "tagged": [f"<answer>{letter}</answer>"],
        }
        return table.get(self.reader, [letter])


@register("yes_no")
@dataclass(frozen=True)
class YesNoScorer(Scorer):
    """Yes-or-no questions: score = [the response has exactly one of the words "yes" and "no", and it is the
    gold one].

    Code: VLMEvalKit e8e78f05 (`YOrN_Extraction`), for HallusionBench (arXiv:2310.14566), whose authors ask a
    language model. Edge: a response with both words or neither is wrong. `answer` gives "yes" or "no", or 1
    or 0, or true or false.
    """

    answer: str = "row.answer"

    def grade(self, response: Response, gold: Any, row: Record) -> Verdict:
        words = response.text.lower().translate({ord(mark): " " for mark in string.punctuation}).split()
        answers = {word for word in words if word in ("yes", "no")}
        read = answers.pop() if len(answers) == 1 else None
        return self.scored(float(read == gold), read, "yes or no")

    def expected(self, record: Record) -> str:
        """The gold answer: "yes" or "no"."""
        value = str(evaluate(self.answer, record)).strip().lower()
        return {"1": "yes", "0": "no", "true": "yes", "false": "no"}.get(value, value)

    def demonstrations(self, record: Record) -> list[str]:
        return [self.expected(record)]

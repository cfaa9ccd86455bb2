"""Multiple choice: a reader finds the letter, the letter is right or wrong."""

from __future__ import annotations

import string
from dataclasses import dataclass

from vlrl.eval.expressions import evaluate
from vlrl.eval.scorer import Fields, Mark, Scorer
from vlrl.eval.scorers.readers import READERS
from vlrl.registry import register, suggest


@register("choice")
@dataclass(frozen=True)
class Choice(Scorer):
    """score = [reader(response) == gold letter].

    Paper: the benchmark's own; see the reader. `answer` gives the gold letter, `choices` the options (for readers that know their text),
    `letters` the letters allowed where the number of options does not say. Edge: no letter is wrong, never a random one.
    """

    reader: str = "ranked"
    answer: str = "row.answer"
    choices: str = ""
    letters: str = ""

    def __post_init__(self) -> None:
        if self.reader not in READERS:
            raise ValueError(f"reader: no reader {self.reader!r}.{suggest(self.reader, READERS)}")

    def __call__(self, row: Fields, response: str) -> Mark:
        choices = [str(choice) for choice in (evaluate(self.choices, row) or ())] if self.choices else []
        letters = self.letters or string.ascii_uppercase[: len(choices)] or "ABCDEFGH"
        read = READERS[self.reader](response, letters, choices)
        return Mark(float(read is not None and read == self.letter(row)), read, self.reader)

    def letter(self, row: Fields) -> str:
        """The gold letter."""
        return str(evaluate(self.answer, row)).strip().strip("().")

    def gold(self, row: Fields) -> list[str]:
        letter = self.letter(row)
        table = {"answer_line": [f"Answer: {letter}"], "we_math": [f"Answer: {letter}"], "tagged": [f"<answer>{letter}</answer>"]}
        return table.get(self.reader, [letter])


@register("yes_no")
@dataclass(frozen=True)
class YesNo(Scorer):
    """score = [the only one of "yes" and "no" among the words of the response == gold].

    Code: VLMEvalKit e8e78f05 (`YOrN_Extraction`), for HallusionBench (arXiv:2310.14566), whose authors ask a language model.
    Edge: both or neither is wrong. `answer` gives "yes" or "no" (1 and 0 are read so too).
    """

    answer: str = "row.answer"

    def __call__(self, row: Fields, response: str) -> Mark:
        words = response.lower().translate(str.maketrans(dict.fromkeys(string.punctuation, " "))).split()
        said = {word for word in words if word in ("yes", "no")}
        read = said.pop() if len(said) == 1 else None
        return Mark(float(read == self.wanted(row)), read, "yes or no")

    def wanted(self, row: Fields) -> str:
        """ "yes" or "no"."""
        value = str(evaluate(self.answer, row)).strip().lower()
        return {"1": "yes", "0": "no", "true": "yes", "false": "no"}.get(value, value)

    def gold(self, row: Fields) -> list[str]:
        return [self.wanted(row)]

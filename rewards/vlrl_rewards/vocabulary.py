"""The words that deny an answer, set it aside, leave it open, bound it or take it back: parts of patterns, the same ones for every verifier."""

from __future__ import annotations

# What follows is not the answer.
NOT = r"not|never|neither|nor"
ALL_BUT = r"(?:any\w{0,6}|every\w{0,6}|all)\s+but"
ASIDE = r"except(?:\s+for)?|exclud\w+|ignor(?:e|ing)|avoid\w*|reject\w*|without"
THAN = r"(?:other|rather)\s+than|instead\s+of|opposite\s+of"
WRONG = r"wrong|incorrect|false"  # and what stands before it

# It may be the answer, or something else may.
MAYBE = r"maybe|perhaps|possibly"
MIGHT = r"could|might|may"

# The answer lies on one side of what is named.
COMPARED = r"(?:more|less|fewer|greater|higher|lower|bigger|smaller|larger)\s+than"
ABOUT = r"at\s+(?:least|most)|over|under|above|below|almost|nearly|up\s+to|beyond"
AND_MORE = r"or\s+so|(?:or|and)\s+(?:more|less|fewer|above|below|greater|over|up)"

# What was said is not meant, or is about to be said better.
SECOND_THOUGHT = r"scratch\s+that|on\s+second\s+thoughts?"
TAKES_BACK = rf"{SECOND_THOUGHT}|i\s+mean|(?:just\s+)?kidding"
PAUSES = r"wait|sorry|oops|correction|actually|hold\s+on"

"""Responses that do not answer: refusals, hedges, empty talk."""

from __future__ import annotations

import re

from vlrl_rewards.vocabulary import ABOUT, ALL_BUT, AND_MORE, COMPARED, MAYBE, MIGHT, NOT, TAKES_BACK, WRONG

_REFUSAL = re.compile(
    r"\b(?:i|we)(?:\s+am|'m|\s+are|'re)?\s+(?:really\s+|truly\s+|very\s+)?(?:sorry|afraid)\b"
    r"|\b(?:i|we)\s+(?:simply\s+|really\s+|just\s+)?(?:can\s?not|can't|could\s?not|couldn't|won't|will\s+not|am\s+(?:not\s+able|unable)\s+to|am\s+not\s+allowed\s+to|"
    r"are\s+unable\s+to|refuse\s+to|decline\s+to|must\s+decline)\s+(?:to\s+)?(?:answer|confirm|verify|guarantee|help|assist|provide|comply|give|share|respond|say|tell|"
    r"(?:solve|do|determine|complete|see|view|find)\s+(?:(?:this|the|that|your|any)\s+)?(?:answer|question|problem|task|image|picture|request|puzzle|it|this|that)?\s*(?:[.,;!]|\bbut\b|$))"
    r"|\b(?:i'm|i\s+am|we\s+are)\s+(?:unable|not\s+able)\s+to\b|\b(?:i|we)\s+(?:do\s+not|don't|did\s+not|didn't)\s+(?:really\s+)?(?:know|have\s+(?:the|an|enough))\b"
    r"|\bas\s+an?\s+(?:ai|language\s+model)|\b(?:unable|impossible)\s+to\s+(?:answer|determine|say|tell|know)\b"
    r"|\b(?:cannot|can't|can\s+not|could\s+not)\s+be\s+(?:answered|determined|solved|known)\b|\bno\s+idea\b|\bnot\s+enough\s+information\b|\binsufficient\s+information\b"
    r"|\bi\s+(?:refuse|decline)\b|无法(?:回答|确定)|我不知道",
    re.IGNORECASE,
)
_HEDGE = re.compile(
    rf"\b(?:either|or\s+it\s+(?:{MIGHT})|(?:{MIGHT})\s+(?:also\s+)?be|{MAYBE}|{NOT}|cannot|isn't|ain't|"
    r"one\s+of|any\s+of|all\s+of\s+(?:them|the\s+above|these)|both|unsure|unclear|hard\s+to\s+say|depends|between|"
    r"anything|whatever|doesn't\s+matter|also\s+(?:acceptable|correct|right|valid|possible|fine|works?))\b|\?\s*$|\((?:or|just\s+kidding|kidding|actually|wait|i\s+mean|correction)\b|\bif\b.{1,60}\belse\b",
    re.IGNORECASE,
)
_TAIL_HEDGE = re.compile(
    r"^[\s.,;:)\]}*$\\\"']*(?:</answer>)?[\s.,;:)\]}*$]*(?:or\b|and/or\b|alternatively\b|unless\b|"
    rf"but\s+(?:it\s+)?(?:{MIGHT}|{MAYBE})|(?:{MAYBE})\b|(?:it\s+)?(?:{MIGHT})\s+(?:also\s+)?be\b|(?:al)?though\b.{{1,40}}\bequally\b|"
    r"\?\s*(?:hardly|nope|no\s+way|never|not\s+(?:really|quite|so))\b|"
    rf"(?:which\s+)?is\s+(?:an?\s+|the\s+)?(?:{WRONG}|not)\b|\(?(?:wrong|incorrect)\b|(?:{TAKES_BACK}|make\s+that)\b)",
    re.IGNORECASE,
)


# A number that is not the answer but what the answer is made from, or is bounded by ("greater than 5", "the square of 5", "5 squared", "figure 5").
_BOUND = re.compile(
    rf"\b(?:{COMPARED}|{ABOUT}|{ALL_BUT}|room\s+for|hardly|barely|scarcely|far\s+from|close\s+to|differ(?:s|ent)\s+from|except|away\s+from|short\s+of)"
    r"\s+[-$\\]?\d\S*\s*(?:[a-zA-Z]+\W*)?$"
    r"|\b(?:squares?|cubes?|roots?|half|double|twice|triple|thirds?|quarters?|fourths?|fifths?|tenths?|percent|multiples?|powers?|logarithm|reciprocal"
    r"|inverse|opposite|factors?|divisors?|factorial)\s+of\s+\S{1,12}\s*$"
    r"|\d\s+(?:squared|cubed|factorial|halves|thirds|quarters|fourths|fifths|tenths|hundredths|thousandths|dozens?)\W*$"
    rf"|\d\s+(?:{AND_MORE}|too\s+(?:many|few|much)|below\s+zero|upwards?|minimum|maximum)\b|\d\s+(?:less|more|fewer|away)\W*$"
    rf"|\b(?:{WRONG})\b\s*[:=]|\bfor\s+\w{{1,20}}(?:\s+\w{{1,20}})?,?\s+and\s+[-$]?\d"
    r"|\b(?:equation|eq|figure|fig|step|section|row|column|chapter|part|question|problem|item|line|page|exercise|table|lemma|theorem)\.?\s*\d+\W*$",
    re.IGNORECASE,
)


def bounded(text: str) -> bool:
    """Whether the number of a text only bounds or builds the answer."""
    return _BOUND.search(text[-400:]) is not None


def refuses(text: str) -> bool:
    """Whether `text` (thinking already out) declines to answer."""
    return _REFUSAL.search(text.replace("\u2019", "'")[-4000:]) is not None


def hedges(answer: str) -> bool:
    """Whether an answer leaves open what it says, or says what the answer is not."""
    return _HEDGE.search(answer.replace("\u2019", "'")) is not None


def taken_back(rest: str) -> bool:
    """Whether the text right after an answer takes it back or offers another ("or 6", "is wrong")."""
    return _TAIL_HEDGE.match(rest[:200]) is not None

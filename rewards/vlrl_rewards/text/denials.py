"""Words that deny, hedge, bound or take back an answer, and responses that refuse to answer. Every verifier
shares these patterns."""

from __future__ import annotations

import re

# Parts of patterns: what follows is not the answer.
NOT = r"not|never|neither|nor"
ALL_BUT = r"(?:any\w{0,6}|every\w{0,6}|all)\s+but"
ASIDE = r"except(?:\s+for)?|exclud\w+|ignor(?:e|ing)|avoid\w*|reject\w*|without"
THAN = r"(?:other|rather)\s+than|instead\s+of|opposite\s+of|far\s+from|as\s+opposed\s+to"
WRONG = r"wrong|incorrect|false"  # what stands before these words is not the answer
REJECTS = (
    r"eliminat\w+|rul(?:e|es|ed|ing)\s+out|skip\w*|dismiss\w*|discard\w*|reject\w*|den(?:y|ies|ied)|"
    r"disagree\s+with"
)
CANNOT = r"cannot|can\s+not|can['’]t|could\s+not|couldn['’]t|must\s+not|mustn['’]t|should\s+not|shouldn['’]t"

FOREIGN_NOT = (
    r"\b(?:nicht|kein\w{0,2}|n['’]est\s+pas|no\s+es|não\s+é|non\s+è|niet|inte|ikke|не|nie|bukan|dudo"
    r"|je\s+doute|bezweif\w+(?:,\s+dass)?|dubito|duvido|сомневаюсь|keinesfalls|keineswegs"
    r"|auf\s+keinen\s+fall|nunca|jamais|mai|không\s+phải|değil)\b"
    r"|不是|并非|不等于|ではあり|ではな|じゃな|아닙|아니|ليس|ไม่ใช่|नहीं"
)
FOREIGN_WRONG = (
    r"\b(?:falsch|faux|fausse|falso|falsa|errad[oa]|incorrect[oa]?|sbagliat[oa]|fout|onjuist|fel|błędn\w+|"
    r"неверно|неправильно|yanlış|sai|salah)\b|错|錯|不对|間違|틀렸|خطأ|خاطئ|ผิด|गलत"
)
# Uncertainty: the answer may be this or something else.
MAYBE = r"maybe|perhaps|possibly"
MIGHT = r"could|might|may"

# Bounds: the answer lies on one side of the number that follows.
COMPARED = r"(?:more|less|fewer|greater|higher|lower|bigger|smaller|larger)\s+than"
ABOUT = r"at\s+(?:least|most)|over|under|above|below|almost|nearly|up\s+to|beyond"
AND_MORE = r"or\s+so|(?:or|and)\s+(?:more|less|fewer|above|below|greater|over|up)"

# Self-correction: the statement before is withdrawn or replaced.
SECOND_THOUGHT = r"scratch\s+that|on\s+second\s+thoughts?"
TAKES_BACK = rf"{SECOND_THOUGHT}|i\s+mean|(?:just\s+)?kidding"
PAUSES = r"wait|sorry|oops|correction|actually|hold\s+on"
# A turn of an answer: what follows it replaces what stands before ("A? No, B", "A, or rather B", "A; final:
# B").
TURN = (
    rf"\?\s*(?:no|nope)\b[\s,.:;!—–-]*|(?:[.,;!—–]|(?<!\n)\n)\s*(?:no|nope)\b\s*[,.:;!—–-]"
    rf"|\b(?:{SECOND_THOUGHT})\b[\s,"
    rf".:;]*|\b(?:{PAUSES})\b\s*[,.:;!…]+"
    r"|\b(?:(?:or|but)\s+)?i\s+mean\b[\s,:]*|\bor\s+rather\b[\s,:]*|\b(?:but|and)\s+actually\b[\s,:]*|"
    r"\bfinal(?:ly)?(?:\s+(?:answer|choice))?\s*[:=]"
)

_REFUSAL = re.compile(
    r"\b(?:i|we)(?:\s+am|'m|\s+are|'re)?\s+(?:really\s+|truly\s+|very\s+)?(?:sorry|afraid)\b"
    r"|\b(?:i|we)\s+(?:simply\s+|really\s+|just\s+)?(?:can\s?not|can't|could\s?not|couldn't|won't|"
    r"will\s+not|am\s+(?:not\s+able|unable)\s+to|am\s+not\s+allowed\s+to|"
    r"are\s+unable\s+to|refuse\s+to|decline\s+to|must\s+decline)\s+(?:to\s+)?(?:answer|confirm|verify|"
    r"guarantee|help|assist|provide|comply|give|share|respond|say|tell|"
    r"(?:solve|do|determine|complete|see|view|find)\s+(?:(?:this|the|that|your|any)\s+)?(?:answer|question|"
    r"problem|task|image|picture|request|puzzle|it|this|that)?\s*(?:[.,;!]|\bbut\b|$))"
    r"|\b(?:i'm|i\s+am|we\s+are)\s+(?:unable|not\s+able)\s+to\b|\b(?:i|we)\s+(?:do\s+not|don't|did\s+not|"
    r"didn't)\s+(?:really\s+)?(?:know|have\s+(?:the|an|enough))\b"
    r"|\bas\s+an?\s+(?:ai|language\s+model)|\b(?:unable|impossible)\s+to\s+(?:answer|determine|say|tell|"
    r"know)\b"
    r"|\b(?:cannot|can't|can\s+not|could\s+not)\s+be\s+(?:answered|determined|solved|known)\b|"
    r"\bno\s+idea\b|\bnot\s+enough\s+information\b|\binsufficient\s+information\b"
    r"|\b(?:cannot|can't|can\s+not|could\s+not|couldn't|unable\s+to)\s+(?:determine|tell|say|decide"
    r"|know)\s+(?:if|whether)\b"
    r"|\bi\s+(?:refuse|decline)\b|无法(?:回答|确定)|我不知道",
    re.IGNORECASE,
)
_HEDGE = re.compile(
    rf"\b(?:either|or\s+it\s+(?:{MIGHT})|(?:{MIGHT})\s+(?:also\s+)?be|{MAYBE}|{NOT}|cannot|isn't|ain't|"
    r"one\s+of|any\s+of|all\s+of\s+(?:them|the\s+above|these)|both|unsure|unclear|hard\s+to\s+say|depends|"
    r"between|"
    rf"anything|whatever|{THAN}|{REJECTS}|{CANNOT}|(?:is|are|was|were|be)\s+(?:\w{{1,"
    rf"12}}ly\s+)?(?:{WRONG})|(?:{WRONG})(?=\s*[:=])|(?:my|an?)\s+first\s+guess|"
    r"doesn't\s+matter|also\s+(?:acceptable|correct|right|valid|possible|fine|works?))\b|\?\s*$|\((?:or|"
    r"just\s+kidding|kidding|actually|wait|i\s+mean|correction)\b|\bif\b.{1,60}\belse\b|^\W{0,3}n['’]t\b"
    r"|\bif\s+only\b"
    rf"|{FOREIGN_NOT}|{FOREIGN_WRONG}",
    re.IGNORECASE,
)
_TAIL_HEDGE = re.compile(
    r"^[\s.,;:)\]}*$\\\"'，。]*(?:</answer>[\s.,;:)\]}*$]*)?(?:or\b|and/or\b|alternatively\b|unless\b|"
    rf"but\s+(?:it\s+)?(?:{MIGHT}|{MAYBE}|no\b)|(?:{MAYBE})\b|(?:it\s+)?(?:{MIGHT})\s+(?:also\s+)?be\b|"
    rf"(?:al)?though\b.{{1,40}}\bequally\b|"
    r"\?\s*(?:hardly|no|nope|never|i\s+doubt|i\s+don['’]t|not\s+(?:really|quite|so))\b|"
    rf"(?:which\s+)?is\s+(?:an?\s+|the\s+)?(?:{WRONG}|not)\b|\(?(?:wrong|incorrect)\b|(?:{TAKES_BACK}|"
    r"make\s+that)\b|correction\s*:"
    r"|(?:(?:but|no|nope|however|wait|actually)\b[,.!]?\s*)?"
    r"(?:they|that|this|it|which|he|she|those|these|all\s+of\s+(?:them|this))"
    r"(?:['’]s|['’]re|\s+(?:is|are|was|were|would\s+be|must\s+be))\s+(?:\w+\s+)?"
    rf"(?:{WRONG}|untrue|mistaken|a\s+(?:mistake|lie|joke))\b"
    rf"|(?:[\w'’]{{1,6}}\s+){{0,2}}(?:c['’]est\s+|est\s+|这是)?(?:{FOREIGN_WRONG})"
    r"|(?:but\s+|no,?\s+)?(?:it|that|this)(?:\s+(?:is|was)\s+not|\s+(?:is|was)n['’]t|['’]s\s+not)"
    r"(?:\s+(?:it|so|right|correct|true|the\s+(?:answer|case)))?\s*(?:[.!,;]|$))",
    re.IGNORECASE,
)
_ELSE = re.compile(  # "42 if the last row counts; otherwise 43"
    r"[^.!?\n]{0,100}\b(?:otherwise|or\s+else|else)\b[,:]?\s+(?:it(?:['’]s|\s+is)\s+)?"
    r"[-$\\(]*(?:\d|[A-J]\b|yes\b|no\b)",
    re.IGNORECASE,
)
_REMARK = re.compile(  # "(not really)", "[wrong]", "- false" behind an answer
    r"[\s}$*.,]{0,6}(?:</answer>\s{0,3})?(?:[(\[（]\s{0,3}(?P<bracket>[^()\[\]（）\n]{1,60})|[-–—]{1,3}\s{1,3}"
    r"(?P<dash>[^.\n]{1,60}))"
)
_DOUBTS_IT = re.compile(
    rf"(?:not(?:\s+(?:really|quite|sure|so|right|correct|it)\b|\W*$)|no(?:pe)?\b(?:\W*$|,|\s+it)|(?:just\s+)?"
    rf"kidding|(?:a\s+)?joke\b|i\s+(?:doubt|don['’]t|am\s+not)|(?:{MAYBE})\b|unless\b|but\b|untrue\b"
    rf"|(?:{WRONG})\b|"
    r"actually\b|wait\b)|[^?]{0,40}\?\s*$",
    re.IGNORECASE,
)
_LAST_BRACKET = re.compile(r"[(\[（]([^()\[\]（）\n]{1,60})[)\]）]\W{0,3}$")
_OTHER = re.compile(r"(?:or(?:\s+(?:maybe|perhaps))?|alternatively),?\s+(?P<said>.+)", re.IGNORECASE)
_TAIL_NOT = re.compile(  # languages that deny behind the word
    r"[\s)\]}*$]*(?:ではあり|ではな|じゃな|değil|नहीं|(?:이|가|은|는)?\s?아니|(?:이|가)?\s?아닙)"
)
_RETRACTED = re.compile(
    r"(?:[.;!?—]|,(?=\s*(?:but|yet|though)\b)|(?<!\n)\n)\s*(?:(?:but|though|no|nope|however|and|yet|wait"
    r"|actually)\b[,.!]?\s*)?(?:they|that|this|it|which|he|she|those|these|everyone)"
    r"(?:['’]s|['’]re|\s+(?:is|are|was|were|would\s+be|must\s+be))\s*"
    rf"(?:(?:all|both|quite|simply|just|\w+ly)\s+)?(?:{WRONG}|untrue|mistaken|a\s+(?:mistake|lie|joke)"
    r"|(?:not|n['’]t)(?:\s+(?:it|so|right|correct|true|the\s+(?:answer|case)))?\s*(?:[.!,;]|$))",
    re.IGNORECASE,
)
# A number that is an operand, a bound or a label, not the answer ("greater than 5", "the square of 5", "5
# squared", "figure 5").
_BOUND = re.compile(
    rf"(?<!\\)\b(?:{COMPARED}|{ABOUT}|{ALL_BUT}|room\s+for|hardly|barely|scarcely|far\s+from|close\s+to|"
    r"differ(?:s|ent)\s+from|except|away\s+from|short\s+of)"
    r"\s+[-$\\]?\d\S*\s*(?:[a-zA-Z]+\W*)?$"
    r"|\b(?:squares?|cubes?|roots?|half|double|twice|triple|thirds?|quarters?|fourths?|fifths?|tenths?|"
    r"percent|multiples?|powers?|logarithm|reciprocal"
    r"|inverse|opposite|factors?|divisors?|factorial)\s+of\s+\S{1,12}\s*$"
    r"|\d\s+(?:squared|cubed|factorial|halves|thirds|quarters|fourths|fifths|tenths|hundredths|"
    r"thousandths)\W*$"
    rf"|\d\s+(?:{AND_MORE}|too\s+(?:many|few|much)|below\s+zero|upwards?|minimum|maximum)\b|\d\s+(?:less|"
    r"more|fewer|away)\W*$"
    rf"|\b(?:{WRONG})\b\s*[:=]|\bfor\s+\w{{1,20}}(?:\s+\w{{1,20}})?,?\s+and\s+[-$]?\d"
    r"|\b(?:equation|eq|figure|fig|step|section|row|column|chapter|part|question|problem|item|line|page|"
    r"exercise|table|lemma|theorem)\.?\s*\d+\W*$",
    re.IGNORECASE,
)
# Words before a statement that deny or doubt it: "I doubt that it is", "It is false that the answer is".
_DOUBT = (
    rf"(?:(?:{WRONG}|untrue|unlikely|impossible|absurd|nonsense|ridiculous|a\s+(?:lie|mistake|myth|error))"
    r"(?:\s+to\s+(?:say|think|claim|believe|assume|conclude))?"
    r"|(?<!no )(?<!without )(?<!without a )(?<!beyond )doubt\w*|den(?:y|ies|ied|ying)"
    r"|(?:not|n['’]t|never|hardly)\s+(?:\w+\s+){0,2}(?:true|right|correct|case|so|certain|sure|clear"
    r"|convinced|"
    r"likely|possible)"
    rf"|(?:not|n['’]t|never|hardly|nobody|no\s+one|nothing|few|refuse\s+to|{CANNOT})\s+(?:\w+\s+){{0,2}}"
    r"(?:think|believe|say|claim|mean|suggest|assume|agree|accept|conclude|imply|guarantee|promise)\w*)"
)
_DOUBTED = re.compile(
    rf"{_DOUBT}(?:\s+that)?\s+(?:(?:the|my|your|our|its|this|that|it|they)\b['’]?s?\s*)?"
    r"(?:(?:final|correct|right|true|best|only)\s+)?"
    r"(?:(?:answer|result|value|solution|choice|option|number|total)\s*)?(?:(?:is|are|was|equals?|be"
    r"|=)\s*)?[:\s]*$",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(  # a statement that nobody makes: "no way it is", "nobody knows whether it is"
    r"\b(?:nobody|no\s+one|no\s+(?:way|chance|evidence|reason|proof|guarantee|sense)|whether|who\s+knows|"
    r"suppos(?:e|ing)|assum(?:e|ing)|imagine|pretend\w*|wish\w*|if\s+only|what\s+if|myth|rumou?r|a\s+(?:lie"
    r"|joke)|"
    r"used\s+to\s+(?:think|believe|say|be)|"
    r"(?:some|others?|people|many|critics|he|she|they)\s+(?:might\s+|may\s+|would\s+)?"
    r"(?:say|says|said|claim\w*|think|thinks|thought|believe\w*))\b(?:[^,.;!?\n]|[.,](?=\d)"
    r"|,(?=[^()\n]{0,30}\)))*$",
    re.IGNORECASE,
)
_LOOK = 80
_BEFORE = re.compile(
    rf"(?:\b(?:{NOT}|no|nowhere|{CANNOT}|{ASIDE}|{REJECTS}|{ALL_BUT}|nothing\s+but|{THAN}|"
    rf"(?:{WRONG})(?:\s+\w{{1,10}})?\s*(?:is|are|[:=]))|n['’]t)"
    r"[\s(]+(?:(?:an?|the|be|at|in|on|is|it|its?|box|point|region|area|span|located|equal|to|exactly|from|"
    r"given|by|bounding|click|tap|press|coordinates?)[\s(:]+){0,5}$",
    re.IGNORECASE,
)
_AFTER = re.compile(
    rf"[\s)\]}}>\"'`*.,;]{{0,5}}(?:(?:(?:which\s)?(?:is|are|was|were|would\sbe|(?:{MIGHT})\sbe)\s(?:\w{{1,"
    rf"12}}ly\s)?(?:{WRONG}|not\b))|(?:is|are|was|were)n['’]t\b"
    r"|(?:is|was|were|are)\s(?:my|the|an?|our)\s(?:first|initial|earlier|old|previous|wrong|bad)\b|"
    rf"(?:{WRONG})\b|(?:{TAKES_BACK})\b|\?\sno\b"
    r"|(?:is|are|was|were)\s(?:far\s)?too\s(?:high|low|big|small|large|much|many|few|long|short|early|"
    r"late)\b)",
    re.IGNORECASE,
)


_TURNS = re.compile(TURN, re.IGNORECASE)
_ITEM = r"(?:[-$€£]?\d[\d.,/:]*\d%?|[-$€£]?\d%?|[\w'-]+(?:\s[\w'-]+){0,2})"
_CONTRAST = re.compile(
    rf"(?P<said>.*[\w%)}}\]°$*'\"])\s*(?:(?:,\s*(?:and\s+|but\s+)?|\(|;\s*|\s[-–—]\s*|\s+and\s+|"
    r"\s+but\s+)\bnot\s+(?:the\s+)?|,?\s+(?:instead\s+of|rather\s+than|as\s+opposed\s+to)\s+)"
    rf"(?:an?\s+|the\s+)?\\?{_ITEM}[%°]?\$?\)?\s*[.!]?\s*",
    re.IGNORECASE | re.DOTALL,
)
_REPLACED = re.compile(
    (
        rf"(?:(?:it\s+is|it's)\s+)?(?:not|n['’]t|instead\s+of|rather\s+than)\s+(?:an?\s+|the\s+)?{_ITEM}\s*"
        r"(?:,\s*but|\bbut|[,;])\s+(?P<said>.*)"
    ),
    re.IGNORECASE | re.DOTALL,
)


def settled(text: str) -> str:
    """The part of a short answer that it asserts in the end, else the text.

    "B" of "B, not A", "not A but B", "B instead of A", "A? No, B", "A, or rather B", "A. Correction: B". At
    most 300 characters are read.
    """
    if len(text) > 300:
        return text
    turns = list(_TURNS.finditer(text))
    if turns and text[: turns[-1].start()].strip() and any(c.isalnum() for c in text[turns[-1].end() :]):
        text = text[turns[-1].end() :]
    replaced = _REPLACED.fullmatch(text.strip())
    if replaced and not _hedge_in(replaced["said"]):
        return replaced["said"]
    found = None if ends_in_doubt(text) else _CONTRAST.fullmatch(text)
    return found["said"] if found and not _hedge_in(found["said"]) else text


def _hedge_in(text: str) -> bool:
    return re.search(rf"\b(?:{NOT}|or|{THAN})\b", text, re.IGNORECASE) is not None


def bounded(text: str) -> bool:
    """Whether the number of a text is a bound, an operand or a label, not the answer."""
    return _BOUND.search(text[-400:]) is not None


def refuses(text: str) -> bool:
    """Whether `text` (thinking removed) declines to answer."""
    return _REFUSAL.search(text.replace("\u2019", "'")[-4000:]) is not None


def ends_in_doubt(answer: str) -> bool:
    """Whether the brackets at the end of an answer doubt it ("42 (not really)")."""
    last = _LAST_BRACKET.search(answer[-80:])
    return last is not None and _DOUBTS_IT.match(last[1].strip()) is not None


def hedges(answer: str) -> bool:
    """Whether an answer is uncertain, offers alternatives, or says what the answer is not."""
    return _HEDGE.search(answer.replace("\u2019", "'")) is not None or ends_in_doubt(answer)


def retraction(text: str) -> int:
    """Where the last retraction of a text ends ("They are wrong.", "No, it is not."); 0 without one."""
    ends = [match.end() for match in _RETRACTED.finditer(text)]
    return ends[-1] if ends else 0


def doubted(before: str) -> bool:
    """Whether the words right before a statement ("the answer is ...", "it is ...") deny or doubt it."""
    before = before[-120:]
    return _DOUBTED.search(before) is not None or supposed(before)


def supposed(text: str) -> bool:
    """Whether the last clause of a text says what somebody might say, or nobody."""
    return _SUPPOSED.search(text.rstrip(" .!")) is not None


def _remark(rest: str) -> str:
    """The remark in brackets or behind a dash with which a text begins; "" without one."""
    found = _REMARK.match(rest[:90])
    return (found["bracket"] or found["dash"]).strip() if found else ""


def alternative(rest: str) -> str:
    """The other answer in a remark right after an answer: "0.5" of "(or 0.5)"; "" without one."""
    found = _OTHER.match(_remark(rest))
    return found["said"].strip() if found else ""


def taken_back(rest: str) -> bool:
    """Whether the text right after an answer withdraws it or offers another ("or 6", "is wrong", "(not
    really)")."""
    remark = _remark(rest)
    if _DOUBTS_IT.match(remark) or _OTHER.match(remark):
        return True
    behind = _TAIL_HEDGE.match(rest[:200]) or _TAIL_NOT.match(rest[:40]) or _ELSE.match(rest[:200])
    return behind is not None or retraction(rest[:40]) > 0


def denied(text: str, start: int, end: int) -> bool:
    """Whether the words around text[start:end] say that it is not the answer. Looks at 80 characters on each
    side."""
    before = text[max(0, start - _LOOK) : start]
    return (bool(before) and _BEFORE.search(before) is not None) or _AFTER.match(
        text[end : end + _LOOK]
    ) is not None

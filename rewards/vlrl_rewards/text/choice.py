"""kind="mcq": one option of several, in any written form; naming several options is wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.plugins.scoring import Answer, GoldError, Response, Unread, Verdict, right, wrong
from vlrl.types import Row
from vlrl_rewards.kinds import verifier
from vlrl_rewards.math.answer import lone_number
from vlrl_rewards.math.judge import judge
from vlrl_rewards.parsing import clean, committed, visible
from vlrl_rewards.runs import without_runs
from vlrl_rewards.text.denials import (
    ALL_BUT,
    ASIDE,
    CANNOT,
    FOREIGN_NOT,
    FOREIGN_WRONG,
    MIGHT,
    NOT,
    SECOND_THOUGHT,
    THAN,
    TURN,
    WRONG,
    ends_in_doubt,
    refuses,
    retraction,
    supposed,
    taken_back,
)
from vlrl_rewards.text.letters import DENIED, LETTERS, TAIL_CHARS, label_of, mentions

_OPENING = re.compile(r"^[^\w%+\\-]+")
MAX_NAMED = 8  # an answer that names its option more often is no answer
_REASON = re.compile(
    (
        r"(?<!\s)\s*(?:\b(?:because|since|as|while|whereas|although|though|for|given|due|which|where|so)\b"
        r"|[;\n—]|"
        r"\s-\s|\.\s).*"
    ),
    re.IGNORECASE | re.DOTALL,
)
_BARE_LETTERS = re.compile(r"(?:[\W_]*[A-J](?![\w']))+[\W_]*")
_TURN = re.compile(
    rf"{TURN}|\b(?:but|and|then|now)\s+(?:in\s+fact|{SECOND_THOUGHT}|now|it['’]s|it\s+is)\b"
    r"|\bI(?:'d|'ll|\s+would|\s+will)?\s+(?:pick|choose|select|go\s+with)\b|\bbetween\s+[A-J]\s+and\s+[A-J],"
    r"|(?:^|\s[–—-])\s*(?:no|nope)\b\s*[,.:;!—–-]",
    re.IGNORECASE,
)
_DOUBTED = re.compile(  # "B? No.", "B (wrong)", "maybe B, maybe not"
    rf"(?:\?\s*(?:no|nope|hardly|never|i\s+doubt\s+it|{WRONG})\b|\(\s*(?:{WRONG})\s*\)|"
    rf"\bwhich\s+(?:is|was)\s+(?:{WRONG}|not\s+(?:right|correct|true|so))|,\s*but\s+no)\W*$|\b(?:maybe"
    rf"|perhaps|or)\s+not\b\W*$"
    r"|^\W*(?:is|was|are|could|might|would|should|can|may)\s+(?:it|the|that|this)\b[^.!]*\?\W*$",
    re.IGNORECASE,
)
_TEXT = re.compile(r"\\(?:text\w*|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_NEGATED = re.compile(
    rf"(?:{FOREIGN_NOT}|\bif\s+only\b|\bdoubt\s+(?:that\s+)?(?:it|this|the)\b|\b(?:answer|it"
    rf"|this)\s+(?:{MIGHT}|{CANNOT})\s+be\b)[^,;]*$",
    re.IGNORECASE,
)
_CALLED_WRONG = re.compile(FOREIGN_WRONG, re.IGNORECASE)
_SCRIPT = r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
_SCRIPT_ENDS = re.compile(rf"(?<={_SCRIPT})(?=[(A-Za-z])|(?<=[A-Za-z)])(?={_SCRIPT})")  # "答案是not C"
_BOXED = re.compile(r"\$?\\boxed\s*\{([^{}]*)\}\$?")
_CONTRACTED = re.compile(r"^n['’]t\s+")
_OFFERS = re.compile(
    r"\bor\s+(?:is\s+it|any|some|whichever|whatever|another|one\s+of|the\s+others?|all|none)\b|"
    r"\b(?:otherwise|or\s+else)\b[,:]?\s+(?:it(?:['’]s|\s+is)\s+)?[-$(]{0,3}(?:\d|[A-J]\b)",
    re.IGNORECASE,
)
_TWO_FACED = re.compile(  # "B is right and wrong", "B is right and B is wrong"
    r"\b([A-J])\b(?:(?!\b[A-J]\b)[^.!?]){0,40}\b(?:right|correct)\b\W+(?:and|but|yet)\s+(?:also\s+)?"
    rf"(?:\1\W+(?:is\s+)?(?:also\s+)?)?(?:{WRONG})\b"
)
_IS_RIGHT = re.compile(
    r"\b([A-J])\b[)*\]]{0,3}\s+(?:is|must\s+be|would\s+be)\s+(?:the\s+)?(?:right|correct|best|answer)\b"
)
_LISTED = re.compile(r"\W*[A-J](?:[\s,;/&]+[A-J])+\W*")  # "A C"
_OFFERED = re.compile(r"\b[A-J]\b\W+or\W+[A-J]\b")
# A word that is the subject of a statement names no option: "B because the cat is hidden".
_STATES = (
    r" (?:is|are|was|were|has|have|had|can|cannot|looks?|seems?|sits?|stands?|lies?|lay|does|do)"
    r" (?!(?:answer|correct|right|best|option|choice|my|wrong|not) )"
)
_GIVES_REASON = r"^ [a-j] (?:.{0,60} )?| (?:because|since|as|while|although|though|where|when) (?:.{0,60} )?"
_ASSERTS = re.compile(r"\b(?:is|are|was)\s+(?:the\s+)?(?:correct|right|best|answer)\b", re.IGNORECASE)
_FUNCTION_WORD = re.compile(
    "is|are|was|were|it|has|have|had|because|since|as|so|which|that|who|while|though|although|in|on|at|by|of"
    "|for|"
    "with|from|to|and|or|but|not|no|then|here|there|again|too|also|indeed|only|option|choice|answer|correct"
    "|right|"
    "wrong|due|per|than|if|when|where"
)
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
_ORDINAL = re.compile(
    rf"\W*(?:it\s+is\s+|it's\s+)?the\s+({'|'.join(_ORDINALS)})\s+(?:option|choice|answer|one)\W*",
    re.IGNORECASE,
)
_EVERYTHING = re.compile(
    (
        r"\b(?:all|any|every|each|both|either|neither|none|some|one)\s+of\s+(?:the(?:m|se|\s+above|"
        r"\s+options?|"
        r"\s+choices?)?|these|them|above)\b|\b(?:both|either)\b"
    ),
    re.IGNORECASE,
)
_CONCLUSION = re.compile(
    (
        r"\b(?:answer|option|choice|correct|right|best|choose|pick|select|go(?:ing)?\s+with|选择?|so|therefore|"
        r"thus|hence|must\s+be|conclude)\b|选|^[^\w\n]*[A-Z][^\w\n]*$"
    ),
    re.IGNORECASE | re.MULTILINE,
)


def _trimmed(word: str) -> str:
    """The word without punctuation at its end. One pass, since a word may be thousands of characters long."""
    end = len(word)
    while end and not (word[end - 1].isalnum() or word[end - 1] in "%°+"):
        end -= 1
    return word[:end]


def plain(text: str) -> str:
    """Folded words, without case, punctuation at the ends of words, LaTeX text commands and articles."""
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf|textit)\s*\{([^{}]*)\}", r" \1 ", clean(text)).replace(
        "$", " "
    )
    words = [
        word
        for word in text.casefold().replace("_", " ").split()
        if word.strip("\"'“”‘’*`") not in ("a", "an", "the")
    ]  # "(A)" is no article
    return " ".join(word for word in (_OPENING.sub("", _trimmed(word)) for word in words) if word)


@dataclass(frozen=True)
class Options:
    """The options of a question; `texts` is empty if the options are only letters."""

    texts: tuple[str, ...]
    count: int

    @classmethod
    def of(cls, choices: tuple[str, ...]) -> Options:
        """The options of `row.choices`, with or without labels."""
        labels = [label_of(choice) for choice in choices]
        ordered = bool(choices) and all(label == LETTERS[i] for i, (label, _) in enumerate(labels))
        texts = tuple(
            rest if ordered else choice.strip() for choice, (_, rest) in zip(choices, labels, strict=True)
        )
        bare = bool(choices) and all(choice.strip(" ().") == LETTERS[i] for i, choice in enumerate(choices))
        return cls(() if bare else texts, len(choices) or 10)

    def gold(self, gold: object) -> frozenset[str]:
        """The letters of the gold answer. Raises GoldError if it names no option."""
        if isinstance(gold, (list, tuple, set, frozenset)):
            return frozenset().union(*(self.gold(item) for item in gold))
        if (
            isinstance(gold, int)
            and not isinstance(gold, bool)
            and str(gold) not in self.texts
            and 0 <= gold < self.count
        ):
            return frozenset(LETTERS[gold])
        text = clean(str(gold if gold is not None else ""))
        inner = committed(text)
        text = inner.text.strip() if inner is not None and not inner.problem else text
        exact = [i for i, option in enumerate(self.texts) if plain(option) == plain(text) != ""]
        if len(exact) == 1:
            return frozenset(LETTERS[exact[0]])
        bare = text.strip(" ().[]{}*")
        if re.fullmatch(r"[A-Za-z](?:\s*(?:(?:[,;&]|and)\s*)?[A-Z])*", bare) and (
            len(bare) == 1 or bare.upper() == bare or "and" in bare
        ):
            found = frozenset(char for char in bare.replace("and", " ").upper() if char.isalpha())
        else:
            label, _ = label_of(text)
            found = frozenset(label) if label else frozenset()
        if not found or (self.texts and max(found) >= LETTERS[self.count]):
            raise GoldError(f"gold: {gold!r} is none of the options {list(self.texts) or 'A-J'}")
        return found


_DENIED_BY = rf"(?:(?:{NOT})(?: (?:in|on|at|by|from))?|no|isn't|wasn't|unlike|{ALL_BUT}|{ASIDE}|{THAN})"


def _undenied(said: str, options: Options) -> str:
    """The text without denied options ("not Paris")."""
    said = f" {said} "
    for option in sorted(map(plain, options.texts), key=len, reverse=True):
        said = re.sub(
            rf" {_DENIED_BY} {re.escape(option)} | {re.escape(option)} (?:is (?:{WRONG}|not)|isn't) ",
            " ",
            said,
        )
        said = re.sub(rf"({_GIVES_REASON}){re.escape(option)}{_STATES}", r"\1 ", said)
    return said


def by_text(text: str, options: Options, whole: bool) -> list[str]:
    """Letters of the options whose words equal `text` or, unless `whole`, occur in it. An option inside a
    longer one that occurs does not count."""
    said = plain(text) if whole else _undenied(plain(text), options)
    folded = [plain(option) for option in options.texts]
    same = [LETTERS[i] for i, option in enumerate(folded) if option and option == said]
    if same or whole:
        return same
    found = [
        (i, f" {option} ")
        for i, option in enumerate(folded)
        if option
        and len(option) > 1
        and f" {option} " in f" {said} "
        and not _in_a_name(option, said, folded)
    ]
    return [
        LETTERS[i]
        for i, option in found
        if not any(option in other and option != other for _, other in found)
    ]


def _in_a_name(option: str, said: str, options: Sequence[str]) -> bool:
    """Whether a short phrase names another thing with the words of an option: "hot dog stand" for "dog"."""
    before, _, behind = f" {said} ".partition(f" {option} ")
    around = [*before.split()[-1:], *behind.split()[:1]]
    others = {word for other in options for word in other.split()}
    return (
        len(around) == 2
        and len(said.split()) <= 4
        and all(
            len(word) > 1 and word.isalpha() and not (word in others or _FUNCTION_WORD.fullmatch(word))
            for word in around
        )
    )


def _without_words(text: str, options: Options) -> str:
    """The text with "B" for "B. Paris", where Paris is option B."""
    for letter, option in zip(LETTERS, options.texts):
        if f"{letter}" in text and option:
            text = re.sub(rf"\b{letter}[.):]+\s*{re.escape(option)}(?!\w)", letter, text, flags=re.IGNORECASE)
    return text


def _behind_words(rest: str, letters: frozenset[str], options: Options) -> str:
    """What stands behind an answer and the words of its option ("B" of "B. Paris? No.")."""
    for letter, option in zip(LETTERS, options.texts):
        words = re.match(rf"[\s.):]*{re.escape(option)}(?![a-z\d])", rest, re.IGNORECASE) if option else None
        if words and letter in letters:
            return rest[words.end() :]
    return rest


def chosen(text: str, options: Options) -> frozenset[str]:
    """The options that an answer names by letters, else by words; empty if none. The text behind "but
    actually" replaces the text before."""
    text = re.sub(r"\n\s*[-*•]\s+", ", ", text.strip()[-TAIL_CHARS:])
    text = _CONTRACTED.sub("not ", _TEXT.sub(r" \1 ", _BOXED.sub(r" \1 ", text)).strip())
    text = _SCRIPT_ENDS.sub(" ", _without_words(text[retraction(text) :], options))
    if _CALLED_WRONG.search(text) and not _CALLED_WRONG.search(" ".join(options.texts)):
        return frozenset()
    if _DOUBTED.search(text) or _OFFERS.search(text) or _negated(text, options) or _TWO_FACED.search(text):
        return frozenset()
    if supposed(text.rstrip(" .!")) and not (
        by_text(text, options, whole=True) or any(map(supposed, options.texts))
    ):
        return frozenset()
    turns = list(_TURN.finditer(text))
    later = _named(text[turns[-1].end() :], options) if turns else frozenset()
    return later or _named(text, options)


def _negated(text: str, options: Options) -> bool:
    """Whether the last clause denies what it says, in words that are no option's own."""
    return _NEGATED.search(text) is not None and not any(
        _NEGATED.search(f"it {option}") for option in options.texts
    )


def _named(text: str, options: Options) -> frozenset[str]:
    ordinal = _ORDINAL.fullmatch(clean(text))
    if ordinal and _ORDINALS.index(ordinal[1].lower()) < options.count:
        return frozenset(LETTERS[_ORDINALS.index(ordinal[1].lower())])
    whole = by_text(text, options, whole=True)
    if len(whole) == 1:
        return frozenset(whole)
    if _LISTED.fullmatch(text):
        return frozenset(re.findall(r"[A-J]", text))
    if _EVERYTHING.search(text):
        return frozenset(by_text(text, options, whole=False))
    label, rest = label_of(clean(text))
    if label and DENIED.match(rest):
        return frozenset(mentions(rest, options.count)) - {label}
    if label and rest and not DENIED.match(rest) and len(mentions(rest, options.count)) == 0:
        named = by_text(rest, options, whole=_ASSERTS.search(rest) is None)
        return frozenset(label) | frozenset(named)
    head = _REASON.sub("", text)
    head = text if _BARE_LETTERS.fullmatch(text[len(head) :]) else head  # "B; C"
    letters = frozenset(mentions(head, options.count)) or frozenset(mentions(text, options.count))
    letters |= {m[1] for m in _IS_RIGHT.finditer(text[len(head) :])} & frozenset(
        mentions(text, options.count)
    )
    words = (
        frozenset(by_text(head, options, whole=False) or by_text(text, options, whole=False))
        if options.texts
        else frozenset()
    )
    if letters and words and not letters & words and len(words) == 1:
        return letters | words
    return letters or words or _by_value(text, options)


def _by_value(text: str, options: Options) -> frozenset[str]:
    """Options with the same mathematical value ("1/2" for "0.5")."""
    if (
        not options.texts
        or len(text) > 200
        or not any(char.isdigit() for option in options.texts for char in option)
    ):
        return frozenset()
    lone = lone_number(text)
    text = text[slice(*lone)] if lone else text
    answer = Answer(text, 0, len(text), "option")
    near = [(i, option) for i, option in enumerate(options.texts) if len(option) < 100]
    return frozenset(
        LETTERS[i]
        for i, option in near
        if any(c.isdigit() for c in option) and len(option) < 100 and judge(option, answer, library=False)[0]
    )


def find_choice(
    response: Response, options: Options, most: int = 1
) -> tuple[Answer | None, frozenset[str], str]:
    """(the answer, its letters, the reason if there are none)."""
    text = visible(response.text)
    if not text.strip():
        return None, frozenset(), "nothing outside the thinking" if response.text.strip() else "empty"
    answer = committed(response.text, lambda said: bool(chosen(said, options)))
    if answer is not None:
        if answer.problem:
            return None, frozenset(), answer.problem
        letters = chosen(answer.text, options)
        doubted = ends_in_doubt(answer.text) and not any(map(ends_in_doubt, options.texts))
        if doubted or taken_back(_behind_words(text[answer.end :], letters, options)):
            return answer, frozenset(), "the answer is taken back or another is offered"
        return answer, letters, "names no option"
    return _concluding(text, options, most)


def _concluding(text: str, options: Options, most: int) -> tuple[Answer | None, frozenset[str], str]:
    shift = max(0, len(text) - TAIL_CHARS)
    text = text[shift:]
    whole = Answer(text.strip(), shift + len(text) - len(text.lstrip()), shift + len(text.rstrip()), "text")
    if len(whole.text) <= 200:
        letters = chosen(whole.text, options)
        called = {m[1] for m in _IS_RIGHT.finditer(whole.text)} & set(mentions(whole.text, options.count))
        if len(called) > most:
            return whole, frozenset(called), ""
        if len(letters) <= most or not re.search(r"[\n.!?;]\s*\w", whole.text):
            return whole, letters, "names no option"
    parts = [
        part
        for part in re.finditer(r"[^\n.!?]*(?:[.!?](?!\s|$)[^\n.!?]*)*[.!?]?(?=\s|$)", text)
        if part[0].strip()
    ]
    if len(parts) > 1 and max(len(part[0].split()) for part in parts[:-1]) < 3:
        return whole, chosen(whole.text[:500], options), "a list of options"
    for part in reversed(parts[-2:]):
        letters = frozenset(mentions(part[0], options.count)) or chosen(part[0], options)
        if letters and _CONCLUSION.search(part[0]):
            return Answer(part[0].strip(), shift + part.start(), shift + part.end(), "sentence"), letters, ""
        if letters:
            break
    everywhere = frozenset(mentions(text, options.count))
    return (whole, everywhere, "") if len(everywhere) == 1 else (None, frozenset(), "no committed answer")


@verifier("mcq", "choice")
@without_runs
def mcq(response: Response, gold: Any, row: Row) -> Verdict:
    """Multiple choice: exactly the gold option (or set of options), by letter or by words.

    gold: a letter ("B", "(b)", "B. Paris"), an option's words, an index from 0, or several of these. Raises
    GoldError if it is no option.
    """
    options = Options.of(row.choices)
    wanted = options.gold(gold)
    answer, letters, why = find_choice(response, options, len(wanted))
    if answer is None:
        raise Unread(why)
    own_words = options.texts and any(
        refuses(options.texts[LETTERS.index(letter)])
        for letter in letters
        if LETTERS.index(letter) < options.count
    )
    if refuses(context_of(visible(response.text), answer)) and not own_words:
        raise Unread("a refusal", answer)
    if not letters:
        raise Unread(why, answer)
    if len(
        re.findall(rf"(?<![A-Za-z])[{''.join(letters)}](?![A-Za-z'])", answer.text[:TAIL_CHARS])
    ) > MAX_NAMED * len(letters):
        return wrong(answer, "one answer repeated too often", "letters")
    names = "".join(sorted(letters))
    if len(wanted) > 1 and _OFFERED.search(answer.text[:TAIL_CHARS]):
        return wrong(answer, "offers alternatives", "letters")
    if letters == wanted:
        return right(answer, f"option {names}", "letters")
    more = f"names {len(letters)} options: {names}"
    other = f"option {names}, not {''.join(sorted(wanted))}"
    return wrong(answer, more if len(letters) > len(wanted) else other, "letters")


def context_of(text: str, answer: Answer) -> str:
    """The text around an answer if the text is long, else all of it."""
    return text[max(0, answer.start - 300) : answer.end + 200] if len(text) > 600 else text

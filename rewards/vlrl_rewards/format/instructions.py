"""kind="instructions": the verifiable instructions of IFEval, with its names and parameters (Zhou et al.,
arXiv:2311.07911, table 1)."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vlrl.plugins.scoring import GoldError, Response, Unread, Verdict, verdict
from vlrl.types import Row
from vlrl_rewards.format.structure import loads
from vlrl_rewards.kinds import verifier
from vlrl_rewards.text.language import language_of
from vlrl_rewards.text.verifier import body

Check = Callable[..., bool]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _count(found: int, wanted: int, relation: str) -> bool:
    table = {
        "at least": found >= wanted,
        "less than": found < wanted,
        "at most": found <= wanted,
        "exactly": found == wanted,
        "more than": found > wanted,
    }
    if relation not in table:
        raise ValueError(f"relation: {relation!r} is none of {sorted(table)}")
    return table[relation]


def _occurrences(text: str, phrase: str) -> int:
    return len(re.findall(rf"(?<!\w){re.escape(phrase)}(?!\w)", text, re.IGNORECASE))


def existence(text: str, *, keywords: Sequence[str]) -> bool:
    """Every keyword occurs."""
    return all(_occurrences(text, word) for word in keywords)


def frequency(text: str, *, keyword: str, frequency: int, relation: str = "at least") -> bool:
    """A keyword occurs `frequency` times."""
    return _count(_occurrences(text, keyword), frequency, relation)


def forbidden_words(text: str, *, forbidden_words: Sequence[str]) -> bool:
    """No forbidden word occurs."""
    return not any(_occurrences(text, word) for word in forbidden_words)


def letter_frequency(text: str, *, letter: str, let_frequency: int, let_relation: str = "at least") -> bool:
    """A letter occurs `let_frequency` times."""
    return _count(text.lower().count(letter.lower()), let_frequency, let_relation)


def response_language(text: str, *, language: str) -> bool:
    """The text is in the language of this two-letter code."""
    return language_of(text) == language


def number_sentences(text: str, *, num_sentences: int, relation: str = "at least") -> bool:
    """The number of sentences."""
    text = re.sub(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|vs|etc|e\.g|i\.e)\.", lambda m: m[0][:-1], text)
    return _count(
        len(
            [
                part
                for part in re.split(r"(?<=[.!?。！？])(?:[\"')\]]*\s+|$)|(?<=[。！？])", text)
                if _words(part)
            ]
        ),
        num_sentences,
        relation,
    )


def number_paragraphs(text: str, *, num_paragraphs: int) -> bool:
    """The number of paragraphs, separated by ***."""
    parts = re.split(r"\s?\*\*\*\s?", text)
    inner = parts[
        1 if parts and not parts[0].strip() else 0 : -1 if len(parts) > 1 and not parts[-1].strip() else None
    ]
    return len(inner) == num_paragraphs and all(part.strip() for part in inner)


def number_words(text: str, *, num_words: int, relation: str = "at least") -> bool:
    """The number of words."""
    return _count(len(_words(text)), num_words, relation)


def nth_paragraph_first_word(text: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """The number of paragraphs, separated by blank lines, and the first word of one of them."""
    parts = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    if len(parts) != num_paragraphs or not 1 <= nth_paragraph <= len(parts):
        return False
    words = _words(parts[nth_paragraph - 1])
    return bool(words) and words[0].lower() == first_word.lower()


def number_placeholders(text: str, *, num_placeholders: int) -> bool:
    """The minimum number of [placeholders]."""
    return len(re.findall(r"\[[^\[\]\n]+\]", text)) >= num_placeholders


def postscript(text: str, *, postscript_marker: str = "P.S.") -> bool:
    """A postscript with this marker and content."""
    squeezed = r"\.?\s?".join(re.escape(char) for char in postscript_marker if char.isalpha())
    return re.search(rf"^[^\S\n]*{squeezed}\.?:?\s*\w", text, re.IGNORECASE | re.MULTILINE) is not None


def number_bullet_lists(text: str, *, num_bullets: int) -> bool:
    """The exact number of bullets."""
    return len(re.findall(r"^[^\S\n]*(?:\*(?!\*)|[-+•])\s+\S", text, re.MULTILINE)) == num_bullets


def constrained_response(
    text: str, *, options: Sequence[str] = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
) -> bool:
    """Exactly one of the options occurs."""
    return sum(option in text for option in options) == 1


def number_highlighted_sections(text: str, *, num_highlights: int) -> bool:
    """The minimum number of *highlighted* parts."""
    bold = re.findall(r"\*\*(?=[^\n*]*\w)[^\n*]*\*\*", text)
    plain = re.findall(r"(?<!\*)\*(?!\*)(?=[^\n*]*\w)[^\n*]*\*(?!\*)", text)
    return len(bold) + len(plain) >= num_highlights


def multiple_sections(text: str, *, section_spliter: str = "Section", num_sections: int) -> bool:
    """The minimum number of numbered sections."""
    return (
        len(re.findall(rf"^[^\w\n]*{re.escape(section_spliter)}\s+(?:\d+|[IVXLC]+)\b", text, re.MULTILINE))
        >= num_sections
    )


def json_format(text: str) -> bool:
    """The whole response is JSON, with or without a code fence."""
    whole = re.sub(r"^```(?:json)?\s*|(?<!\s)\s*```$", "", text.strip(), flags=re.IGNORECASE)
    return loads(whole) is not None and whole[:1] in "{[" and whole[-1:] in "}]"


def title(text: str) -> bool:
    """A <<title>> with content."""
    return any(found.strip("< >") for found in re.findall(r"<<[^\n<>]+>>", text))


def two_responses(text: str) -> bool:
    """Two different responses, separated by six stars."""
    parts = [part.strip() for part in text.split("******") if part.strip()]
    return len(parts) == 2 and parts[0] != parts[1]


def repeat_prompt(text: str, *, prompt_to_repeat: str) -> bool:
    """The response repeats the prompt first, then answers it."""
    opened = text.strip().lower().startswith(prompt_to_repeat.strip().lower())
    return opened and len(text.strip()) > len(prompt_to_repeat.strip())


def end_checker(text: str, *, end_phrase: str) -> bool:
    """The response ends with this phrase."""
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def quotation(text: str) -> bool:
    """The whole response is in double quotes."""
    text = text.strip()
    return len(text) > 2 and text[0] == text[-1] == '"'


def capital_word_frequency(text: str, *, capital_frequency: int, capital_relation: str = "at least") -> bool:
    """The number of words in capitals."""
    return _count(sum(word.isupper() for word in _words(text)), capital_frequency, capital_relation)


def english_capital(text: str) -> bool:
    """All letters are capitals."""
    return text.isupper()


def english_lowercase(text: str) -> bool:
    """All letters are lower case."""
    return text.islower()


def no_comma(text: str) -> bool:
    """No comma."""
    return "," not in text and "，" not in text


CHECKS: dict[str, Check] = {
    "keywords:existence": existence,
    "keywords:frequency": frequency,
    "keywords:forbidden_words": forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_words": number_words,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_checker,
    "startend:quotation": quotation,
    "change_case:capital_word_frequency": capital_word_frequency,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "punctuation:no_comma": no_comma,
}


def _constraints(gold: Any) -> list[tuple[str, Check, dict[str, Any]]]:
    """Gold as (id, check, arguments). Raises ValueError on an unknown id or argument."""
    specs = (
        [gold]
        if isinstance(gold, (str, Mapping))
        else list(gold or ())
        if isinstance(gold, (list, tuple, type(None)))
        else [gold]
    )
    if not all(isinstance(spec, (str, Mapping)) for spec in specs):
        raise GoldError(f"gold: {gold!r:.200} is no list of instructions such as {{'id': ..., arguments}}")
    found = []
    for spec in specs:
        spec = {"id": spec} if isinstance(spec, str) else dict(spec)
        name = str(spec.pop("id", None) or spec.pop("instruction_id", ""))
        full = next((key for key in CHECKS if name in (key, key.partition(":")[2])), None)
        if full is None:
            raise GoldError(f"gold: no instruction {name!r}; known: {', '.join(CHECKS)}")
        arguments = {
            key: value for key, value in {**spec.pop("kwargs", {}), **spec}.items() if value is not None
        }
        try:
            inspect.signature(CHECKS[full]).bind("", **arguments)
        except TypeError as error:
            raise GoldError(f"gold: instruction {name!r}: {error}") from None
        found.append((full, CHECKS[full], arguments))
    if not found:
        raise GoldError("gold: no instructions")
    return found


@verifier("instructions", "ifeval")
def instructions(response: Response, gold: Any, row: Row, *, strict: bool = True) -> Verdict:
    """Score: the share of instructions that the visible response follows; correct: all of them.

    gold: [{"id": "length_constraints:number_words", "num_words": 50, "relation": "at least"}, ...].
    `strict=False` also tries the response without its first or last line and without stars (IFEval's loose
    accuracy). An empty response follows none.
    """
    checks = _constraints(gold)
    answer = body(response)
    text = answer.text
    if len(text) > 200_000:
        raise Unread("too long", answer)
    lines = text.split("\n")
    versions = [text]
    if not strict:
        versions += [
            version for cut in (lines[1:], lines[:-1], lines[1:-1]) if (version := "\n".join(cut).strip())
        ]
        versions += [version.replace("*", "") for version in versions]
    kept = Counter(
        name
        for name, check, arguments in checks
        for _ in [0]
        if any(check(version, **arguments) for version in versions)
    )
    failed = [name for name, _, _ in checks if not kept[name]]
    score = sum(kept.values()) / len(checks)
    reason = "all followed" if score == 1.0 else f"not followed: {', '.join(failed) or 'some'}"
    return verdict(answer, score, not failed and score == 1.0, reason, "instructions")

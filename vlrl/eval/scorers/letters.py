"""How harnesses read the letter of an option out of a response."""

from __future__ import annotations

import re
from collections.abc import Mapping

_OPEN, _CLOSE = r"[\(\[\{（【]?\s*", r"\s*[\)\]\}）】]?"
_FREE = r"(?<![A-Za-z])"
_INVISIBLE = re.compile("[\u200b\u200c\u200d\ufeff]")
_BLOCK = re.compile(r"<\s*answer\b[^>]*>\s*([A-J]).*?<\s*/\s*answer\s*>", re.IGNORECASE | re.DOTALL)
_LISTED = re.compile(r"^[*_>\-\s]*(?:option|选项)\s+[A-J]\s*[:：]", re.IGNORECASE)
_ALONE = re.compile(r"^\s*[*_`>（）\[\]【】\(\)]*\s*([A-Fa-f])\s*[*_`（）\[\]【】\(\)]*\s*$")
_LABEL = re.compile(r"^\s*([A-F])\s*[\.．:：\)\]】、-]\s+", re.IGNORECASE)
_INLINE = re.compile(_FREE + r"[*_`（\[\{\(]*\s*([A-F])\s*[*_`）\]\})]*(?=$|[\s\.,:;!?\)\]】》」』，。；、：）])")
_PHRASES = r"(?:final\s*answer|the\s*answer\s*is|answer(?:\s*is)?|correct\s*answer|答案|最终答案|结论|所以|因此|我选(?:择)?|选择|选)"


def _only(letters: list[str]) -> str | None:
    """The one distinct letter of a list, or None."""
    return letters[0] if len(set(letters)) == 1 else None


def _from_lines(lines: list[str]) -> str | None:
    """Bottom up: a line that is a letter, a line that a letter opens, or a line with one distinct capital letter of its own."""
    for line in (line.strip() for line in reversed(lines)):
        if not line or _LISTED.search(line):
            continue
        match = _ALONE.fullmatch(line) or _LABEL.match(line)
        letter = match.group(1).upper() if match else _only(_INLINE.findall(line))
        if letter:
            return letter
    return None


def easi_letter(response: str, letters: str = "ABCDEF", tail_lines: int = 6, tail_window: int = 800) -> str | None:
    """The option letter by the rules of VLMEvalKit's spatial benchmarks (EASI), or None.

    In order: the letter that opens <answer>...</answer>; a letter right before </answer> or </think>; the last lines after the thinking,
    then of the last 800 characters; "the answer is X" and its kin (any case, first occurrence); one distinct capital letter in the text.
    Read in VLMEvalKit e8e78f05. Edge: "a" before </think> is an A; "(B) or (C)" is nothing.
    """
    text = _INVISIBLE.sub("", response.strip())
    block = _BLOCK.search(text)
    if block:
        return block.group(1).upper()
    for tag in ("answer", "think"):
        match = re.search(rf"{_FREE}{_OPEN}([{letters}]){_CLOSE}\s*</\s*{tag}\s*>", text[-tail_window:], re.IGNORECASE)
        if match:
            return match.group(1).upper()
    tail = text
    for tag in (r"</\s*think\s*>", r"<\s*think\s*>"):
        ends = [match.end() for match in re.finditer(tag, text, re.IGNORECASE)]
        if ends:
            tail = text[ends[-1] :].strip()
            break
    letter = _from_lines(tail.splitlines()[-tail_lines:]) or _from_lines(text[-tail_window:].splitlines()[-tail_lines:])
    if letter:
        return letter
    match = re.search(rf"{_PHRASES}\s*[:：>＝=]?\s*{_OPEN}([{letters}]){_CLOSE}(?:\b|[.)、。])", text, re.IGNORECASE)
    if match:
        return match.group(1).upper()
    rest = "\n".join(line for line in text.splitlines() if not _LISTED.search(line))
    return _only(re.findall(rf"{_FREE}{_OPEN}([{letters}]){_CLOSE}(?![A-Za-z])", rest))


_REFUSALS = (
    "Sorry, I can't help with images of people yet.",
    "I can't process this file.",
    "I'm sorry, but without the image provided",
    "Cannot determine the answer",
)
_PUNCTUATION = str.maketrans(dict.fromkeys(".()[],:;!*#{}", " "))


def vlmevalkit_option(response: str, letters: Mapping[str, str]) -> str | None:
    """The only option letter that stands as a word of its own, if it is among the last four words; "Z" for a refusal.

    Read in VLMEvalKit e8e78f05 (`can_infer_option`).
    """
    if "Failed to obtain answer via API" in response:
        return None
    if any(refusal in response for refusal in _REFUSALS):
        return "Z"
    words = response.translate(_PUNCTUATION).split()
    found = [letter for letter in letters if letter in words]
    if not found:
        return "Z" if "Z" in words else None
    return found[0] if len(found) == 1 and words.index(found[0]) > len(words) - 5 else None


def vlmevalkit_choice(response: str, choices: Mapping[str, str]) -> str | None:
    """The option letter, else the letter of the only option whose text occurs in a response that is not too long.

    Read in VLMEvalKit e8e78f05 (`can_infer`): too long is more than twice the length of all options.
    """
    letter = vlmevalkit_option(response, choices)
    if letter:
        return letter
    if len(response) > 2 * sum(len(str(choice)) for choice in choices.values()):
        return None
    found = [key for key, choice in choices.items() if str(choice).lower() in response.lower()]
    return found[0] if len(found) == 1 else None

"""Readers: how a benchmark's own code, or a harness, extracts the letter of an option.

All take (response, letters, choices) and return a letter or None. Where the original draws a random letter
when it finds none, these return None: a guess of the scorer is not an answer of the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

Reader = Callable[[str, str, Sequence[str]], str | None]
_MARKS = ",.!?;:'"


def bare(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """A response that is a letter, or begins with a letter and a full stop or parenthesis. TempCompass
    (arXiv:2403.00476), without its judge."""
    text = response.strip()
    match = re.fullmatch(rf"\(?([{letters}])\)?\.?", text) or re.match(rf"\(?([{letters}])[.)]", text)
    return match.group(1) if match else None


def first_character(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """The first letter of the response, after spaces and a parenthesis. CV-Bench in lmms-eval: "The answer is
    B" reads T."""
    match = re.match(r"[\(\s]*([A-Z])", response.strip(), re.IGNORECASE)
    return match.group(1).upper() if match else None


_OPENINGS = (
    "The best answer is", "The correct answer is", "The answer is", "The answer", "The best option is",
    "The correct option is", "Best answer:",
    "Best option:",
)  # fmt: skip
# A missing comma joins two openings of Video-MME's list, in two places, so that none of these four is ever
# removed.
_JOINED = ("The best answer is", "The correct answer is", "The answer is", "The answer", "Answer:", "Option:")


def _first_letter(response: str, letters: str, openings: Sequence[str]) -> str | None:
    text = response.strip()
    for opening in openings:
        text = text.replace(opening, "")
    match = re.search(f"[{letters}]", text)
    return match.group() if match else None


def any_character(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """The first capital among the letters anywhere, with known openings removed. LongVideoBench
    (arXiv:2407.15754): "The answer is Blue" reads B."""
    return _first_letter(response, letters, _OPENINGS)


def video_mme(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """As `any_character`, with the openings of Video-MME (arXiv:2405.21075): "Best option: C" reads B."""
    return _first_letter(response, letters, _JOINED)


_PHRASES = (
    "the answer is", "answer is", "the correct answer is", "correct answer is", "the best answer is",
    "best answer is", "the correct option is",
    "correct option is", "the best option is", "best option is", "the choice is", "choice is",
    "the correct choice is", "correct choice is",
    "i choose", "i select", "i pick", "my answer is", "my choice is", "옵션", "정답은", "답은", "답:",
    "答案是", "答案为", "选", "答えは",
)  # fmt: skip


def ranked(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """lmms-eval's shared extractor, by rank: at the start, at the end, after "the answer is", (A), A., A:,
    A), "A ", anywhere; the last of a rank."""
    text = response.strip()
    for mark in (",", ".", "!", "?", ";", ":", "'", '"'):
        text = text.strip(mark)
    text = f" {text} "
    core, found = text.strip(), []
    for letter in letters:
        shapes = (
            (f"({letter})", 6),
            (f"{letter}.", 5),
            (f"{letter}:", 4),
            (f"{letter})", 3),
            (f"{letter} ", 2),
        )
        found += [(rank, text.rfind(shape), letter) for shape, rank in shapes if shape in text]
        for phrase in _PHRASES:
            start = text.lower().find(phrase)
            place = text.find(letter, start + len(phrase)) if start >= 0 else -1
            found += [(7, place, letter)] if place >= 0 else []
        if core.startswith(letter) and (len(core) == 1 or not core[1].isalpha()):
            found.append((10, 0, letter))
        if core.endswith(letter) and (len(core) == 1 or not core[-2].isalpha()):
            found.append((9, len(text) - 1, letter))
    if not found:
        found = [(0, text.rfind(letter), letter) for letter in letters if letter in text]
    # At equal rank and place the alphabetically first letter is taken, as in a stable sort over the letters
    # in order.
    return max(found, key=lambda item: (item[0], item[1], -ord(item[2])))[2] if found else None


def _shaped(response: str, letters: str, choices: Sequence[str], shapes: Sequence[str]) -> str | None:
    text = response
    for mark in _MARKS:
        text = text.strip(mark)
    text = f" {text} "
    for shape in shapes:
        found = [letter for letter in letters if shape.format(letter) in text]
        if found:
            # The last of several; without parentheses the originals search for " X " here, whatever shape was
            # found.
            pattern = shape if shape.startswith("(") else " {} "
            return max(found, key=lambda letter: text.rfind(pattern.format(letter)))
    if len(text.split()) > 5:
        lowered = text.lower()
        named = [
            (lowered.rfind(choice.lower()), letter)
            for letter, choice in zip(letters, choices, strict=False)
            if choice.lower() in lowered
        ]
        if named:
            return max(named, key=lambda item: item[0])[1]
    return None


def mmmu(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """(X), else " X ", else an option's text in a response of more than five words; the last of several. MMMU
    (arXiv:2311.16502)."""
    return _shaped(response, letters, choices, ("({})", " {} "))


def mmmu_wide(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """As `mmmu`, and also "X " and "X.". lmms-eval's MMMU, and MMMU-Pro (arXiv:2409.02813)."""
    return _shaped(response, letters, choices, ("({})", "{} ", "{}."))


def mmmu_pro(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """After the last "Answer:" if exactly one option letter follows it, else as `mmmu_wide`. MMMU-Pro
    (arXiv:2409.02813)."""
    _, found, tail = response.rpartition("Answer:")
    if found:
        after = [letter for letter in letters if letter in tail]
        if len(after) == 1:
            return after[0]
    return mmmu_wide(response, letters, choices)


_VSTAR = (
    r"^([A-D])\s*[\.)\]]*", r"(?:THE\s+)?(?:ANSWER|CHOICE|OPTION)(?:\s+IS)?[\s:]+([A-D])", r"\(([A-D])\)",
    r"([A-D])\s*(?:\.|\)|])",
    r"(?:^|\s)([A-D])(?:\s|$)",
)  # fmt: skip


def vstar(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """V* (arXiv:2312.14135) in lmms-eval: any response that begins with A-D, in any case, is that letter
    ("Answer: C" reads A)."""
    text = response.strip().upper()
    for pattern in _VSTAR:
        match = re.search(pattern, text)
        if match:
            return match.group(1)
    found = re.findall("[A-D]", text)
    return found[0] if len(found) == 1 else None


def mvbench(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """ "X. text" at the start, else the first standalone letter A-E in any case, after punctuation is
    removed. MVBench (arXiv:2311.17005), lmms-eval.

    Edge: the English article "a" reads A.
    """
    match = re.match(r"([A-E])\.\s*(.+)$", response.strip(), re.IGNORECASE)
    if match:
        return match.group(1).upper()
    text = strip_punctuation(response.replace("\n", " ").replace("\t", " ").strip())
    for mark in ("'", '"', ")", "("):
        text = text.strip(mark)
    match = re.search(r"\b([A-E])\b", text.strip(), re.IGNORECASE)
    return match.group(1).upper() if match else None


def strip_punctuation(text: str) -> str:
    """The text without punctuation, as in the VQA evaluation.

    A mark is deleted if it has a space beside it somewhere in the text (or the text has a number like 1,000),
    and becomes a space otherwise; the first 32 full stops that no digit follows are deleted.
    """
    joined = re.search(r"\d,\d", text) is not None
    out = text
    for mark in ';/[]"{}()=+\\_-><@`,?!':
        out = out.replace(mark, "" if joined or f"{mark} " in text or f" {mark}" in text else " ")
    return re.sub(r"\.(?!\d)", "", out, count=32)


def blink(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """A first line of one letter, else the last "answer (is) X", the last (X), or the first letter. BLINK
    (arXiv:2404.12390), lmms-eval."""
    text = response.strip()
    first = text.split("\n", 1)[0].strip()
    match = re.match(rf"^\(?([{letters}])\)?[\.\s:,)]*$", first, re.IGNORECASE) if len(first) <= 4 else None
    if match:
        return match.group(1).upper()
    for pattern, flags in (
        (rf"answers?(?:\s+is)?\s*[:\-]?\s*\(?([{letters}])\)?(?![A-Za-z])", re.IGNORECASE),
        (rf"\(([{letters}])\)", 0),
    ):
        found = re.findall(pattern, text, flags)
        if found:
            return found[-1].upper()
    match = re.match(rf"[\(\s]*([{letters}])", text, re.IGNORECASE)
    return match.group(1).upper() if match else None


def answer_line(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """The first "Answer: X". GPQA (arXiv:2311.12022) in simple-evals."""
    match = re.search(rf"(?i)Answer[ \t]*:[ \t]*\$?([{letters}])\$?", response)
    return match.group(1).upper() if match else None


def mmlu_pro(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """ "answer is (X", else the last label "Answer: X" of the first line that has one, else the last
    standalone capital A-J.

    MMLU-Pro (arXiv:2406.01574). Deviates: where the authors draw a letter (always G, as they re-seed), no
    letter is extracted.
    """
    match = re.search(r"answer is \(?([A-J])\)?", response) or re.search(r".*[aA]nswer:\s*([A-J])", response)
    if match:
        return match.group(1)
    found = re.findall(r"\b[A-J]\b", response)
    return found[-1] if found else None


def we_math(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """The first character after the last "Answer" once <>:. and spaces are removed. We-Math
    (arXiv:2407.01284)."""
    tail = response.rpartition("Answer")[2]
    text = re.sub(r"[<>:.]", "", tail).strip()
    return text[0] if text and text[0] in letters else None


def tagged(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """The first CHARACTER inside <answer>...</answer>. SEED-Bench-R1 (arXiv:2503.24376): "Both are plausible"
    reads B."""
    match = re.search(r"<answer>(.*?)</answer>", response, re.DOTALL)
    text = (match.group(1) if match else response).strip()
    return text[0] if text[:1] and text[0] in letters else None


# --- VLMEvalKit ---------------------------------------------------------------------------------------------

_OPEN, _CLOSE = r"[\(\[\{（【]?\s*", r"\s*[\)\]\}）】]?"
_FREE = r"(?<![A-Za-z])"
_INVISIBLE = re.compile("[\u200b\u200c\u200d\ufeff]")
_BLOCK = re.compile(r"<\s*answer\b[^>]*>\s*([A-J]).*?<\s*/\s*answer\s*>", re.IGNORECASE | re.DOTALL)
_LISTED = re.compile(r"^[*_>\-\s]*(?:option|选项)\s+[A-J]\s*[:：]", re.IGNORECASE)
_ALONE = re.compile(r"^\s*[*_`>（）\[\]【】\(\)]*\s*([A-Fa-f])\s*[*_`（）\[\]【】\(\)]*\s*$")
_LABEL = re.compile(r"^\s*([A-F])\s*[\.．:：\)\]】、-]\s+", re.IGNORECASE)
_INLINE = re.compile(
    _FREE + r"[*_`（\[\{\(]*\s*([A-F])\s*[*_`）\]\})]*(?=$|[\s\.,:;!?\)\]】》」』，。；、：）])"
)
_EASI_PHRASES = (
    r"(?:final\s*answer|the\s*answer\s*is|answer(?:\s*is)?|correct\s*answer"
    r"|答案|最终答案|结论|所以|因此|我选(?:择)?|选择|选)"
)


def _only(letters: list[str]) -> str | None:
    """The only distinct letter of a list; None if it has none or several."""
    return letters[0] if len(set(letters)) == 1 else None


def _from_lines(lines: list[str]) -> str | None:
    """The last line that is a letter, begins with a labelled letter, or has exactly one distinct standalone
    capital letter gives the letter."""
    for line in (line.strip() for line in reversed(lines)):
        if not line or _LISTED.search(line):
            continue
        match = _ALONE.fullmatch(line) or _LABEL.match(line)
        letter = match.group(1).upper() if match else _only(_INLINE.findall(line))
        if letter:
            return letter
    return None


def easi_letter(
    response: str, letters: str = "ABCDEF", tail_lines: int = 6, tail_window: int = 800
) -> str | None:
    """The option letter by the rules of VLMEvalKit's spatial benchmarks (EASI), or None.

    In order: the first letter of <answer>...</answer>; a letter directly before </answer> or </think>; the
    last lines after the thinking, then of the last 800 characters; "the answer is X" and similar phrases (any
    case, first occurrence); the only distinct capital letter of the text. Code: VLMEvalKit e8e78f05. Edge:
    "a" before </think> is an A; "(B) or (C)" gives None.
    """
    text = _INVISIBLE.sub("", response.strip())
    block = _BLOCK.search(text)
    if block:
        return block.group(1).upper()
    for tag in ("answer", "think"):
        match = re.search(
            rf"{_FREE}{_OPEN}([{letters}]){_CLOSE}\s*</\s*{tag}\s*>", text[-tail_window:], re.IGNORECASE
        )
        if match:
            return match.group(1).upper()
    tail = text
    for tag in (r"</\s*think\s*>", r"<\s*think\s*>"):
        ends = [match.end() for match in re.finditer(tag, text, re.IGNORECASE)]
        if ends:
            tail = text[ends[-1] :].strip()
            break
    letter = _from_lines(tail.splitlines()[-tail_lines:]) or _from_lines(
        text[-tail_window:].splitlines()[-tail_lines:]
    )
    if letter:
        return letter
    match = re.search(
        rf"{_EASI_PHRASES}\s*[:：>＝=]?\s*{_OPEN}([{letters}]){_CLOSE}(?:\b|[.)、。])", text, re.IGNORECASE
    )
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
    """The only option letter that is a word of its own, if it is among the last four words; "Z" for a
    refusal.

    Code: VLMEvalKit e8e78f05 (`can_infer_option`).
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
    """The option letter, else the letter of the only option whose text occurs in a response that is not too
    long.

    Code: VLMEvalKit e8e78f05 (`can_infer`): a response longer than twice the length of all options is too
    long.
    """
    letter = vlmevalkit_option(response, choices)
    if letter:
        return letter
    if len(response) > 2 * sum(len(str(choice)) for choice in choices.values()):
        return None
    found = [key for key, choice in choices.items() if str(choice).lower() in response.lower()]
    return found[0] if len(found) == 1 else None


def easi(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """The letter as in VLMEvalKit's spatial benchmarks (`easi_letter`)."""
    return easi_letter(response)


def can_infer(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """The letter, else the option text, as in VLMEvalKit without its judge (`vlmevalkit_choice`)."""
    return vlmevalkit_choice(response, dict(zip(letters, choices or [""] * len(letters), strict=False)))


_ALL = (
    bare, first_character, any_character, video_mme, ranked, mmmu, mmmu_wide, mmmu_pro, vstar, mvbench, blink,
    answer_line, mmlu_pro, we_math,
    tagged, easi, can_infer,
)  # fmt: skip
READERS: dict[str, Reader] = {function.__name__: function for function in _ALL}

"""How a benchmark's own code, or a harness, reads the letter of an option. All take (response, letters, choices) and return a letter or None.

Where the original draws a random letter when it finds none, these give None: a guess by the scorer is not an answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from vlrl.eval.scorers.letters import easi_letter, vlmevalkit_choice

Reader = Callable[[str, str, Sequence[str]], str | None]
_MARKS = ",.!?;:'"


def bare(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """A response that is a letter, or that a letter with a full stop or parenthesis opens. TempCompass (arXiv:2403.00476), without its judge."""
    text = response.strip()
    match = re.fullmatch(rf"\(?([{letters}])\)?\.?", text) or re.match(rf"\(?([{letters}])[.)]", text)
    return match.group(1) if match else None


def first_character(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """The first letter of the response, after spaces and a parenthesis. CV-Bench in lmms-eval: "The answer is B" reads T."""
    match = re.match(r"[\(\s]*([A-Z])", response.strip(), re.IGNORECASE)
    return match.group(1).upper() if match else None


_OPENINGS = (
    "The best answer is", "The correct answer is", "The answer is", "The answer", "The best option is", "The correct option is", "Best answer:",
    "Best option:",
)  # fmt: skip
# A missing comma glues two openings of Video-MME's list in two places, so that neither of the four is ever removed.
_GLUED = ("The best answer is", "The correct answer is", "The answer is", "The answer", "Answer:", "Option:")


def _any(response: str, letters: str, openings: Sequence[str]) -> str | None:
    text = response.strip()
    for opening in openings:
        text = text.replace(opening, "")
    match = re.search(f"[{letters}]", text)
    return match.group() if match else None


def any_character(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """The first capital among the letters anywhere, known openings removed. LongVideoBench (2407.15754): "The answer is Blue" reads B."""
    return _any(response, letters, _OPENINGS)


def video_mme(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """As `any_character`, with the openings of Video-MME (arXiv:2405.21075): "Best option: C" reads B."""
    return _any(response, letters, _GLUED)


_PHRASES = (
    "the answer is", "answer is", "the correct answer is", "correct answer is", "the best answer is", "best answer is", "the correct option is",
    "correct option is", "the best option is", "best option is", "the choice is", "choice is", "the correct choice is", "correct choice is",
    "i choose", "i select", "i pick", "my answer is", "my choice is", "옵션", "정답은", "답은", "답:", "答案是", "答案为", "选", "答えは",
)  # fmt: skip


def ranked(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """lmms-eval's shared extractor: at the start > at the end > after "the answer is" > (A) > A. > A: > A) > "A " > anywhere; the last of equals."""
    text = response.strip()
    for mark in (",", ".", "!", "?", ";", ":", "'", '"'):
        text = text.strip(mark)
    text = f" {text} "
    core, found = text.strip(), []
    for letter in letters:
        shapes = ((f"({letter})", 6), (f"{letter}.", 5), (f"{letter}:", 4), (f"{letter})", 3), (f"{letter} ", 2))
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
    # Of equal rank and place the alphabetically first wins, as in a stable sort over the letters in order.
    return max(found, key=lambda item: (item[0], item[1], -ord(item[2])))[2] if found else None


def _shaped(response: str, letters: str, choices: Sequence[str], shapes: Sequence[str]) -> str | None:
    text = response
    for mark in _MARKS:
        text = text.strip(mark)
    text = f" {text} "
    for shape in shapes:
        found = [letter for letter in letters if shape.format(letter) in text]
        if found:
            # The last of several; outside parentheses the originals look for " X " here, whatever shape was found.
            place = shape if shape.startswith("(") else " {} "
            return max(found, key=lambda letter: text.rfind(place.format(letter)))
    if len(text.split()) > 5:
        lowered = text.lower()
        named = [(lowered.rfind(choice.lower()), letter) for letter, choice in zip(letters, choices, strict=False) if choice.lower() in lowered]
        if named:
            return max(named, key=lambda item: item[0])[1]
    return None


def mmmu(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """(X), else " X ", else an option's text in a response of more than five words; the last of several. MMMU (arXiv:2311.16502)."""
    return _shaped(response, letters, choices, ("({})", " {} "))


def mmmu_wide(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """As `mmmu`, with "X " and "X." too. lmms-eval's MMMU, and MMMU-Pro (arXiv:2409.02813)."""
    return _shaped(response, letters, choices, ("({})", "{} ", "{}."))


def mmmu_pro(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """After the last "Answer:" if exactly one option letter follows it, else as `mmmu_wide`. MMMU-Pro (arXiv:2409.02813)."""
    _, found, tail = response.rpartition("Answer:")
    if found:
        after = [letter for letter in letters if letter in tail]
        if len(after) == 1:
            return after[0]
    return mmmu_wide(response, letters, choices)


_VSTAR = (
    r"^([A-D])\s*[\.)\]]*", r"(?:THE\s+)?(?:ANSWER|CHOICE|OPTION)(?:\s+IS)?[\s:]+([A-D])", r"\(([A-D])\)", r"([A-D])\s*(?:\.|\)|])",
    r"(?:^|\s)([A-D])(?:\s|$)",
)  # fmt: skip


def vstar(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """V* (arXiv:2312.14135) in lmms-eval: any response that begins with A-D, in any case, is that letter ("Answer: C" reads A)."""
    text = response.strip().upper()
    for pattern in _VSTAR:
        match = re.search(pattern, text)
        if match:
            return match.group(1)
    found = re.findall("[A-D]", text)
    return found[0] if len(found) == 1 else None


def mvbench(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """ "X. text" at the start, else the first standalone letter a-e in any case once punctuation is gone. MVBench (arXiv:2311.17005), lmms-eval.

    The English article "a" reads A.
    """
    match = re.match(r"([A-E])\.\s*(.+)$", response.strip(), re.IGNORECASE)
    if match:
        return match.group(1).upper()
    text = without_marks(response.replace("\n", " ").replace("\t", " ").strip())
    for mark in ("'", '"', ")", "("):
        text = text.strip(mark)
    match = re.search(r"\b([A-E])\b", text.strip(), re.IGNORECASE)
    return match.group(1).upper() if match else None


def without_marks(text: str) -> str:
    """Punctuation as the VQA evaluation treats it: away where a space is beside it (or the text holds 1,000), else a space; full stops
    away (the first 32) unless a digit follows."""
    joined = re.search(r"\d,\d", text) is not None
    out = text
    for mark in ';/[]"{}()=+\\_-><@`,?!':
        out = out.replace(mark, "" if joined or f"{mark} " in text or f" {mark}" in text else " ")
    return re.sub(r"\.(?!\d)", "", out, count=32)


def blink(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """A first line of one letter, else the last "answer (is) X", the last (X), a letter that opens the text. BLINK (2404.12390), lmms-eval."""
    text = response.strip()
    first = text.split("\n", 1)[0].strip()
    match = re.match(rf"^\(?([{letters}])\)?[\.\s:,)]*$", first, re.IGNORECASE) if len(first) <= 4 else None
    if match:
        return match.group(1).upper()
    for pattern, flags in ((rf"answers?(?:\s+is)?\s*[:\-]?\s*\(?([{letters}])\)?(?![A-Za-z])", re.IGNORECASE), (rf"\(([{letters}])\)", 0)):
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
    """ "answer is (X", else the last label "Answer: X" of the first line that has one, else the last capital A-J that stands alone.

    MMLU-Pro (arXiv:2406.01574). Deviates: where the authors draw a letter (always G, as they re-seed), nothing is read.
    """
    match = re.search(r"answer is \(?([A-J])\)?", response) or re.search(r".*[aA]nswer:\s*([A-J])", response)
    if match:
        return match.group(1)
    found = re.findall(r"\b[A-J]\b", response)
    return found[-1] if found else None


def we_math(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """The first character after the last "Answer", without <>:. and spaces. We-Math (arXiv:2407.01284)."""
    tail = response.rpartition("Answer")[2]
    text = re.sub(r"[<>:.]", "", tail).strip()
    return text[0] if text and text[0] in letters else None


def tagged(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """The first CHARACTER inside <answer>...</answer>. SEED-Bench-R1 (arXiv:2503.24376): "Both are plausible" reads B."""
    match = re.search(r"<answer>(.*?)</answer>", response, re.DOTALL)
    text = (match.group(1) if match else response).strip()
    return text[0] if text[:1] and text[0] in letters else None


def easi(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """VLMEvalKit's spatial benchmarks."""
    return easi_letter(response)


def can_infer(response: str, letters: str, choices: Sequence[str]) -> str | None:
    """VLMEvalKit's letters, then option texts, without its judge."""
    return vlmevalkit_choice(response, dict(zip(letters, choices or [""] * len(letters), strict=False)))


_ALL = (
    bare, first_character, any_character, video_mme, ranked, mmmu, mmmu_wide, mmmu_pro, vstar, mvbench, blink, answer_line, mmlu_pro, we_math,
    tagged, easi, can_infer,
)  # fmt: skip
READERS: dict[str, Reader] = {function.__name__: function for function in _ALL}

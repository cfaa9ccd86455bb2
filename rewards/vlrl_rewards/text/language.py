"""The language and the repetitiveness of a text: identification by script and by common words (offline,
deterministic), and two rewards."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward
from vlrl.types import Rollout
from vlrl_rewards.format.tags import has_content

_SCRIPTS = {
    "HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "CJK": "zh", "CYRILLIC": "ru", "ARABIC": "ar",
    "HEBREW": "he", "DEVANAGARI": "hi",
    "THAI": "th", "GREEK": "el",
    "BENGALI": "bn", "TAMIL": "ta", "TELUGU": "te", "KANNADA": "kn", "GUJARATI": "gu", "GURMUKHI": "pa",
    "MALAYALAM": "ml", "GEORGIAN": "ka",
    "ARMENIAN": "hy",
}  # fmt: skip
_COMMON = {
    "en": (
        "the of and to in is that it was for on are with as this be by you not or from have at an which we "
        "so can"
    ),
    "fr": (
        "le la les de des et est un une que qui dans pour pas sur avec ce il elle nous vous sont au du plus"
    ),
    "de": "der die das und ist nicht ein eine zu mit auf für von dem den sich es ich wir sie auch als bei im",
    "es": "el la los las de y es un una que en no por con para se del su lo como más pero está",
    "it": "il la di e è un una che in non per con si del della sono anche come più questo gli le ma nel",
    "pt": "o a os as de e é um uma que em não por com para se do da mais como mas no na são",
    "nl": "de het een en is van dat niet in op te zijn met voor die aan er ook als maar om bij wij",
    "pl": "i w nie się na jest że do z to jak o co po ale za od przez czy tak",
    "tr": "ve bir bu için ile de da çok ne gibi daha olarak ama var olan değil",
    "vi": "và là của có không một được trong cho với các này người những để đã",
    "sv": "och att det i som är en på för med inte av ett den till har de om",
    "id": "yang dan di ini itu dengan untuk dari pada tidak adalah ke dalam akan",
}
MAX_CHARS = 20_000


def scripts(text: str) -> Counter[str]:
    """Letters by script name ("LATIN", "CJK", ...)."""
    return Counter(
        unicodedata.name(char, "NONE").split()[0].partition("-")[0]
        for char in text[:MAX_CHARS]
        if char.isalpha()
    )


def language_of(text: str) -> str:
    """A two-letter language code; "" where it cannot be determined (no letters, no common words). Code
    blocks, LaTeX and tags are ignored."""
    text = re.sub(r"```.*?```|\$[^$]{0,500}\$|\\[a-zA-Z]+|</?\w+>", " ", text[:MAX_CHARS], flags=re.DOTALL)
    found = scripts(text)
    total = sum(found.values())
    if not total:
        return ""
    if (found["HIRAGANA"] + found["KATAKANA"]) / total > 0.1:
        return "ja"
    script, count = found.most_common(1)[0]
    if script != "LATIN":
        return _SCRIPTS.get(script, "") if count / total > 0.5 else ""
    words = Counter(re.findall(r"[^\W\d_]+", text.casefold()))
    scores = {code: sum(words[word] for word in common.split()) for code, common in _COMMON.items()}
    best = max(scores, key=lambda code: (scores[code], code == "en"))
    return best if scores[best] else ""


def share_of(text: str, language: str) -> float:
    """The share of letters in the script of `language`; for Latin scripts 0 if the text is identified as
    another language."""
    found = scripts(re.sub(r"\\[a-zA-Z]+|</?\w+>|\$[^$]{0,500}\$", " ", text[:MAX_CHARS]))
    total = sum(found.values())
    if not total:
        return 0.0
    wanted = {script for script, code in _SCRIPTS.items() if code == language} or {"LATIN"}
    wanted |= {"CJK"} if language == "ja" else set()
    if wanted == {"LATIN"} and language_of(text) not in ("", language):
        return 0.0
    return sum(found[script] for script in wanted) / total


@register("language")
@dataclass(frozen=True, kw_only=True)
class Language(Reward):
    """Language consistency reward.

        r = letters in the script of `language` / letters

    The whole text counts, thinking included. r = 0 if the text is identified as another language.
    Paper: DeepSeek-R1 (language consistency reward), arXiv:2501.12948, sec. 2.3.2. Deviations: letters in
    place of words; LaTeX and tags are ignored. Edge: no letters: 0. Units: [0, 1]. `language`: a two-letter
    code.
    """

    reads_answer: ClassVar[bool] = False
    language: str = "en"

    def __call__(self, rollout: Rollout) -> float:
        return share_of(rollout.text, self.language)


@register("repetition")
@dataclass(frozen=True, kw_only=True)
class RepetitionPenalty(Reward):
    """N-gram repetition penalty.

        r = -penalty (1 - unique / total)

    Over the word n-grams of the whole text; characters replace words in scripts without spaces.
    Paper: Demystifying Long CoT, arXiv:2502.03373, app. (n-gram repetition penalty). Edge: fewer than n
    words: 0; a text without a letter or digit: -penalty.
    """

    reads_answer: ClassVar[bool] = False
    n: int = 4
    penalty: float = 1.0

    def __call__(self, rollout: Rollout) -> float:
        words = re.findall(
            r"[^\W\d_]+|\d+|[^\w\s]",
            re.sub("([\u3040-\u30ff\u3400-\u9fff])", r" \1 ", rollout.text.casefold()),
        )
        if not has_content(rollout.text):
            return -self.penalty
        total = len(words) - self.n + 1
        if total <= 0:
            return 0.0
        unique = len({tuple(words[i : i + self.n]) for i in range(total)})
        return -self.penalty * (1 - unique / total)

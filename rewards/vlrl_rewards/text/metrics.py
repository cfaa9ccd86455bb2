"""Metrics between a text and its reference: token F1, ROUGE, BLEU, METEOR, chrF, ANLS in [0, 1] (1 = equal,
METEOR: near 1), word and character error rates."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence

from rapidfuzz.distance import LCSseq, Levenshtein

from vlrl_rewards.parsing import clean

MAX_TOKENS = 20_000
_SPACELESS = re.compile("[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f]")
_ASCII_PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}]")
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")


def fold(text: str) -> str:
    """The text in SQuAD normalisation: folded case, no punctuation, no articles, single spaces (Rajpurkar et
    al., arXiv:1606.05250, sec. 6.1)."""
    text = re.sub(r"[^\w\s]|_", " ", clean(text).casefold().replace("'", "").replace("’", ""))
    return " ".join(word for word in text.split() if word not in ("a", "an", "the"))


def words_of(text: str) -> list[str]:
    """Folded words; a text in a script without spaces (Chinese, Japanese, Thai) is split into characters."""
    return [part for word in fold(text).split() for part in split(word)][:MAX_TOKENS]


def split(word: str) -> list[str]:
    """The characters of a word in a script without spaces, else the word."""
    return list(word) if _SPACELESS.search(word) else [word]


def f_score(matched: float, said: float, gold: float, beta: float = 1.0) -> float:
    """F-beta: (1 + b^2) P R / (b^2 P + R), P = matched / said, R = matched / gold; 0 if nothing matches."""
    if not matched:
        return 0.0
    precision, recall = matched / said, matched / gold
    return (1 + beta**2) * precision * recall / (beta**2 * precision + recall)


def token_f1(said: str, gold: str) -> float:
    """F1 of word multisets (Rajpurkar et al., arXiv:1606.05250)."""
    a, b = words_of(said), words_of(gold)
    return f_score(sum((Counter(a) & Counter(b)).values()), len(a), len(b))


def set_f1(said: str, gold: str) -> float:
    """F1 of word sets: articles count, repeated words once, ASCII punctuation parts words, "True" and "False"
    are yes and no. Beside a Chinese gold: of the sets of characters and whole numbers (f1_score of
    inclusionAI/ASearcher 813e804, utils/rewards.py)."""
    parts = _characters if _HAN.search(gold) else _words
    a, b = parts(said), parts(gold)
    return f_score(len(a & b), len(a), len(b))


def _plain(text: str) -> str:
    text = clean(text).strip()
    return {"True": "yes", "False": "no"}.get(text, _ASCII_PUNCTUATION.sub(" ", text)).lower()


def _words(text: str) -> set[str]:
    return set(_plain(text).split()[:MAX_TOKENS])


def _characters(text: str) -> set[str]:
    plain = _plain(text)[:MAX_TOKENS]
    return {*re.findall(r"\d+", plain), *re.sub(r"[0-9\s，。]", "", plain)}


def _rouge_tokens(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())[:MAX_TOKENS]


def _ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[i:] for i in range(n))))


def rouge_n(said: str, gold: str, n: int = 1) -> float:
    """ROUGE-N F1, without stemming (Lin 2004)."""
    a, b = _ngrams(_rouge_tokens(said), n), _ngrams(_rouge_tokens(gold), n)
    return f_score(sum((a & b).values()), sum(a.values()), sum(b.values()))


def rouge_l(said: str, gold: str) -> float:
    """ROUGE-L F1: longest common subsequence of words (Lin 2004)."""
    a, b = _rouge_tokens(said), _rouge_tokens(gold)
    return f_score(LCSseq.similarity(a, b), len(a), len(b))


def _tokens_13a(text: str) -> list[str]:
    """The mteval-v13a tokenisation that BLEU scores are reported with (Post, arXiv:1804.08771)."""
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, char in (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")):
        text = text.replace(entity, char)
    text = re.sub(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])", r" \1 ", f" {text} ")
    text = re.sub(r"([^0-9])([\.,])", r"\1 \2 ", text)
    text = re.sub(r"([\.,])([^0-9])", r" \1 \2", text)
    text = re.sub(r"([0-9])(-)", r"\1 \2 ", text)
    return text.split()[:MAX_TOKENS]


def bleu(said: str, gold: str | Sequence[str], order: int = 4) -> float:
    """Sentence BLEU, exponential smoothing, effective order, 13a tokens (Papineni et al. 2002; settings of
    Post, arXiv:1804.08771)."""
    golds = [_tokens_13a(text) for text in ([gold] if isinstance(gold, str) else gold)]
    tokens = _tokens_13a(said)
    if not tokens or not golds:
        return 0.0
    logs, smooth = [], 1.0
    for n in range(1, order + 1):
        counts = _ngrams(tokens, n)
        total = sum(counts.values())
        if total == 0:
            break
        allowed: Counter[tuple[str, ...]] = Counter()
        for reference in golds:
            allowed |= _ngrams(reference, n)
        matched = sum((counts & allowed).values())
        if n == 1 and matched == 0:
            return 0.0
        if matched == 0:
            smooth *= 2
        logs.append(math.log(matched / total if matched else 1 / (smooth * total)))
    closest = min((abs(len(reference) - len(tokens)), len(reference)) for reference in golds)[1]
    brevity = 1.0 if len(tokens) >= closest else math.exp(1 - closest / len(tokens))
    return brevity * math.exp(sum(logs) / len(logs))


def meteor(said: str, gold: str, alpha: float = 0.9, beta: float = 3.0, gamma: float = 0.5) -> float:
    """METEOR of equal words: F (1 - gamma (chunks / matches)^beta), F = P R / (alpha P + (1 - alpha) R).

    Matches are equal words, paired from the end; a chunk is a run of matches that stand side by side in both
    texts. Case is folded. Equal texts of n words get 1 - gamma / n^beta. Without stems and synonyms, which
    need data. Denkowski and Lavie 2014; parameters of Lavie and Agarwal 2007.
    """
    a, b = _rouge_tokens(said), _rouge_tokens(gold)
    places: dict[str, list[int]] = {}
    for place, word in enumerate(b):
        places.setdefault(word, []).append(place)
    paired = [(place, places[word].pop()) for place, word in reversed([*enumerate(a)]) if places.get(word)]
    if not paired:
        return 0.0
    precision, recall = len(paired) / len(a), len(paired) / len(b)
    chunks = 1 + sum((i - 1, j - 1) != after for (i, j), after in zip(paired, paired[1:]))
    mean = precision * recall / (alpha * precision + (1 - alpha) * recall)
    return mean * (1 - gamma * (chunks / len(paired)) ** beta)


def chrf(said: str, gold: str, order: int = 6, beta: float = 2.0) -> float:
    """chrF2: F of character n-gram precision and recall averaged over orders, without spaces (Popovic
    2015)."""
    a, b = "".join(said.split())[: 5 * MAX_TOKENS], "".join(gold.split())[: 5 * MAX_TOKENS]
    precision = recall = used = 0.0
    for n in range(1, order + 1):
        x, y = _ngrams(a, n), _ngrams(b, n)
        if not x or not y:
            continue
        matched = sum((x & y).values())
        precision, recall, used = (
            precision + matched / sum(x.values()),
            recall + matched / sum(y.values()),
            used + 1,
        )
    if not used or not precision:
        return 0.0
    precision, recall = precision / used, recall / used
    return (1 + beta**2) * precision * recall / (beta**2 * precision + recall)


def anls(said: str, gold: str, threshold: float = 0.5) -> float:
    """ANLS: 1 - normalised edit distance, 0 if that distance is at least `threshold` (Biten et al.,
    arXiv:1905.13648, eq. 1)."""
    a, b = clean(said).casefold(), clean(gold).casefold()
    distance = Levenshtein.normalized_distance(a, b)
    return 1.0 - distance if distance < threshold else 0.0


def word_error_rate(said: str, gold: str) -> float:
    """WER: word edit distance / words of the reference (may exceed 1); case and punctuation count."""
    a, b = clean(said).split()[:MAX_TOKENS], clean(gold).split()[:MAX_TOKENS]
    return Levenshtein.distance(a, b) / max(1, len(b))


def char_error_rate(said: str, gold: str) -> float:
    """CER: character edit distance / characters of the reference (may exceed 1)."""
    a, b = clean(said)[: 5 * MAX_TOKENS], clean(gold)[: 5 * MAX_TOKENS]
    return Levenshtein.distance(a, b) / max(1, len(b))

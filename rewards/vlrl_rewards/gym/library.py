"""The two puzzles whose rules are in the package itself: the word list of word_ladder, the cube of
rubiks_cube. Checks are as in `readers`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

MAX_WORDS, MAX_TURNS = 200, 500
_LADDER = re.compile(r"[A-Z]{1,20}(?:\s*(?:,|->|→)\s*[A-Z]{1,20})+")
_TURNS = re.compile(r"(?:[UDLRFB]'?\s+)*[UDLRFB]'?")


@lru_cache(maxsize=8)
def _words(length: int) -> frozenset[str]:
    from reasoning_gym.factory import create_dataset

    return frozenset(
        create_dataset(
            "word_ladder", min_word_length=length, max_word_length=length, seed=0, size=1
        ).word_sets[length]
    )


def word_ladder(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """Words of the package's list from the start to the end word, one letter changed at a time."""
    start, end = str(kept["start_word"]), str(kept["end_word"])
    words = re.findall("[A-Z]+", said.upper()) if _LADDER.fullmatch(said.strip().upper()) else []
    if (
        not 2 <= len(words) <= MAX_WORDS
        or (words[0], words[-1]) != (start, end)
        or any(len(word) != len(start) for word in words)
    ):
        return False
    one_letter = all(
        sum(a != b for a, b in zip(first, second)) == 1 for first, second in zip(words, words[1:])
    )
    return one_letter and set(words) <= _words(len(start))


def rubiks_cube(gold: str, said: str, kept: Mapping[str, Any]) -> bool:
    """Quarter turns in Singmaster notation ("U R' F") that solve the scrambled cube."""
    from magiccube.cube import Cube

    turns = said.strip()
    if not _TURNS.fullmatch(turns) or len(turns.split()) > MAX_TURNS:
        return False
    cube = Cube(int(kept["cube_size"]))
    cube.rotate(str(kept["scramble_moves"]))
    cube.rotate(" ".join(turns.split()))
    return bool(cube.is_done())

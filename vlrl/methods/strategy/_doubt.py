"""A conversation taken up again before its answer, with words put in by chance."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlrl.methods.strategy._branch import spread
from vlrl.methods.strategy._talk import Segment, Talk
from vlrl.types import Rollout

if TYPE_CHECKING:
    from vlrl.run import Run


def chances(drawn: Sequence[int], bank: Sequence[Sequence[int]]) -> list[float]:
    """Per token of a text drawn evenly from `bank` its log-prob: the share of the texts that begin alike so far which go on with it."""
    counts = [sum(list(text[:n]) == list(drawn[:n]) for text in bank) for n in range(len(drawn) + 1)]
    return [math.log(after / before) for before, after in zip(counts, counts[1:])]


@dataclass(eq=False)
class Doubted(Talk):
    """A conversation that goes on after a doubt, which stands at the tokens `given`."""

    given: tuple[int, int] = (0, 0)

    def rollout(self, run: Run, finish: Any, **info: Any) -> Rollout:
        made = super().rollout(run, finish, **info)
        made.source = "probe"
        made.info["probe"] = self.given
        return made


def taken_up(place: int, rollout: Rollout, answer: str, doubts: Sequence[str], chosen: int, seed: int, run: Run) -> Doubted | None:
    """The conversation up to the last match of `answer`, in its last turn, and the chosen doubt; None where nothing matches there."""
    pattern, tokenizer, length = re.compile(answer, re.DOTALL), run.policy.tokenizer, len(rollout)
    own = spread(rollout.loss_mask if rollout.loss_mask is not None else True, length)
    begin = max((t + 1 for t, mine in enumerate(own) if not mine), default=0)
    end = next((t for t in reversed(range(begin, length)) if pattern.search(run.policy.decode(rollout.ids[t:]))), -1)
    matches = list(pattern.finditer(rollout.text))
    if end < 0 or not matches:
        return None
    bank = [tokenizer.encode(text, add_special_tokens=False) for text in doubts]
    words = rollout.text[: matches[-1].start()].removeprefix(rollout.prompt.prefix) + doubts[chosen]
    versions = spread(rollout.version, length)
    now = Segment(rollout.ids[:end], rollout.logp[:end], own[:end], versions[:end], [words])
    now.messages.append({"role": "assistant", "content": [{"type": "text", "text": rollout.prompt.prefix + words}]})
    now.add(bank[chosen], chances(bank[chosen], bank), True, [versions[-1]] * len(bank[chosen]))
    number, turns, calls = (rollout.info[key] for key in ("conversation", "turns", "calls"))
    given = (end, end + len(bank[chosen]))
    return Doubted(place, number, rollout.prompt, run.decode(rollout.prompt, number), seed, now, turns, calls, given=given)

"""`score(text, gold)`: a reward called on a text, without a run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any, overload

from vlrl.plugins.scoring import NoScore
from vlrl.services.run_sync import run_sync
from vlrl.types import CoordinateSpace, Group, Prompt, Rollout, Row


class ScoresTexts:
    """Gives a reward with `score_group` the method `score`."""

    @overload
    def score(self, text: str, gold: Any = None, **columns: Any) -> float: ...
    @overload
    def score(self, text: Sequence[str], gold: Any = None, **columns: Any) -> list[float]: ...
    def score(self, text: str | Sequence[str], gold: Any = None, **columns: Any) -> float | list[float]:
        """The score of a response, as the reward gives it in a run: `build(Reward, "iou").score("<answer>[0,
        0, 9, 9]</answer>", [0, 0, 9, 9])`.

        Args:
            text: A response, or the responses of a group, for a reward that compares siblings.
            gold: The gold answer, in the form that the reward reads.
            columns: The row's other fields (`question`, `choices`, `images`, `task`, `target`); what is no
                field of a row goes into `Row.meta`.

        Coordinates in `text` are pixels of the original image. Token ids are made up: one per word. Raises
        what the reward raises, ValueError for a broken gold answer, RuntimeError for a reward that needs a
        run (`setup`).
        """
        texts = [text] if isinstance(text, str) else list(text)
        values: Any = self.score_group(group_of(texts, gold, columns))  # type: ignore[attr-defined]  # a mixin of Reward
        scores = _finished(values)
        return scores[0] if isinstance(text, str) else scores


def group_of(texts: Sequence[str], gold: Any, columns: dict[str, Any]) -> Group:
    """A group of one rollout per text."""
    known = {
        name: columns[name]
        for name in ("choices", "images", "videos", "task", "target", "system", "messages")
        if name in columns
    }
    known = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    meta = {name: value for name, value in columns.items() if name not in (*known, "id", "question", "meta")}
    row = Row(
        str(columns.get("id", "text")),
        str(columns.get("question", "")),
        answer=gold,
        meta={**columns.get("meta", {}), **meta},
        **known,
    )
    prompt = Prompt(row, (), images=row.images, videos=row.videos)
    sizes: Any = [picture.load().size for picture in row.images]  # type: ignore[union-attr]  # no clips
    spaces = tuple(CoordinateSpace(size, size, "original") for size in sizes)
    rollouts = []
    for text in texts:
        ids = list(range(max(len(text.split()), 1)))
        rollouts.append(Rollout(prompt, ids, text, logp=[0.0] * len(ids), spaces=spaces))
    return Group(prompt, rollouts, id="texts")


def _finished(values: Any) -> list[float]:
    async def wait() -> list[float]:
        found = await values if inspect.isawaitable(values) else values
        for value in found:
            if isinstance(value, NoScore):
                raise value
        return [float(await value if inspect.isawaitable(value) else value) for value in found]

    scores = run_sync(wait())
    for score in scores:
        if not math.isfinite(score):
            raise ValueError(f"a reward must be a finite number, got {score!r}")
    return scores

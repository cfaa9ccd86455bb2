"""Demonstrations of a row: where they are stored, how they become rollouts, and a check that the data has
any."""

from __future__ import annotations

from itertools import islice

from vlrl.plugins.capabilities import Annotation, Capability
from vlrl.plugins.contexts import StageContext
from vlrl.plugins.registry import ConfigError
from vlrl.types import Prompt, Rollout, Row

UNTRAINED_DEMONSTRATIONS = Capability(
    "untrained_demonstrations", hint="rollout: {name: luffy, replace: false, trained: false}"
)
GIVEN_TOKENS: Annotation[int] = Annotation(
    "given",
    int,
    hint=(
        "a rollout strategy that begins rollouts with a part of a demonstration, such as rollout: {name: "
        "g2rpo_a} or {name: seele}"
    ),
    doc="number of first tokens of the rollout that come from a demonstration",
)
CHECKED_ROWS = 256  # rows of each source that are searched for demonstrations when a phase begins


def demonstrations(row: Row) -> list[str]:
    """The row's demonstrations: `row.meta["demonstrations"]` (one text per teacher), else its `target`, else
    none. Empty texts are left out."""
    return [text for text in row.meta.get("demonstrations", ()) if text] or [
        text for text in (row.target,) if text
    ]


def expert_rollout(prompt: Prompt, text: str, run: StageContext) -> Rollout:
    """A demonstration and EOS as a rollout of source "expert", without log-probs. A prompt's `prefix` that
    opens the text is not repeated."""
    text = text.removeprefix(prompt.prefix)
    return Rollout(
        prompt=prompt,
        ids=[*run.policy.encode_text(text), run.policy.tokenizer.eos_token_id],
        text=prompt.prefix + text,
        source="expert",
        spaces=tuple(run.policy.spaces(prompt)),
        version=run.policy.version,
    )


def check_demonstrations(run: StageContext, plugin: str, key: str = "") -> None:
    """Raise ConfigError if none of the first rows of any source has a demonstration, or a text at
    `row.meta[key]`."""
    rows = (row for source in run.rows.values() for row in islice(source, CHECKED_ROWS))
    if not any(demonstrations(row) or (key and row.meta.get(key)) for row in rows):
        places = (
            f"a `target`, a list `meta.demonstrations` or a `meta.{key}`"
            if key
            else "a `target` or a list `meta.demonstrations`"
        )
        raise ConfigError(
            f"rollout: {plugin!r} needs demonstrations, and none of the first {CHECKED_ROWS} rows of a "
            f"source has {places}; "
            "fill one of them, or use rollout: {name: independent}"
        )

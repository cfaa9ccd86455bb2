"""What a teacher is, what it sees, and what it says of a completion.

Shapes: K likely tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vlrl.beside.service import ScoresPrompts
from vlrl.methods.common.prompts import content_items, with_text
from vlrl.methods.common.token_spans import Aligned, Aligner, UnalignedError
from vlrl.plugins.registry import ConfigError, build, make
from vlrl.plugins.stages import Engine
from vlrl.types import Group, Prompt, Rollout
from vlrl.types.media import Edited

START, SELF = "start", "self"
_FIELD = re.compile(r"\{(\w+)\}")


class NoHintError(ValueError):
    """A row without what the teacher is to be shown."""


@dataclass(frozen=True)
class TeacherConfig:
    """What `teacher` configures.

    Attributes:
        model: A folder or hub id of the policy's family; "start": the policy as the phase begins; "self": the
            policy as it is; with `engine` the served model, pinned as name@revision.
        policy: A model of another family, or with other settings: a config as in slot `policy`.
        engine: A server of the teacher: {name: openai, url: ..., model: ...}, of vLLM (`prompt_logprobs`).
        tokenizer: The folder of a served teacher's tokenizer; "": it has the policy's.
        hint: A text that the teacher sees after the question, with {answer}, {target}, {question} or {KEY} of
            the row's meta.
        crop: A key of the row's meta with a box in pixels ("answer": the gold box); the teacher sees that
            part of the first picture as well.
        sleep: A loaded teacher leaves the policy's device between uses.
        concurrency, max_calls, token_budget, prices: Of a served teacher, as of a judge.
    """

    model: str = ""
    policy: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str = ""
    hint: str = ""
    crop: str = ""
    sleep: bool = True
    concurrency: int = 16
    max_calls: int = 0
    token_budget: int = 0
    prices: tuple[float, float] = (0.0, 0.0)

    @property
    def is_policy(self) -> bool:
        """Whether it is the policy, now or as it began."""
        return self.model in (START, SELF) and not self.policy and not self.engine

    def shown(self, prompt: Prompt) -> Prompt:
        """The prompt as the teacher sees it. Raises NoHintError for a row without what is to be shown."""
        prompt = prompt.for_training
        if prompt.continues is not None:
            first, ids, text = prompt.continues
            return replace(prompt, continues=(self.shown(first), ids, text), train=None)
        if self.crop:
            prompt = with_crop(prompt, self.crop)
        if self.hint:
            prompt = with_text(prompt, _FIELD.sub(lambda found: _value(prompt, found[1]), self.hint))
        return prompt


def check_teacher(spec: Mapping[str, Any], where: str) -> TeacherConfig:
    """The config of a teacher. Raises ConfigError for one that names no model, and for a wrong field."""
    config = make(TeacherConfig, spec, where)
    if not (config.model or config.policy or config.engine):
        raise ConfigError(
            f"{where}: no model is named; set model: FOLDER (of the policy's family), `start` or `self`, "
            "policy: {name: FAMILY, model: FOLDER}, or model: name@revision with "
            "engine: {name: openai, url: http://host:8000/v1, model: name}"
        )
    if config.model == SELF and not (config.hint or config.crop or config.policy or config.engine):
        raise ConfigError(
            f"{where}: model `self` without hint and crop is the policy itself, which teaches nothing; add "
            'hint: "\\n\\nThe answer is {answer}.", or crop: KEY'
        )
    if config.engine:
        engine = build(Engine, config.engine, f"{where}.engine")
        if not isinstance(engine, ScoresPrompts):
            raise ConfigError(
                f"{where}.engine: {engine.name!r} gives no prompt_logprobs; use {{name: openai, url: ..., "
                "model: ...}} of a vLLM server, or a teacher in the process (model: FOLDER)"
            )
    return config


@dataclass(frozen=True)
class Cropped(Edited):
    """A part of a picture: `box` in its pixels."""

    box: tuple[float, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.base.key}/part {self.box}"

    def load(self) -> Any:
        picture: Any = self.base.load()
        x0, y0, x1, y1 = self.box
        edges = (math.floor(x0), math.floor(y0), math.ceil(x1), math.ceil(y1))
        return picture.crop((max(0, edges[0]), max(0, edges[1]), *map(min, edges[2:], picture.size)))


def with_crop(prompt: Prompt, key: str) -> Prompt:
    """The prompt with a part of its first picture after its last user turn. Raises NoHintError for a row
    without picture or box."""
    row = prompt.row
    box: Any = row.answer if key == "answer" else row.meta.get(key)
    if isinstance(box, (list, tuple)) and box and isinstance(box[0], (list, tuple)):
        box = box[0]
    is_box = isinstance(box, (list, tuple)) and len(box) == 4
    if not is_box or not prompt.images or box[2] <= box[0] or box[3] <= box[1]:
        raise NoHintError(f"row {row.id!r} has no picture with a box {key!r} = [x0, y0, x1, y1]")
    last = max((i for i, message in enumerate(prompt.messages) if message["role"] == "user"), default=0)
    content = [*content_items(prompt.messages[last]["content"]), {"type": "image"}]
    message: Any = {**prompt.messages[last], "content": content}
    messages = (*prompt.messages[:last], message, *prompt.messages[last + 1 :])
    return replace(prompt, messages=messages, images=(*prompt.images, Cropped(prompt.images[0], tuple(box))))


def _value(prompt: Prompt, name: str) -> str:
    row = prompt.row
    named = {"answer": row.answer, "target": row.target, "question": row.question}
    value = named[name] if name in named else row.meta.get(name)
    if value is None or value == "":
        raise NoHintError(f"row {row.id!r} has no {name!r} to show to the teacher")
    return str(value)


@dataclass(frozen=True)
class TeacherScore:
    """What a teacher says of a completion, per token of the student's.

    Attributes:
        logp: Log-prob of the token's span (nats); None for a token of no span.
        span: The number of its span; spans of one token each without another tokenizer.
        top: (likely tokens' ids, their log-probs and that of all others) at the first token of each span.
        failure: Why the teacher says nothing.
    """

    logp: Sequence[float | None] = ()
    span: Sequence[int] = ()
    top: Sequence[tuple[Sequence[int], Sequence[float]] | None] = ()
    failure: str = ""


def by_prompt(rollouts: Sequence[Rollout]) -> list[Group]:
    """Rollouts in groups of one prompt."""
    groups: dict[str, Group] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.prompt.key, Group(rollout.prompt, [])).rollouts.append(rollout)
    return list(groups.values())


def aligned_completion(aligner: Aligner, rollout: Rollout) -> Aligned:
    """A rollout for another tokenizer. Raises UnalignedError where others wrote a part of it."""
    if rollout.prompt.continues is not None or not all(rollout.sampled):
        raise UnalignedError("a teacher with another tokenizer reads rollouts of one turn alone")
    return aligner(rollout.ids)


def over_spans(
    length: int,
    aligned: Aligned,
    logp: Sequence[float],
    tops: Sequence[tuple[Sequence[int], Sequence[float]]],
    aligner: Aligner,
) -> TeacherScore:
    """Scores of another tokenizer's tokens as those of the student's: the log-prob of a span is the sum of
    its tokens'; of likely tokens, those that the student has too, and the rest with all others."""
    found: list[float | None] = [None] * length
    span = [-1] * length
    top: list[tuple[Sequence[int], Sequence[float]] | None] = [None] * length
    for number, (own, other) in enumerate(aligned.spans):
        total = math.fsum(logp[place] for place in other)
        for place in own:
            found[place], span[place] = total, number
        if tops:
            top[own[0]] = as_student(*tops[other[0]], aligner.student_ids)
    return TeacherScore(found, span, top)


def as_student(
    ids: Sequence[int], logp: Sequence[float], known: Mapping[int, int]
) -> tuple[list[int], list[float]]:
    """Likely tokens by the student's ids; -1, with the probability in the rest, where it has none.

    >>> ids, logp = as_student([5, 6], [math.log(0.5), math.log(0.3), math.log(0.2)], {5: 1})
    >>> ids, [round(math.exp(value), 3) for value in logp]
    ([1, -1], [0.5, 0.0, 0.5])
    """
    own = [known.get(token, -1) for token in ids]
    own = [token if token not in own[:place] else -1 for place, token in enumerate(own)]
    lost = math.fsum(math.exp(value) for token, value in zip(own, logp) if token < 0)
    rest = math.exp(logp[-1]) + lost
    values = [value if token >= 0 else -math.inf for token, value in zip(own, logp)]
    return own, [*values, math.log(rest) if rest else -math.inf]

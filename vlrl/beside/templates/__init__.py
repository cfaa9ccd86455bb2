"""Prompts of judges as versioned files, filled in one pass, and what counts as a verdict in a reply.

    NAME.yaml    form, version, system, user; `choices` from worst to best, or `low` and `high` of a score

A placeholder {answer} is replaced once: what stands in a field is never a placeholder. Fields named in
`fence` stand between marks with a digest of all fields, which a text that it covers cannot contain.

Of a reply only a line "Verdict: CHOICE" counts, or the choice alone, behind its thoughts (`</think>`).
Without one, with two different ones, or with one that is no choice, the reply is unread: it is no verdict.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from vlrl.plugins.registry import ConfigError, make, suggest

FOLDER = Path(__file__).parent
_PLACE = re.compile(r"\{(\w+)\}")
_DECORATION = " \t*_`#>\"'“”[](){}."


@dataclass(frozen=True)
class JudgeReading:
    """What a reply says. `value` in [0, 1]; for a ranking the order, best first. None: unread, and `reason`
    says why. `span`: where the verdict stands in the reply."""

    value: float | None = None
    order: tuple[int, ...] = ()
    reason: str = ""
    span: tuple[int, int] | None = None

    @property
    def unread(self) -> bool:
        """Whether there is no verdict."""
        return self.value is None and not self.order


@dataclass(frozen=True, kw_only=True)
class JudgeTemplate:
    """A judge's prompt, and how its verdict is read.

    Attributes:
        form: "choice" (one of `choices`, worth 0 to 1 from worst to best), "score" (a number from `low` to
            `high`), "pair" (`choices` are the names of the two answers, and perhaps of a tie between them),
            "ranking" (names of all answers, best first, with > between them).
        version: Another number for another text: verdicts are cached by text.
        label: The word before the verdict.
        fence: Fields that are data: what they say is no instruction.
    """

    name: str = ""
    form: Literal["choice", "score", "pair", "ranking"]
    version: int
    user: str
    system: str = ""
    choices: tuple[str, ...] = ("no", "yes")
    low: float = 0.0
    high: float = 1.0
    label: str = "Verdict"
    fence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.form == "score" and not self.low < self.high:
            raise ConfigError(f"template {self.name!r}: low {self.low} must be below high {self.high}")
        if len({choice.casefold() for choice in self.choices}) < 2:
            raise ConfigError(f"template {self.name!r}: choices {self.choices} must be at least two")
        if self.form == "pair" and len(self.choices) > 3:
            raise ConfigError(f"template {self.name!r}: a pair has two choices, or three with a tie")

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the placeholders."""
        return tuple(dict.fromkeys(_PLACE.findall(self.user)))

    def fill(self, values: Mapping[str, str]) -> str:
        """The prompt. Raises ConfigError for a field that is missing or unknown."""
        if set(values) != set(self.fields):
            raise ConfigError(
                f"template {self.name!r}: its fields are {', '.join(self.fields)}, got {', '.join(values)}"
            )
        return fenced(self.user, values, self.fence)

    @property
    def schema(self) -> str:
        """The JSON schema of a reply: a reason, then the verdict."""
        verdict: dict[str, Any] = {"enum": list(self.choices)}
        if self.form == "score":
            verdict = {"type": "number", "minimum": self.low, "maximum": self.high}
        if self.form == "ranking":
            verdict = {"type": "string"}
        keys = {"reason": {"type": "string"}, self.label.lower(): verdict}
        described = {"type": "object", "properties": keys, "required": list(keys)}
        return json.dumps(described | {"additionalProperties": False})

    def read(self, reply: str, names: Sequence[str] = ()) -> JudgeReading:
        """The verdict of a reply. `names`: of a ranking's answers."""
        if "<think>" in reply and "</think>" not in reply:
            return JudgeReading(reason="the thoughts do not end")
        start = reply.rfind("</think>") + len("</think>") if "</think>" in reply else 0
        said = reply[start:]
        found = self._labelled(said) or self._object(said) or self._alone(said)
        if not found:
            return JudgeReading(reason=f"no line {self.label}: ...")
        readings = [(self._value(text, names), place) for text, place in found]
        values = {value for value, _ in readings}
        if len(values) > 1:
            return JudgeReading(reason="several verdicts")
        value, place = readings[-1]
        if value is None:
            return JudgeReading(reason=f"{found[-1][0][:40]!r} is no verdict")
        text = found[-1][0]
        span = (start + place, start + place + len(text))
        if isinstance(value, tuple):
            return JudgeReading(order=value, reason=text, span=span)
        return JudgeReading(value, reason=text, span=span)

    def _labelled(self, said: str) -> list[tuple[str, int]]:
        pattern = rf"^[\s*_#>\-`]*{re.escape(self.label)}[\s*_`]*[:=][ \t]*(\S.*?)[ \t]*$"
        return [_bare(match[1], match.start(1)) for match in re.finditer(pattern, said, re.I | re.M)]

    def _object(self, said: str) -> list[tuple[str, int]]:
        begin, end = said.find("{"), said.rfind("}")
        if begin < 0 or end < begin:
            return []
        try:
            value = json.loads(said[begin : end + 1])
        except (ValueError, RecursionError):
            return []
        key = self.label.lower()
        if not isinstance(value, dict) or not isinstance(value.get(key), (str, int, float)):
            return []
        place = said.find(str(value[key]), said.rfind(f'"{key}"'))
        return [(str(value[key]), max(place, 0))]

    def _alone(self, said: str) -> list[tuple[str, int]]:
        """The reply, if it is a verdict alone; or its first word before punctuation, if no other choice
        stands in it ("No, since ...", and not "No doubt: yes")."""
        text, place = _bare(said, 0)
        if self.form in ("score", "ranking") or text.casefold() in self._names:
            return [(text, place)] if text else []
        first = re.match(r"(\w+)\s*(?:[,.;:!\n—–-]|$)", text)
        if not first or first[1].casefold() not in self._names:
            return []
        words = {word.casefold() for word in re.findall(r"\w+", text)}
        return [(first[1], place)] if len(words & self._names) == 1 else []

    @property
    def _names(self) -> set[str]:
        return {choice.casefold() for choice in self.choices}

    def _value(self, text: str, names: Sequence[str]) -> float | tuple[int, ...] | None:
        if self.form == "ranking":
            parts = [part.strip(_DECORATION).casefold() for part in re.split(r"[>,]", text)]
            known = [name.casefold() for name in names]
            return tuple(known.index(part) for part in parts) if sorted(parts) == sorted(known) else None
        if self.form == "score":
            match = re.fullmatch(r"(-?\d+(?:\.\d+)?)(?:\s*/\s*(\d+(?:\.\d+)?))?", text)
            if not match or (match[2] and float(match[2]) != self.high):
                return None
            number = float(match[1])
            inside = math.isfinite(number) and self.low <= number <= self.high
            return (number - self.low) / (self.high - self.low) if inside else None
        choices = [choice.casefold() for choice in self.choices]
        if text.casefold() not in choices:
            return None
        place = choices.index(text.casefold())
        if self.form == "pair":  # how much better the first answer is
            return (1.0, 0.0, 0.5)[place]
        return place / (len(choices) - 1)


def fenced(text: str, values: Mapping[str, str], fence: Sequence[str]) -> str:
    """A text with its placeholders replaced, once. Those in `fence` stand between marks with a digest of all
    values, which none of them can contain."""
    mark = hashlib.sha256(json.dumps([text, *map(str, values.values())]).encode()).hexdigest()[:8]

    def put(match: re.Match[str]) -> str:
        name = match[1]
        if name not in fence:
            return values[name]
        title = f"{name.upper().replace('_', ' ')} {mark}"
        return f"<<< BEGIN {title}\n{values[name]}\nEND {title} >>>"

    return _PLACE.sub(put, text)


def _bare(text: str, place: int) -> tuple[str, int]:
    """A text without marks around it, and where it begins."""
    cut = text.lstrip(_DECORATION + "\r\n")
    return cut.rstrip(_DECORATION + "\r\n!"), place + len(text) - len(cut)


def template_names() -> list[str]:
    """The packaged templates."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def load_template(name: str) -> JudgeTemplate:
    """A packaged template, or the one in a YAML file. Raises ConfigError."""
    path = FOLDER / f"{name}.yaml" if re.fullmatch(r"\w+", name) else Path(name)
    if not path.is_file():
        raise ConfigError(
            f"template: {name!r} is no packaged template and no file.{suggest(name, template_names())}"
        )
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ConfigError(f"template: {name!r} holds no mapping; it needs form, version and user")
    missing = sorted({"form", "version", "user"} - set(values))
    if missing:
        raise ConfigError(f"template: {name!r} has no {', '.join(missing)}")
    return make(JudgeTemplate, {"name": path.stem, **values}, f"template {name!r}")

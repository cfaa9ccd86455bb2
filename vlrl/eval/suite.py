"""A suite: one benchmark as a small YAML in `configs/eval` (data, prompt, answer, token limits) with a scorer
and an aggregate per profile.

Expressions (`answer`, `choices`, `cluster`, ...) and the prompt are Jinja over `row`, the raw row of the
hub's data set, with `letters` = "ABC...".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml

from vlrl.config import folders
from vlrl.eval.expressions import evaluate, render
from vlrl.eval.scorer import Aggregate, Record, Scorer
from vlrl.plugins.registry import ConfigError, build, make, suggest
from vlrl.plugins.scoring import Response, Verdict

DEFAULT_PROFILES = ("official", "lmms_eval", "vlmevalkit", "vlrl")


@dataclass(frozen=True)
class SuiteSource:
    """Where the records are: a hub id with its config and split. `id` is an expression for a record's
    identity ("": its number in the split).

    `explode` names a field that holds a list: each entry becomes a record of its own (several expressions for
    one picture).
    """

    hub: str
    split: str
    config: str = ""
    id: str = ""
    size: int = 0
    explode: str = ""
    gated: bool = False


@dataclass(frozen=True)
class MediaSpec:
    """Expressions that give pictures or videos (or lists of them), in the order of the prompt. A string is a
    path under the data folder."""

    images: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()
    frames: int = 0  # of each video, uniformly over its length; 0: all


@dataclass(frozen=True)
class Profile:
    """One way to score the same responses. `snapshot` names the version of the code from which its rules were
    taken."""

    name: str
    scorer: Scorer
    aggregate: Aggregate
    snapshot: str = ""
    notes: str = ""


@dataclass(frozen=True)
class Suite:
    """A benchmark. `max_tokens` limits a response in the official protocol, `thinking_max_tokens` in the
    thinking protocol.

    `file` is the YAML that the suite was loaded from; `load_suite` sets it.
    """

    name: str
    data: SuiteSource
    prompt: str
    profiles: Mapping[str, Any]
    answer: str = "row.answer"
    choices: str = ""
    media: MediaSpec = field(default_factory=MediaSpec)
    system: str = ""
    max_tokens: int = 1024
    thinking_max_tokens: int = 8192
    stop: tuple[str, ...] = ()
    cluster: str = ""
    subset: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    extra_fields: tuple[str, ...] = ()  # fields that scorers read and the prompt does not
    file: Path | None = None

    @cached_property
    def built(self) -> dict[str, Profile]:
        """The profiles of this suite, by name."""
        default = self.profiles.get("official") or next(iter(self.profiles.values()))
        return {
            name: _build_profile(f"{self.name}.profiles.{name}", name, spec, default)
            for name, spec in self.profiles.items()
        }

    @property
    def default_profiles(self) -> list[str]:
        """The profiles that a run is scored by when none is named."""
        return [name for name in DEFAULT_PROFILES if name in self.built] or list(self.built)

    def profile(self, name: str) -> Profile:
        """A profile by name: "official", "lmms_eval@75571cfe" (checks the snapshot), "official:extraction"
        (sets the scorer's stage; "/" works too).

        Raises ConfigError.
        """
        plain, _, stage = name.replace("/", ":").partition(":")
        plain, _, snapshot = plain.partition("@")
        if plain not in self.built:
            raise ConfigError(f"suite {self.name!r} has no profile {plain!r}.{suggest(plain, self.built)}")
        profile = self.built[plain]
        if snapshot and not profile.snapshot.split(" ")[-1].startswith(snapshot):
            raise ConfigError(
                f"profile {plain!r} of {self.name!r} follows {profile.snapshot or 'no snapshot'}, not "
                f"{snapshot!r}; leave the @ away"
            )
        if not stage:
            return profile
        scorer: Any = profile.scorer
        if not any(f.name == "stage" for f in dataclasses.fields(scorer)):
            raise ConfigError(
                f"profile {plain!r} of {self.name!r} has no stages, so {name!r} has no meaning; use {plain!r}"
            )
        return dataclasses.replace(profile, name=name, scorer=dataclasses.replace(scorer, stage=stage))

    def text(self, record: Record) -> str:
        """The prompt text of a record."""
        return render(self.prompt, record)

    def gold(self, record: Record) -> Any:
        """The gold answer of a record."""
        return evaluate(self.answer, record)

    def options(self, record: Record) -> tuple[str, ...]:
        """The choices of a record; empty for an open question."""
        return tuple(str(choice) for choice in (evaluate(self.choices, record) or ())) if self.choices else ()

    def identity(self, record: Record, number: int) -> str:
        """The id that responses and journal entries carry."""
        return str(evaluate(self.data.id, record)) if self.data.id else str(record.get("id", number))

    def cluster_of(self, record: Record, number: int) -> str:
        """The cluster of a record. Records of one cluster share a picture, a video or a question; intervals
        treat them as one draw."""
        return str(evaluate(self.cluster, record)) if self.cluster else self.identity(record, number)


def _build_profile(where: str, name: str, spec: Mapping[str, Any], default: Mapping[str, Any]) -> Profile:
    known = {"scorer", "aggregate", "snapshot", "notes"}
    for key in spec:
        if key not in known:
            raise ConfigError(f"{where}.{key}: unknown field.{suggest(key, known)}")
    if "scorer" not in spec:
        raise ConfigError(f"{where}: needs a `scorer`. See `vlrl list scorer`.")
    scorer = build(Scorer, spec["scorer"], f"{where}.scorer")
    aggregate = build(
        Aggregate, spec.get("aggregate") or default.get("aggregate") or "mean", f"{where}.aggregate"
    )
    return Profile(name, scorer, aggregate, str(spec.get("snapshot", "")), str(spec.get("notes", "")))


def suite_names() -> list[str]:
    """The names of all suites in the config folders, sorted."""
    return sorted(
        {
            path.stem
            for folder in folders()
            for path in (folder / "eval").glob("*.yaml")
            if not path.stem.startswith("_")
        }
    )


def suite_file(name: str) -> Path:
    """The YAML of a suite, by name or path. Raises ConfigError with the nearest name."""
    for path in (*(folder / "eval" / f"{name}.yaml" for folder in folders()), Path(name)):
        if path.is_file():
            return path
    raise ConfigError(f"suite: no suite named {name!r}.{suggest(name, suite_names())}")


def load_suite(name: str | Path) -> Suite:
    """A suite by name or YAML path. A suite given by path has the file's stem as its name. Raises
    ConfigError."""
    path = suite_file(str(name))
    return _load(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _load(path: Path, stamp: int) -> Suite:
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a suite is a mapping, got {type(tree).__name__}")
    if "file" in tree:
        raise ConfigError(f"suite {path.stem}.file: not a field of a suite's YAML; remove it")
    suite = dataclasses.replace(make(Suite, {"name": path.stem, **tree}, f"suite {path.stem}"), file=path)
    suite.built  # noqa: B018  (every profile is checked when the suite is loaded)
    return suite


def as_suite(suite: str | Path | Suite) -> Suite:
    """A suite, loaded if it is given by name or path."""
    return suite if isinstance(suite, Suite) else load_suite(suite)


def score_response(
    suite: str | Path | Suite, record: Record, response: str | Response, profile: str = "official"
) -> Verdict:
    """The verdict on one response: its text, or also the coordinate spaces of the model's pictures."""
    if not isinstance(response, (str, Response)):
        raise ValueError(f"response must be text, got {type(response).__name__}: {response!r:.80}")
    return as_suite(suite).profile(profile).scorer(record, response)


def score_item(
    suite: str | Path | Suite, record: Record, response: str | Response, profile: str = "official"
) -> float:
    """The score in [0, 1] of one response to one record (a mapping with the hub's field names; media may be
    missing), by one profile's rules."""
    return score_response(suite, record, response, profile).score


def aggregate_scores(
    suite: Suite, records: Sequence[Record], scored: Sequence[Verdict], profile: str = "official"
) -> dict[str, float]:
    """The figures of a suite, {"overall": ..., group: ...}."""
    return suite.profile(profile).aggregate(records, scored)

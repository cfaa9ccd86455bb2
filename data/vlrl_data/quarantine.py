"""Rows that cannot be used, and why: one line per row in `quarantine.jsonl`."""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from vlrl.plugins.registry import ConfigError

LOG = logging.getLogger("vlrl.data")
MAX_SHOWN = 1000  # characters of a reason
ADVICE = {  # part of a reason -> the setting that mends it
    "No such file": "set media_root to the folder that the paths start from (media_root=..., --media-root)",
    "path leaves media_root": "set media_root to a folder above all media, or outside_media: allow",
}


@dataclass(frozen=True)
class QuarantinedRow:
    """A row that is not used. `location` is file:line or file[index]."""

    source: str
    index: int
    location: str
    reason: str
    id: str = ""


def reason_kind(reason: str) -> str:
    """A reason without the paths, texts and numbers that are particular to one row, for counting."""
    text = re.sub(r"\S*[/\\]\S+", "<file>", reason)
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'..'", text)
    return re.sub(r"\d+(\.\d+)?", "N", text)[:160]


@dataclass
class Quarantine:
    """The unusable rows of one source. Saved to `path` beside those of other sources; what this source had
    there is replaced."""

    source: str
    path: Path | None = None
    rows: list[QuarantinedRow] = field(default_factory=list)

    def add(self, index: int, location: str, reason: str, id: str = "") -> None:
        """Add a row."""
        self.rows.append(QuarantinedRow(self.source, index, *map(_printable, (location, reason, id))))

    def append(self, index: int, location: str, reason: str) -> None:
        """Add a row, and write its line behind those in the file. All ranks draw the same rows, so only the
        first one (`$RANK`) writes."""
        self.add(index, location, reason)
        if self.path is not None and not int(os.environ.get("RANK") or 0):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(self.rows[-1]), ensure_ascii=False) + "\n")

    def counts(self) -> dict[str, int]:
        """Number of rows per kind of reason, most frequent first."""
        return dict(Counter(reason_kind(row.reason) for row in self.rows).most_common())

    def save(self) -> None:
        """Write the file (whole or not at all)."""
        if self.path is None:
            return
        others = [line for line in read_lines(self.path) if _source_of(line) not in ("", self.source)]
        lines = others + [json.dumps(asdict(row), ensure_ascii=False) for row in self.rows]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".quarantine-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in lines)
            os.replace(name, self.path)
        finally:
            Path(name).unlink(missing_ok=True)

    def examples(self, whole: int = 3, most: int = 20) -> dict[str, str]:
        """Location -> reason of up to `most` rows. A kind of reason with more than `whole` rows has one
        entry, with their number and the fix."""
        counts = self.counts()
        shown: dict[str, str] = {}
        for row in self.rows:
            kind = reason_kind(row.reason)
            count = counts.get(kind, 0)
            if len(shown) < most and 0 < count <= whole:
                shown[row.location] = row.reason
            elif len(shown) < most and count:
                fix = next((f"; {fix}" for fault, fix in ADVICE.items() if fault in row.reason), "")
                shown[row.location] = f"{row.reason} (and {count - 1} more like it){fix}"
                del counts[kind]
        return shown

    def _advice(self) -> str:
        """The setting that mends the fault of most rows, if there is one."""
        return next(
            (
                f"; {fix}"
                for fault, fix in ADVICE.items()
                if 2 * sum(fault in row.reason for row in self.rows) > len(self.rows)
            ),
            "",
        )

    def raise_if_above(self, max_bad: float, total: int) -> None:
        """Log how many rows are unusable and why. Raises ConfigError if their share of `total` is above
        `max_bad`."""
        if not self.rows:
            return
        share = len(self.rows) / max(1, total)
        reasons = "; ".join(f"{count} x {kind}" for kind, count in list(self.counts().items())[:5])
        where = f" (all of them in {self.path})" if self.path else ""
        if share > max_bad:
            limit = f", a share of {share:.3f} over max_bad={max_bad}" if share < 1 else ""
            raise ConfigError(
                f"{self.source}: {len(self.rows)} of {total} rows cannot be used{limit}: {reasons}{where}. "
                f"First: {self.rows[0].location}: {self.rows[0].reason}{self._advice()}"
            )
        LOG.warning(
            "%s: %d of %d rows are quarantined: %s%s%s",
            self.source,
            len(self.rows),
            total,
            reasons,
            where,
            self._advice(),
        )


def read_lines(path: Path) -> Iterable[str]:
    """The lines of a quarantine file; none if there is no file."""
    return path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else []


def _source_of(line: str) -> str:
    """The source that a line is of; "" for a blank or torn line."""
    try:
        return str(json.loads(line)["source"])
    except (ValueError, KeyError, TypeError):
        return ""


def _printable(text: str) -> str:
    """The text with lone surrogates written as \\udXXX, so that any file can hold it, and cut after
    `MAX_SHOWN` characters."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text)} characters)"

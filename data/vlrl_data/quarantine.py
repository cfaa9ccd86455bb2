"""What could not be used, and why: one line per row in `quarantine.jsonl`."""

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

from vlrl.registry import ConfigError

LOG = logging.getLogger("vlrl.data")


@dataclass(frozen=True)
class Bad:
    """A row that is not used. `place` is file:line or file[index]."""

    source: str
    index: int
    place: str
    reason: str
    id: str = ""


def kind_of(reason: str) -> str:
    """A reason without what is particular to the row, for counting."""
    text = re.sub(r"\S*[/\\]\S+", "<file>", reason)
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'..'", text)
    return re.sub(r"\d+(\.\d+)?", "N", text)[:100]


@dataclass
class Quarantine:
    """The bad rows of one source. Written to `path` beside those of other sources, replacing what this source had there."""

    source: str
    path: Path | None = None
    rows: list[Bad] = field(default_factory=list)

    def add(self, index: int, place: str, reason: str, id: str = "") -> None:
        """Remember a row."""
        self.rows.append(Bad(self.source, index, place, reason, id))

    def counts(self) -> dict[str, int]:
        """How many rows for each kind of reason, most frequent first."""
        return dict(Counter(kind_of(bad.reason) for bad in self.rows).most_common())

    def save(self) -> None:
        """Write the file (whole or not at all)."""
        if self.path is None:
            return
        others = [line for line in read_lines(self.path) if json.loads(line)["source"] != self.source]
        lines = others + [json.dumps(asdict(bad), ensure_ascii=False) for bad in self.rows]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".quarantine-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
        os.replace(name, self.path)

    def judge(self, total: int, max_bad: float) -> None:
        """Log what was found. Raises ConfigError if the share of bad rows is above `max_bad`."""
        if not self.rows:
            return
        share = len(self.rows) / max(1, total)
        told = "; ".join(f"{count} x {kind}" for kind, count in list(self.counts().items())[:5])
        where = f" (all of them in {self.path})" if self.path else ""
        if share > max_bad:
            raise ConfigError(
                f"{self.source}: {len(self.rows)} of {total} rows cannot be used, a share of {share:.3f} over max_bad={max_bad}: {told}{where}. "
                f"First: {self.rows[0].place}: {self.rows[0].reason}"
            )
        LOG.warning("%s: %d of %d rows are quarantined: %s%s", self.source, len(self.rows), total, told, where)


def read_lines(path: Path) -> Iterable[str]:
    """The lines of a quarantine file; none if it is not there."""
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []

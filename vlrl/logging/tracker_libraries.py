"""The libraries behind `watch.trackers`. Each writes into the run's folder and reaches no network, unless its
own variable says where to (`WANDB_MODE`, `MLFLOW_TRACKING_URI`, `TRACKIO_SPACE_ID`, `SWANLAB_MODE`).

None is told the command line, the git remote or what the terminal shows: the run's `sessions.jsonl` has what
is needed of these, with secrets blanked.
"""

from __future__ import annotations

import html
import io
import json
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from PIL import Image

from vlrl.config import MAP_SLOTS
from vlrl.config.trackers import check_trackers
from vlrl.logging.trackers import RolloutTable, TrackedRun, Tracker, Trackers
from vlrl.services.redaction import without_secrets
from vlrl.services.third_party import wants_chatter

PROJECT = "vlrl"  # where the library's own variable names no other
_NOT_IN_NAMES = re.compile(r"[^\w\-. /]")  # of MLflow's metrics and parameters


def open_trackers(names: Sequence[str], folder: Path, run_config: Mapping[str, Any]) -> Trackers:
    """The trackers of a run; they start with its first step. Raises ConfigError as `check_trackers` does."""
    check_trackers(names)
    config = without_secrets(run_config, MAP_SLOTS)[0]
    return Trackers({name: LIBRARIES[name]() for name in names}, folder, config)


class TensorBoardTracker(Tracker):
    """Event files in `tensorboard/`: scalars, the config as text, rollouts as text and pictures."""

    def start(self, run: TrackedRun) -> None:
        """Open an event file; after a resume one more."""
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(run.folder / "tensorboard"))
        self.writer.add_text("config", f"```\n{json.dumps(run.config, indent=2, default=str)}\n```")

    def log(self, step: int, values: Mapping[str, float], table: RolloutTable | None) -> None:
        """Scalars, and the table in Markdown with its distinct pictures."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        if table:
            self.writer.add_text("rollouts", markdown(table), step)
            for place, data in enumerate(dict.fromkeys(filter(None, table.pictures))):
                self.writer.add_image(f"rollouts/{place}", _pixels(data), step, dataformats="HWC")
        self.writer.flush()

    def finish(self) -> None:
        """Close the file."""
        self.writer.close()


class WandbTracker(Tracker):
    """W&B: an offline run in `wandb/`, for `wandb sync`; with WANDB_MODE=online sent at once."""

    def start(self, run: TrackedRun) -> None:
        """Open the run, or go on with it."""
        os.environ.setdefault("WANDB_DATA_DIR", str(run.folder / "wandb"))  # files that wait for the sync
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self.library: Any = wandb
        (run.folder / "wandb").mkdir(exist_ok=True)
        settings = wandb.Settings(
            console="off",
            silent=not wants_chatter(),
            disable_code=True,
            disable_git=True,
            x_disable_meta=True,
        )
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=dict(run.config),
            settings=settings,
        )

    def log(self, step: int, values: Mapping[str, float], table: RolloutTable | None) -> None:
        """Scalars, and a table with pictures."""
        said: dict[str, Any] = dict(values)
        if table:
            pictures = [self.library.Image(_opened(data)) if data else None for data in table.pictures]
            rows = [[*row, picture] for row, picture in zip(table.rows, pictures)]
            said["rollouts"] = self.library.Table(
                columns=[*table.columns, "picture"], data=rows, allow_mixed_types=True
            )
        self.run.log(said, step=step)

    def scores(self, step: int, scores: Mapping[str, float]) -> None:
        """The run's summary."""
        self.run.summary.update(dict(scores))

    def finish(self) -> None:
        """End the run."""
        self.run.finish()


class MlflowTracker(Tracker):
    """MLflow: a database and files in `mlflow/`, or the server of MLFLOW_TRACKING_URI."""

    def start(self, run: TrackedRun) -> None:
        """Open the run, or find the one of this id."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        for noisy in ("mlflow", "alembic") if not wants_chatter() else ():  # their import sets these levels
            logging.getLogger(noisy).setLevel(logging.WARNING)
        folder = (run.folder / "mlflow").resolve()
        place, files = os.environ.get("MLFLOW_TRACKING_URI", ""), None
        if not place:
            folder.mkdir(exist_ok=True)
            place, files = f"sqlite:///{folder / 'mlflow.db'}", (folder / "files").as_uri()
        self.client = MlflowClient(tracking_uri=place)
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self.client.get_experiment_by_name(project)
        experiment = known.experiment_id if known else self.client.create_experiment(project, files)
        found = self.client.search_runs([experiment], f"tags.vlrl_run = '{run.id}'", max_results=1)
        if found:
            self.id = found[0].info.run_id
            self.client.set_terminated(self.id, "RUNNING")
        else:
            made = self.client.create_run(experiment, run_name=run.name, tags={"vlrl_run": run.id})
            self.id = made.info.run_id
            self._store_parameters(run.config)
        self.client.log_dict(self.id, dict(run.config), "config.json")

    def _store_parameters(self, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        values = [Param(_NOT_IN_NAMES.sub("_", key), str(value)[:500]) for key, value in flat(config).items()]
        for first in range(0, len(values), 100):  # the most that a call takes
            self.client.log_batch(self.id, params=values[first : first + 100])

    def log(self, step: int, values: Mapping[str, float], table: RolloutTable | None) -> None:
        """Metrics, and a table with pictures among the run's files."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        found = [Metric(_NOT_IN_NAMES.sub("_", name), value, now, step) for name, value in values.items()]
        for first in range(0, len(found), 1000):
            self.client.log_batch(self.id, metrics=found[first : first + 1000])
        if table:
            import mlflow

            columns = {name: [row[i] for row in table.rows] for i, name in enumerate(table.columns)}
            if any(table.pictures):
                blank = Image.new("RGB", (1, 1))
                columns["picture"] = [
                    mlflow.Image(_opened(data) if data else blank) for data in table.pictures
                ]
            self.client.log_table(self.id, columns, f"rollouts/step-{step:06d}.json")

    def finish(self) -> None:
        """End the run."""
        self.client.set_terminated(self.id)


class TrackioTracker(Tracker):
    """trackio: a database in `trackio/`, or the Space of TRACKIO_SPACE_ID."""

    def start(self, run: TrackedRun) -> None:
        """Open the run, or go on with the one of this name."""
        os.environ.setdefault("TRACKIO_DIR", str((run.folder / "trackio").resolve()))
        import trackio

        for module in (trackio, trackio.run, trackio.utils) if not wants_chatter() else ():
            _hush(module)
        self.library: Any = trackio
        self.run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=f"{run.name}-{run.id[:6]}",
            space_id=os.environ.get("TRACKIO_SPACE_ID"),
            resume="allow",
            config=dict(run.config),
            embed=False,
        )

    def log(self, step: int, values: Mapping[str, float], table: RolloutTable | None) -> None:
        """Scalars, and a table with pictures."""
        said: dict[str, Any] = dict(values)
        if table:
            import pandas

            frame = pandas.DataFrame(list(table.rows), columns=list(table.columns))
            if any(table.pictures):
                frame["picture"] = [
                    self.library.Image(_opened(data)) if data else None for data in table.pictures
                ]
            said["rollouts"] = self.library.Table(dataframe=frame)
        self.run.log(said, step=step)

    def finish(self) -> None:
        """Send what is left."""
        self.run.finish()


class SwanlabTracker(Tracker):
    """SwanLab: an offline run in `swanlab/`, for `swanlab sync`; with SWANLAB_MODE=online sent at once."""

    def start(self, run: TrackedRun) -> None:
        """Open the run, or go on with it."""
        import swanlab
        from swanlab.sdk.internal.pkg import console

        console.c.quiet = not wants_chatter()
        self.library: Any = swanlab
        folder = run.folder / "swanlab"
        folder.mkdir(exist_ok=True)
        settings = swanlab.Settings(
            terminal=swanlab.Settings.Terminal(proxy_type="none"),
            probe=swanlab.Settings.Probe(runtime=False, git=False, requirements=False),
        )
        self.run = swanlab.init(
            project=os.environ.get("SWANLAB_PROJ_NAME", PROJECT),
            name=run.name,
            id=run.id,
            resume="allow",
            mode=os.environ.get("SWANLAB_MODE", "offline"),
            log_dir=str(folder),
            config=dict(run.config),
            settings=settings,
        )

    def log(self, step: int, values: Mapping[str, float], table: RolloutTable | None) -> None:
        """Scalars, the table as text, and its distinct pictures."""
        said: dict[str, Any] = dict(values)
        if table:
            said["rollouts"] = self.library.Text(markdown(table))
            pictures = dict.fromkeys(filter(None, table.pictures))
            if pictures:
                said["rollouts/pictures"] = [self.library.Image(_opened(data)) for data in pictures]
        self.run.log(said, step=step)

    def finish(self) -> None:
        """End the run."""
        self.run.finish()


LIBRARIES: dict[str, type[Tracker]] = {
    "mlflow": MlflowTracker,
    "swanlab": SwanlabTracker,
    "tensorboard": TensorBoardTracker,
    "trackio": TrackioTracker,
    "wandb": WandbTracker,
}


def markdown(table: RolloutTable) -> str:
    """The table in Markdown, with line breaks and bars that stay inside their cells."""
    lines = ["| " + " | ".join(table.columns) + " |", "|" + "---|" * len(table.columns)]
    return "\n".join([*lines, *("| " + " | ".join(map(_shown, row)) + " |" for row in table.rows)])


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return html.escape(str(value), quote=False).replace("|", "&#124;").replace("\n", "<br>")


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings to {"a.b": value}."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def _opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def _pixels(data: bytes) -> Any:
    import numpy

    return numpy.asarray(_opened(data))


def _hush(module: ModuleType) -> None:
    """Give a module a `print` that prints nothing: it has no other switch."""
    vars(module)["print"] = lambda *_, **__: None

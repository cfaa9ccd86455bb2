"""The start of a training run: everything that needs no torch is checked first, then torch is loaded."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from vlrl.config import Config
from vlrl.services.third_party import quiet
from vlrl.trainer.preflight import preflight

log = logging.getLogger("vlrl")


def train(
    config: Config, resume: bool = False, live: bool | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Train by `config`; returns the summary that is also written to `summary.json`. See
    `vlrl.trainer.train.train`.

    A mistake in the config, in the output folder, in the rows or in their gold answers is found before torch
    is imported. Raises ConfigError.
    """
    quiet()
    begun = time.monotonic()
    checked = preflight(config, resume, overwrite)
    if int(os.environ.get("RANK", "0")) == 0:
        log.info("checked the config and %d rows in %.1f s", checked.row_count, time.monotonic() - begun)
        log.info("loading torch and transformers")
    from vlrl.trainer.train import train as train_checked

    return train_checked(config, resume, live, overwrite, checked)

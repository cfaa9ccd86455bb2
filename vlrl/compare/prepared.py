"""What the process that runs are forked from has imported: torch, transformers' model code, the trainer.

Imported by the fork server of `vlrl compare` (`vlrl/compare/run.py`) alone. It starts no thread and touches
no GPU: both would be lost or broken in a forked process.
"""

from __future__ import annotations

from vlrl.services.third_party import quiet, skip_unused

quiet()
skip_unused()

import pydantic.main  # noqa: E402, F401
import scipy.special  # noqa: E402, F401
import transformers.models.auto.image_processing_auto  # noqa: E402, F401
import transformers.models.auto.modeling_auto  # noqa: E402, F401
import transformers.models.auto.processing_auto  # noqa: E402, F401
import transformers.models.auto.video_processing_auto  # noqa: E402, F401
import transformers.vision_utils  # noqa: E402, F401

import vlrl.compare.work  # noqa: E402, F401
import vlrl.config.checks  # noqa: E402, F401
import vlrl.engine.hf.engine  # noqa: E402, F401
import vlrl.eval.statistics  # noqa: E402, F401
import vlrl.logging.report  # noqa: E402, F401
import vlrl.training  # noqa: E402, F401

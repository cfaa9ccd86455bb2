"""What other libraries print and import: their chatter is silenced, and packages that a run does not use are
not imported.

Functions here import nothing heavy themselves.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

VERBOSE = "VLRL_VERBOSE"  # in the environment: libraries print what they like

# transformers imports these where they are installed, for assisted generation, audio and the losses of object
# detection; no policy here uses them
_UNUSED = (
    "is_sklearn_available",
    "is_librosa_available",
    "is_soundfile_available",
    "is_torchaudio_available",
    "is_scipy_available",
)
_CHECKOUT = Path(__file__).resolve().parents[2]
_MODEL_CODE = (
    "transformers.generation.utils",
    "transformers.modeling_utils",
    "transformers.audio_utils",
)  # what every model class imports
_QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "DATASETS_VERBOSITY": "error",
    "DEEPSPEED_LOG_LEVEL": "error",
    "DS_LOG_LEVEL": "error",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CONFIGURE_LOGGING": "1",
    "TQDM_DISABLE": "1",
    "GLOO_LOG_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
# oneDNN keeps code for the last 1,024 sizes of matrices, 0.4 MB each, in two caches; a run has new lengths of
# sequences in every step
_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
_NOISY = (
    "transformers",
    "accelerate",
    "deepspeed",
    "DeepSpeed",
    "vllm",
    "datasets",
    "huggingface_hub",
    "httpx",
    "torch.distributed",
    "peft",
    "mlflow",
    "alembic",
    "sqlalchemy",
    "tensorboard",
    "trackio",
    "wandb",
    "swanlab",
)


def quiet(verbose: bool = False) -> None:
    """Silence the warnings and progress bars of libraries, here and in child processes, unless `verbose` or
    VLRL_VERBOSE=1 asks for them.

    Bounds the memory of their caches, too.

    Variables that the environment sets already are left as they are. Call it before the libraries are
    imported.
    """
    for name, value in {"TOKENIZERS_PARALLELISM": "false", **_CACHES}.items():
        os.environ.setdefault(name, value)
    if verbose:
        os.environ[VERBOSE] = "1"
    if wants_chatter():
        return
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    # they read the variables when they are imported, which a user's script may have done before
    if (hub := sys.modules.get("huggingface_hub")) is not None:
        hub.utils.disable_progress_bars()
    if (models := sys.modules.get("transformers.utils.logging")) is not None:
        models.disable_progress_bar()
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    for category in (FutureWarning, DeprecationWarning, UserWarning):
        warnings.filterwarnings(
            "ignore",
            category=category,
            module=rf"({'|'.join(_NOISY)}|torch|torchvision|PIL|multiprocessing)(\.|$)",
        )
    warnings.filterwarnings("ignore", message=".*pin_memory.*")


def wants_chatter() -> bool:
    """Whether the environment asks for the output of libraries."""
    return os.environ.get(VERBOSE, "") not in ("", "0")


def skip_unused() -> None:
    """Import transformers' model code without packages that are installed but not used: sklearn, pandas,
    scipy, audio, deepspeed.

    transformers asks `is_NAME_available()` when a module is imported. These say no while the code that all
    models share is imported, and the truth again afterwards: what a plug-in imports of transformers later is
    not changed. The losses of object detection, which that code imports, load scipy when they first need it.

    Call it before the first model class is imported; what is imported already stays. DeepSpeed is left alone
    where the run was launched with it.
    """
    import accelerate.utils.other as accelerate_other

    if not all(code in sys.modules for code in _MODEL_CODE):
        _import_model_code()
    if (
        os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() != "true"
        and "deepspeed" not in sys.modules
    ):
        setattr(accelerate_other, "is_deepspeed_available", _absent)  # noqa: B010


def _import_model_code() -> None:
    import transformers.utils as names
    from transformers.utils import import_utils

    probes = [
        (module, name, getattr(module, name))
        for module in (names, import_utils)
        for name in _UNUSED
        if hasattr(module, name)
    ]
    try:
        for module, name, _ in probes:
            setattr(module, name, _absent)
        for code in _MODEL_CODE:
            import_module(code)
    finally:
        for module, name, probe in probes:
            setattr(module, name, probe)
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.loss.") and vars(module).get("is_scipy_available") is _absent:
            vars(module)["linear_sum_assignment"] = _linear_sum_assignment


@contextmanager
def without_mistral() -> Iterator[None]:
    """Inside, processors are built without importing mistral_common, which takes half a second and which vLLM
    installs.

    A processor asks whether its tokenizer is a `transformers.MistralCommonBackend`. Here a stand-in answers:
    no tokenizer is one as long as the module of that class is not imported; then the class itself decides.
    Afterwards the name means the class again.
    """
    from transformers import processing_utils

    names = vars(processing_utils.transformers_module)
    names.setdefault("MistralCommonBackend", _MistralCommonBackend)
    try:
        yield
    finally:
        if names.get("MistralCommonBackend") is _MistralCommonBackend:
            del names["MistralCommonBackend"]


class _IsMistral(type):
    def __instancecheck__(cls, tokenizer: Any) -> bool:
        module = sys.modules.get("transformers.tokenization_mistral_common")
        return module is not None and isinstance(tokenizer, module.MistralCommonBackend)


class _MistralCommonBackend(metaclass=_IsMistral):
    pass


def _linear_sum_assignment(*args: Any, **options: Any) -> Any:
    from scipy.optimize import linear_sum_assignment

    return linear_sum_assignment(*args, **options)


def _absent(*_: Any, **__: Any) -> bool:
    return False


def log_to_stderr(level: int) -> None:
    """Print the project's messages from `level` on, and other libraries' from WARNING on, to standard error;
    INFO as the bare sentence."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Plain("%(levelname)s %(name)s: %(message)s"))
    logging.getLogger("vlrl").setLevel(level)


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage() if record.levelno == logging.INFO else super().format(record)


def pip_install(*extras: str) -> str:
    """The command that installs extras of this project, from any folder. It is on no package index: a
    checkout is named by its folder, an installed wheel by its name."""
    where = str(_CHECKOUT) if (_CHECKOUT / "pyproject.toml").is_file() else "vlrl"
    wanted = f"[{','.join(extras)}]" if extras else ""
    return f"pip install {'-e ' if where != 'vlrl' else ''}'{where}{wanted}'"

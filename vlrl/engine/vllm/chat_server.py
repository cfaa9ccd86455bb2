"""vLLM's own server with OpenAI's chat completions over a model folder: `vlrl serve`."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from vlrl.engine.vllm.common import SERVER_MODULE, as_flags, check_heads, check_installed, cpu_environment
from vlrl.plugins.registry import ConfigError
from vlrl.services.lazy import torch
from vlrl.services.process import Server
from vlrl.services.token_guard import GUARD

ERROR = re.compile(r"\b(\w+(?:Error|Exception): .+)")
# a name that no host has (RFC 2606): pictures come as data URIs, and no link of a request is opened
NO_DOMAIN = "none.invalid"


def problem_with(folder: Path) -> str | None:
    """Why vLLM cannot serve this model on this machine; None where it can."""
    described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text_config = SimpleNamespace(**(described | (described.get("text_config") or {})))
    try:
        check_installed()
        check_heads(text_config, torch.cuda.is_available())
    except ConfigError as error:
        return str(error)
    return None


def command(folder: Path, name: str, port: int, flags: Sequence[str] = ()) -> list[str]:
    """The command line of vLLM's server on the loopback interface. `flags` come last, so they win. The token
    is not in it."""
    own = {
        "model": folder,
        "served_model_name": name,
        "host": "127.0.0.1",
        "port": port,
        "middleware": GUARD,  # vLLM's own check leaves websockets and control paths open
        "allowed_media_domains": [NO_DOMAIN],
        "max_model_len": "auto",
        "disable_uvicorn_access_log": True,
        **(
            {} if torch.cuda.is_available() else {"enable_chunked_prefill": False}
        ),  # see VLLMEngine.common_arguments
    }
    return [sys.executable, "-m", SERVER_MODULE, *as_flags(own), *flags]


def fault(log: Path) -> str:
    """The first error that a server's log names (the later ones follow from it), else its last line."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() or ["(empty)"]
    return next((found[1] for line in lines if (found := ERROR.search(line))), lines[-1])


def start(folder: Path, name: str, port: int, token: str, flags: Sequence[str] = ()) -> Server:
    """Launch the server without waiting for it; its output goes to `server.log`. On a CPU, keys and values
    get VLLM_CPU_KVCACHE_SPACE GiB (1)."""
    log = Path(tempfile.mkdtemp(prefix="vlrl-serve-")) / "vllm.log"
    defaults = {"VLLM_DO_NOT_TRACK": "1", **cpu_environment()}
    env = {key: value for key, value in defaults.items() if key not in os.environ}
    return Server(
        lambda port: command(folder, name, port, flags),
        log,
        env=env,
        token=token,
        port=port,
        start_timeout=3600.0,
    )

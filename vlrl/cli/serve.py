"""`vlrl serve`: another library's server over a run's checkpoint, which is a folder that it loads."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shlex
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import typer

from vlrl.cli.transformers_server import MODULE as GUARDED
from vlrl.engine.vllm.common import SERVER_MODULE, as_flags, check_heads, check_installed, cpu_environment
from vlrl.interop.export import checkpoint_folder
from vlrl.plugins.registry import ConfigError
from vlrl.services.third_party import pip_install
from vlrl.services.token_guard import GUARD, TOKEN_VARIABLE

HOST = "127.0.0.1"
ENGINES = ("auto", "vllm", "transformers")
NO_DOMAIN = "none.invalid"  # a name that no host has (RFC 2606): vLLM opens no link that a request names


def serve(
    run: Annotated[
        Path,
        typer.Argument(help="The folder of a run, of one of its checkpoints, or of a transformers model."),
    ],
    flags: Annotated[
        list[str] | None,
        typer.Argument(help="Behind `--`: flags for the server, like --tensor-parallel-size 2."),
    ] = None,
    checkpoint: Annotated[
        int | None, typer.Option("--checkpoint", help="The step of the checkpoint. Default: the newest one.")
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", help="vllm, transformers, or auto: vllm where it can run the model.")
    ] = "auto",
    port: Annotated[int, typer.Option("--port", help="The port on 127.0.0.1.")] = 8000,
) -> None:
    """Serve a run's model with OpenAI's chat completions, on this machine alone: `vllm serve` or
    `transformers serve`.

    Both ask for the token that is printed (VLLM_API_KEY sets it) and open no link of a request. What the
    model cannot answer (more text than it takes, tools that its template leaves out) is refused in one line.
    """
    if engine not in ENGINES:
        raise ConfigError(f"--engine: {engine!r} is none of {', '.join(ENGINES)}")
    _check_port(port)
    folder, name = checkpoint_folder(run, checkpoint), run.resolve().name
    url, token = f"http://{HOST}:{port}/v1", os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
    if chosen(engine, folder) == "vllm":
        command, environment = vllm_command(folder, name, port, flags or ()), vllm_environment(token)
    else:
        command, environment = transformers_command(folder, port, flags or ()), {TOKEN_VARIABLE: token}
        name = str(folder)
    _run(command, f"{name} at {url}\nOPENAI_BASE_URL={url} OPENAI_API_KEY={token}", environment)


def _check_port(port: int) -> None:
    """Raise ConfigError for a port that something else listens on, before the model is loaded."""
    with socket.socket() as probe:
        # as the servers do: a port that was closed a moment ago is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"--port: cannot listen on {port} ({error}); give another one") from None


def chosen(engine: str, folder: Path) -> str:
    """The server that runs: vllm or transformers. Raises ConfigError where the one that is asked for, or with
    `auto` each, cannot; with `auto` one line says why vLLM does not."""
    problem = vllm_problem(folder) if engine != "transformers" else "not asked for"
    if problem is None:
        return "vllm"
    if engine == "vllm":
        raise ConfigError(f"--engine vllm: {problem}")
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing or importlib.util.find_spec("transformers.cli.serve") is None:
        raise ConfigError(f"serve: no server; {pip_install('vllm')}, or pip install 'transformers[serving]'")
    if engine == "auto":
        sys.stderr.write(f"transformers serves: {problem}\n")
    return "transformers"


def vllm_problem(folder: Path) -> str | None:
    """Why vLLM cannot serve this model on this machine; None where it can."""
    if importlib.util.find_spec("vllm") is None:
        return f"vLLM is not installed ({pip_install('vllm')})"
    import torch

    described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text_config = SimpleNamespace(**(described | (described.get("text_config") or {})))
    try:
        check_installed()
        check_heads(text_config, torch.cuda.is_available())
    except ConfigError as error:
        return str(error)
    return None


def vllm_command(folder: Path, name: str, port: int, flags: Sequence[str] = ()) -> list[str]:
    """The command line of vLLM's server. `flags` come last, so they win. The token is not in it."""
    import torch

    own = {
        "model": folder,
        "served_model_name": name,
        "host": HOST,
        "port": port,
        "middleware": GUARD,  # vLLM's own check leaves websockets and control paths open
        "allowed_media_domains": [NO_DOMAIN],
        "max_model_len": "auto",
        "disable_uvicorn_access_log": True,
        # see VLLMEngine.common_arguments
        **({} if torch.cuda.is_available() else {"enable_chunked_prefill": False}),
    }
    return [sys.executable, "-m", SERVER_MODULE, *as_flags(own), *flags]


def vllm_environment(token: str) -> dict[str, str]:
    """Variables of vLLM's server. On a CPU, keys and values get VLLM_CPU_KVCACHE_SPACE GiB (1)."""
    return {"VLLM_DO_NOT_TRACK": "1", **cpu_environment(), **os.environ, TOKEN_VARIABLE: token}


def transformers_command(folder: Path, port: int, flags: Sequence[str] = ()) -> list[str]:
    """The command line of transformers' server."""
    own = ["serve", str(folder), "--host", HOST, "--port", str(port)]
    return [sys.executable, "-m", GUARDED, *own, *flags]


def _run(command: Sequence[str], told: str, environment: dict[str, str]) -> None:
    """Become the server."""
    sys.stderr.write(f"{shlex.join(command)}\nserving {told}\n")
    sys.stderr.flush()
    os.execve(command[0], list(command), {**os.environ, **environment})

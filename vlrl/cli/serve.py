"""`vlrl serve`."""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from vlrl.plugins.registry import ConfigError
from vlrl.services import third_party as libraries

TOKEN = "VLRL_SERVE_TOKEN"  # in the environment: the token to ask for; without it a random one is made
POLL = 5.0  # seconds between two looks at vLLM's server


def serve(
    run: Annotated[
        Path,
        typer.Argument(help="The folder of a run, of one of its checkpoints, or of a transformers model."),
    ],
    flags: Annotated[
        list[str] | None,
        typer.Argument(help="Behind `--`: flags for vLLM's server, like --tensor-parallel-size 2."),
    ] = None,
    checkpoint: Annotated[
        int | None, typer.Option("--checkpoint", help="The step of the checkpoint. Default: the newest one.")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine", help="vllm, hf (the built-in server), or auto: vllm where it can run the model."
        ),
    ] = "auto",
    port: Annotated[int, typer.Option("--port", help="The port on 127.0.0.1.")] = 8000,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", help="With hf: the largest number of new tokens of an answer.")
    ] = 1024,
) -> None:
    """Serve a run's model with OpenAI's chat completions, pictures included, on this machine alone.

    Clients send the token that is printed as their API key; VLRL_SERVE_TOKEN sets it.
    """
    from vlrl.interop.export import checkpoint_folder

    if engine not in ("auto", "hf", "vllm"):
        raise ConfigError(f"--engine: {engine!r} is none of auto, hf, vllm")
    if engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "--engine vllm: vLLM is not installed; pip install 'vlrl[vllm]', or use --engine hf"
        )
    _check_port(port)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the server as Ctrl-C does
    folder, name = checkpoint_folder(run, checkpoint), run.resolve().name
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(24)
    if takes_vllm(engine, folder):
        _with_vllm(folder, name, port, token, flags or ())
    elif flags:
        raise ConfigError(
            f"{' '.join(flags)}: flags behind `--` are for vLLM's server; the built-in one has --port and "
            "--max-tokens"
        )
    else:
        _built_in(run, folder, port, token, max_tokens)


def _check_port(port: int) -> None:
    """Raise ConfigError for a port that something else listens on, before the model is loaded."""
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as the servers do: a port that was closed a moment ago is free
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise ConfigError(f"--port: cannot listen on {port} ({error}); give another one") from None


def takes_vllm(engine: str, folder: Path) -> bool:
    """Whether vLLM serves. Raises ConfigError where it is asked for and cannot; with `auto` one line says why
    it does not."""
    if engine == "hf" or importlib.util.find_spec("vllm") is None:
        return False
    from vlrl.engine.vllm.chat_server import problem_with

    problem = problem_with(folder)
    if problem and engine == "vllm":
        raise ConfigError(problem)
    if problem:
        sys.stderr.write(f"the built-in server is used: {problem}\n")
    return problem is None


def _say(url: str, model: str, token: str) -> None:
    sys.stderr.write(f"serving {model} at {url}\nOPENAI_BASE_URL={url} OPENAI_API_KEY={token}\n")
    sys.stderr.flush()


def _with_vllm(folder: Path, name: str, port: int, token: str, flags: Sequence[str]) -> None:
    """Run vLLM's own server until Ctrl-C; a server that dies is started again. The token is in its
    environment, never on the command line."""
    from vlrl.engine.vllm import chat_server
    from vlrl.services.http import ServiceError

    server = chat_server.start(folder, name, port, token, flags)
    sys.stderr.write(
        f"loading {name} into vLLM, which takes a minute or more; its output is in {server.log}\n"
    )
    try:
        server.wait()
        _say(f"{server.url}/v1", name, token)
        while True:
            server.ensure()
            time.sleep(POLL)
    except ServiceError:
        raise ConfigError(
            f"vLLM's server ended: {chat_server.fault(server.log)} (log: {server.log}); mend it, or use "
            "--engine hf"
        ) from None
    except KeyboardInterrupt:
        pass
    finally:
        server.close()


def _built_in(run: Path, folder: Path, port: int, token: str, max_tokens: int) -> None:
    from vlrl.interop.serve import ChatServer, Worker, open_engine

    libraries.skip_unused()
    served = open_engine(run, folder)
    name = run.resolve().name
    try:
        with ChatServer(Worker(served.engine, served.policy), token, name, port, max_tokens) as server:
            _say(server.url, name, token)
            server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        served.close()

"""`vlrl serve`."""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from vlrl import libraries
from vlrl.registry import ConfigError

TOKEN = "VLRL_SERVE_TOKEN"  # in the environment: the token to ask for; without it a random one is made


def serve(
    run: Annotated[Path, typer.Argument(help="The folder of a run, of one of its checkpoints, or of a transformers model.")],
    checkpoint: Annotated[int | None, typer.Option("--checkpoint", help="The step of the checkpoint. Default: the newest one.")] = None,
    engine: Annotated[str, typer.Option("--engine", help="vllm, hf (the built-in server), or auto: vllm where it is installed.")] = "auto",
    port: Annotated[int, typer.Option("--port", help="The port on 127.0.0.1.")] = 8000,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="With hf: the largest number of new tokens of an answer.")] = 1024,
) -> None:
    """Serve a run's model with OpenAI's chat completions, pictures included, on this machine alone.

    Clients send the token that is printed as their API key; VLRL_SERVE_TOKEN sets it.
    """
    from vlrl.export import checkpoint_folder

    if engine not in ("auto", "hf", "vllm"):
        raise ConfigError(f"--engine: {engine!r} is none of auto, hf, vllm")
    has_vllm = importlib.util.find_spec("vllm") is not None
    if engine == "vllm" and not has_vllm:
        raise ConfigError("--engine vllm: vLLM is not installed; pip install 'vlrl[vllm]', or use --engine hf")
    libraries.quiet()
    folder, name = checkpoint_folder(run, checkpoint), run.resolve().name
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(24)
    if engine == "vllm" or (engine == "auto" and has_vllm):
        raise typer.Exit(_with_vllm(folder, name, port, token))
    _built_in(run, folder, port, token, max_tokens)


def _say(url: str, model: str, token: str) -> None:
    sys.stderr.write(f"serving {model} at {url}\nOPENAI_BASE_URL={url} OPENAI_API_KEY={token}\n")
    sys.stderr.flush()


def _with_vllm(folder: Path, name: str, port: int, token: str) -> int:
    """Run vLLM's own server; the token is in its environment, never on the command line."""
    import subprocess

    from vlrl.services.token_guard import TOKEN_VARIABLE

    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", name]
    command += ["--middleware", "vlrl.services.token_guard.TokenGuard"]  # vLLM's own check leaves websockets and control paths open
    _say(f"http://127.0.0.1:{port}/v1", name, token)
    return subprocess.run([*command, "--host", "127.0.0.1", "--port", str(port)], env={**os.environ, TOKEN_VARIABLE: token}, check=False).returncode


def _built_in(run: Path, folder: Path, port: int, token: str, max_tokens: int) -> None:
    from vlrl.serve import ChatServer, Worker, open_engine

    libraries.skip_unused()
    served = open_engine(run, folder)
    name = run.resolve().name
    try:
        with ChatServer(Worker(served.engine, served.policy), token, name, port, max_tokens) as server:
            _say(server.url, name, token)
            server.serve_forever()
    except OSError as error:
        raise ConfigError(f"--port: cannot listen on {port} ({error.strerror}); give another one") from None
    except KeyboardInterrupt:
        pass
    finally:
        served.close()

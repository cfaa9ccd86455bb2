"""Whether the Hugging Face hub can be reached, before a client library tries for minutes."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit


def hub_reachable(timeout: float = 5.0) -> bool:
    """Whether the hub's host accepts connections. Behind a proxy this cannot be tested and is assumed."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    address = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        with socket.create_connection(
            (address.hostname or "", address.port or (443 if address.scheme == "https" else 80)), timeout
        ):
            return True
    except OSError:
        return False


def in_hub_cache(dataset: str) -> bool:
    """Whether an earlier run left a data set in a cache of the client libraries."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    caches = (
        Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets") / dataset.replace("/", "___").lower(),
        home / "hub" / f"datasets--{dataset.replace('/', '--')}",
    )
    return any(folder.exists() for folder in caches)

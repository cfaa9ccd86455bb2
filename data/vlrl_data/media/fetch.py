"""Media over http(s): limited in size, type and time, never from a private address, kept in the disk cache.

A host is resolved once, every address it has must be public, and the connection goes to the address that was
checked (a second look-up could answer differently). Redirects are followed here and not by the HTTP library,
so that each is checked like the first address.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urljoin, urlsplit

from vlrl.types import MediaError
from vlrl_data.disk_cache import DiskCache, default_cache
from vlrl_data.media.images import digest

REDIRECTS = (301, 302, 303, 307, 308)
TYPES = ("image/", "video/", "application/octet-stream", "binary/octet-stream")


@dataclass(frozen=True)
class Web:
    """Limits of downloads. `private` allows hosts with private addresses (an internal file server); `enabled:
    false` refuses every URL."""

    enabled: bool = True
    private: bool = False
    max_bytes: int = 512 << 20
    timeout: float = 30.0
    redirects: int = 5
    retries: int = 2


def public_address(host: str, port: int, web: Web, url: str) -> str:
    """An address of the host that may be connected to. Raises MediaError if it has none, or any that is
    private."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise MediaError(f"{url}: cannot resolve {host!r}: {error}") from None
    for address in found:
        plain = ipaddress.ip_address(address.partition("%")[0])
        real = getattr(plain, "ipv4_mapped", None) or plain
        if not web.private and (not real.is_global or real.is_multicast):
            raise MediaError(
                f"{url}: {host!r} is at {address}, which is not a public address; set `web.private: true` "
                "to allow it"
            )
    return sorted(found)[0]


def _connect(parts: SplitResult, address: str, port: int, web: Web) -> http.client.HTTPConnection:
    host, secure = str(parts.hostname), parts.scheme == "https"
    raw = socket.create_connection((address, port), timeout=web.timeout)
    connection = http.client.HTTPConnection(host, port, timeout=web.timeout)
    connection.sock = ssl.create_default_context().wrap_socket(raw, server_hostname=host) if secure else raw
    return connection


def _once(url: str, web: Web, write: Callable[[bytes], object]) -> str:
    """One request: writes the body and returns "", or returns the address that it redirects to."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise MediaError(f"{url}: only http and https addresses are fetched")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    connection = _connect(parts, public_address(parts.hostname, port, web, url), port, web)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(
            "GET", path, headers={"User-Agent": "vlrl", "Accept": "image/*, video/*, */*;q=0.1"}
        )
        response = connection.getresponse()
        if response.status in REDIRECTS and response.getheader("Location"):
            return urljoin(url, str(response.getheader("Location")))
        if response.status != 200:
            raise MediaError(f"{url}: the server answered {response.status} {response.reason}")
        kind = (response.getheader("Content-Type") or "application/octet-stream").lower()
        if not kind.startswith(TYPES):
            raise MediaError(f"{url}: it is {kind!r}, not an image or a video")
        taken = 0
        while block := response.read(1 << 16):
            taken += len(block)
            if taken > web.max_bytes:
                raise MediaError(f"{url}: more than {web.max_bytes} bytes (web.max_bytes)")
            write(block)
        if response.length:
            raise ConnectionError(f"{response.length} bytes are missing")
        return ""
    finally:
        connection.close()


def _download(url: str, web: Web, target: Path) -> None:
    address = url
    for _ in range(web.redirects + 1):
        with target.open("wb") as out:
            address = _once(address, web, out.write)
        if not address:
            return
    raise MediaError(f"{url}: more than {web.redirects} redirects")


def fetch(url: str, web: Web, cache: DiskCache | None = None) -> Path:
    """The file behind a URL, from the cache if it is there. Raises MediaError; network errors are retried
    `web.retries` times."""
    if not web.enabled:
        raise MediaError(f"{url}: fetching is switched off (web.enabled: false)")
    last: Exception | None = None
    for _ in range(web.retries + 1):
        try:
            return (cache or default_cache()).get(digest("url", url), lambda path: _download(url, web, path))
        except MediaError:
            raise
        except ValueError as error:  # a host or path that no request can hold
            raise MediaError(f"{url[:300]}: not an address that can be fetched: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            last = error
    raise MediaError(f"{url}: {last}")

"""Media over http: limits, redirects, private addresses, cache."""

import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from PIL import Image
from vlrl_data.disk_cache import DiskCache
from vlrl_data.media.fetch import Web, fetch, public_address
from vlrl_data.media.parse import MediaSettings, RemoteMedia, parse_image

from vlrl.types import MediaError

OPEN = Web(private=True, timeout=5.0, retries=0, max_bytes=5000)


def png():
    buffer = io.BytesIO()
    Image.new("RGB", (5, 4), "red").save(buffer, "PNG")
    return buffer.getvalue()


class Handler(BaseHTTPRequestHandler):
    asked: list = []

    def do_GET(self):
        self.asked.append(self.path)
        table = {
            "/a.png": (200, "image/png", png(), {}),
            "/page": (200, "text/html", b"<html>", {}),
            "/big": (200, "image/png", b"x" * 6000, {}),
            "/gone": (404, "text/plain", b"", {}),
            "/hop": (302, "text/plain", b"", {"Location": "/a.png"}),
            "/loop": (302, "text/plain", b"", {"Location": "/loop"}),
            "/inside": (302, "text/plain", b"", {"Location": "http://169.254.169.254/latest"}),
            "/file": (302, "text/plain", b"", {"Location": "file:///etc/passwd"}),
            "/text.png": (200, "image/png", b"not an image", {}),
        }
        status, kind, body, headers = table[self.path.partition("?")[0]]
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()


def test_fetched_once(server, tmp_path):
    cache = DiskCache(tmp_path)
    first, second = fetch(f"{server}/a.png?once", OPEN, cache), fetch(f"{server}/a.png?once", OPEN, cache)
    assert first == second and first.read_bytes() == png() and Handler.asked.count("/a.png?once") == 1
    assert fetch(f"{server}/hop", OPEN, cache).read_bytes() == png()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("page", "not an image or a video"),
        ("big", "more than 5000 bytes"),
        ("gone", "answered 404"),
        ("loop", "more than 5 redirects"),
        ("file", "only http"),
    ],
)
def test_refused(server, tmp_path, path, reason):
    with pytest.raises(MediaError, match=reason):
        fetch(f"{server}/{path}", OPEN, DiskCache(tmp_path))
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_private_addresses(server, tmp_path):
    with pytest.raises(MediaError, match="not a public address"):
        fetch(f"{server}/a.png", Web(retries=0), DiskCache(tmp_path))
    for host in (
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "169.254.169.254",
        "::1",
        "::ffff:10.0.0.1",
        "0.0.0.0",
        "224.0.0.1",
    ):
        with pytest.raises(MediaError, match="not a public address"):
            public_address(host, 80, Web(), "http://x")
    assert public_address("93.184.216.34", 80, Web(), "http://x") == "93.184.216.34"


def test_redirect_to_private_is_checked_like_the_first(server, tmp_path, monkeypatch):
    """The first host counts as public; the address it redirects to does not."""
    import vlrl_data.media.fetch as module

    real = module.public_address
    monkeypatch.setattr(
        module,
        "public_address",
        lambda host, port, web, url: host if host == "127.0.0.1" else real(host, port, web, url),
    )
    with pytest.raises(MediaError, match=r"169\.254\.169\.254.*not a public address"):
        fetch(f"{server}/inside", Web(retries=0), DiskCache(tmp_path))


def test_nothing_there(tmp_path):
    with pytest.raises(MediaError, match=r"refused|Connection"):
        fetch("http://127.0.0.1:9/a.png", OPEN, DiskCache(tmp_path))
    with pytest.raises(MediaError, match="cannot resolve"):
        fetch("http://no.such.host.invalid/a.png", OPEN, DiskCache(tmp_path))
    with pytest.raises(MediaError, match="switched off"):
        fetch("http://x/a.png", Web(enabled=False), DiskCache(tmp_path))


def test_remote_pictures(server, tmp_path, monkeypatch):
    monkeypatch.setenv("VLRL_CACHE", str(tmp_path))
    place = MediaSettings(web=OPEN)
    medium = parse_image(f"{server}/a.png", place)
    assert isinstance(medium, RemoteMedia) and medium.load().size == (5, 4)
    assert (
        medium.key
        == parse_image({"url": f"{server}/a.png"}, place).key
        != parse_image(f"{server}/hop", place).key
    )
    with pytest.raises(MediaError, match=r"text\.png: .*not an image"):
        parse_image(f"{server}/text.png", place).load()


def test_cache_is_bounded_and_whole(tmp_path):
    import os

    cache = DiskCache(tmp_path, max_bytes=250)
    for index, key in enumerate(("aa1", "bb2", "cc3")):
        file = cache.get(key, lambda path: path.write_bytes(b"x" * 100))
        os.utime(file, (index, index))
    cache.trim()
    assert [cache.path(key).exists() for key in ("aa1", "bb2", "cc3")] == [False, True, True]
    with pytest.raises(ZeroDivisionError):
        cache.get("dd4", lambda path: 1 / 0)
    assert not cache.path("dd4").exists() and not list(tmp_path.rglob(".making-*"))

"""Prefetching: rows read and media decoded ahead in threads."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from PIL import Image
from run_kit import View
from vlrl_data.media.images import DECODED, InMemoryImage, StoredImage

from vlrl.methods.common.prefetch import PrefetchedMedia, Prefetcher
from vlrl.plugins.registry import build
from vlrl.plugins.stages import PromptSampler
from vlrl.types import Media, MediaError, Row


def test_verify_skips_broken_media_and_decodes_once(tmp_path, caplog):
    for index in range(5):
        Image.new("RGB", (4, 4), (index, 0, 0)).save(tmp_path / f"{index}.png")
    (tmp_path / "3.png").write_bytes(b"broken")
    parts = {"a": [Row(str(i), "?", images=(StoredImage(str(tmp_path / f"{i}.png")),)) for i in range(5)]}
    sampler = build(PromptSampler, {"name": "shuffle", "verify": True})
    sampler.setup(View(rows=parts, source_weights={}))
    before = DECODED["count"]
    rows = sampler(4)
    assert sorted(row.id for row in rows) == ["0", "1", "2", "4"]
    assert [row.images[0].load().getpixel((0, 0))[0] for row in rows] == [int(row.id) for row in rows]
    assert DECODED["count"] == before + 4
    sampler(4)
    assert sampler.metrics()["data/skipped"] >= 1 and "3.png" in caplog.text


def test_workers_decode_and_order_stays(tmp_path):
    for index in range(6):
        Image.new("RGB", (4, 4), (index, 0, 0)).save(tmp_path / f"{index}.png")
    (tmp_path / "5.png").write_bytes(b"broken")
    parts = {"a": [Row(str(i), "?", images=(StoredImage(str(tmp_path / f"{i}.png")),)) for i in range(6)]}
    run = View(rows=parts, source_weights={})
    plain, ahead = build(PromptSampler, "shuffle"), build(PromptSampler, {"name": "shuffle", "workers": 1})
    for sampler in (plain, ahead):
        sampler.setup(run)
    before = DECODED["count"]
    pairs = [(a, b) for _ in range(4) for a, b in zip(plain(3), ahead(3), strict=True)]
    assert [a.id for a, _ in pairs] == [b.id for _, b in pairs]
    prefetched = [row for _, row in pairs if isinstance(row.images[0], PrefetchedMedia)]
    assert len(prefetched) == 9
    for row in prefetched:
        if row.id == "5":
            with pytest.raises(MediaError, match=r"5\.png"):
                row.images[0].load()
        else:
            assert row.images[0].load().getpixel((0, 0)) == (int(row.id), 0, 0)
    assert (
        0 <= DECODED["count"] - before - sum(row.id != "5" for row in prefetched) <= 3
    )  # each once, and what was begun for a next call
    ahead.state.prefetcher.pool.shutdown(cancel_futures=True)
    last, now = next(row for row in prefetched if row.id != "5"), DECODED["count"]
    assert last.images[0].load().size == (4, 4) and DECODED["count"] == now + 1


def test_rows_are_read_by_one_thread_at_a_time_and_ranks_decode_their_share():
    """Four threads and the caller read 60 rows: never two at once. Of two ranks, each decodes what it
    takes."""
    decoded = {0: set(), 1: set()}

    class Rows(list):
        inside = 0

        def __getitem__(self, index):
            self.inside += 1
            assert self.inside == 1
            time.sleep(0.001)
            self.inside -= 1
            return super().__getitem__(index)

    for rank in (0, 1):
        images = [InMemoryImage(Image.new("RGB", (2, 2), (i, 0, 0))) for i in range(60)]
        sampler = build(PromptSampler, {"name": "shuffle", "workers": 4, "ahead": 2})
        rows = Rows(Row(str(i), "?", images=(image,)) for i, image in enumerate(images))
        sampler.setup(View(rows={"a": rows}, source_weights={}, rank=rank, ranks=2))
        for _ in range(6):
            taken = sampler(10)
            decoded[rank] |= {row.id for row in taken if isinstance(row.images[0], PrefetchedMedia)}
            shares = {row.id for row in taken[rank::2]}
            assert {row.id for row in taken if isinstance(row.images[0], PrefetchedMedia)} <= shares
        sampler.state.prefetcher.close()
    assert (
        len(decoded[0]) == len(decoded[1]) == 25 and not decoded[0] & decoded[1]
    )  # all but those of the first call


def test_what_no_thread_has_begun_is_done_by_the_caller():
    """A thread that hangs on the first picture holds up neither other rows nor other pictures."""
    gate = threading.Event()

    class Slow(Media):
        kind, key = "image", "slow"

        def load(self):
            gate.wait(30)
            return "slow"

        def check(self):
            pass

    images = [Slow(), *(InMemoryImage(Image.new("RGB", (2, 2))) for _ in range(3))]
    prefetcher = Prefetcher(lambda place: Row(str(place), "?", images=(images[place],)), 1, 10)
    prefetcher.start([0], lambda _: True)
    first = prefetcher.take(0)
    prefetcher.start([1, 2, 3], lambda _: True)
    assert [prefetcher.take(place).images[0].load().size for place in (1, 2, 3)] == [(2, 2)] * 3
    gate.set()
    assert first.images[0].load() == "slow"
    prefetcher.close()


OWNER = """
import multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor
from {module} import {name} as initializer

if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=initializer)
    sys.stdout.write(f"{{pool.submit(os.getpid).result()}}\\n")
    sys.stdout.flush()
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("module", "name"), [("vlrl.services.parent", "end_with_parent"), ("vlrl.compare.run", "_start")]
)
def test_workers_end_with_a_parent_that_is_killed(tmp_path, module, name):
    (tmp_path / "owner.py").write_text(OWNER.format(module=module, name=name))
    owner = subprocess.Popen([sys.executable, str(tmp_path / "owner.py")], stdout=subprocess.PIPE, text=True)
    worker = int(owner.stdout.readline())
    os.kill(worker, 0)  # it lives
    owner.kill()
    owner.wait()
    limit = time.monotonic() + 20
    while _lives(worker) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not _lives(worker)


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # ended, though nobody has asked for its exit code: Z
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")

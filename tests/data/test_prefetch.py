"""Prefetching: media decoded ahead in worker processes."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image
from vlrl_data.media.images import DECODED, StoredImage

from vlrl.methods.common.prefetch import PrefetchedMedia
from vlrl.registry import build
from vlrl.stages import PromptSampler
from vlrl.types import MediaError, Row


def test_verify_skips_broken_media_and_decodes_once(tmp_path, caplog):
    for index in range(5):
        Image.new("RGB", (4, 4), (index, 0, 0)).save(tmp_path / f"{index}.png")
    (tmp_path / "3.png").write_bytes(b"broken")
    parts = {"a": [Row(str(i), "?", images=(StoredImage(str(tmp_path / f"{i}.png")),)) for i in range(5)]}
    sampler = build(PromptSampler, {"name": "shuffle", "verify": True})
    sampler.setup(SimpleNamespace(rows=parts, source_weights={}, seed=0, rank=0, ranks=1))
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
    run = SimpleNamespace(rows=parts, source_weights={}, seed=0, rank=0, ranks=1)
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
    assert DECODED["count"] == before  # none in this process
    last = next(row for row in prefetched if row.id != "5")
    assert last.images[0].load().size == (4, 4) and DECODED["count"] == before + 1
    ahead.state.prefetcher.close()


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


@pytest.mark.parametrize(("module", "name"), [("vlrl.methods.common.prefetch", "end_with_parent"), ("vlrl.compare.run", "_start")])
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

"""Large datasets: parquet by footer and blocks, tar files by an index of offsets, and an epoch that is the
same however it is interrupted."""

import io
import json
import pickle
import random
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from run_kit import View
from vlrl_data import parquet, tar_index
from vlrl_data.disk_cache import DiskCache
from vlrl_data.parquet import ParquetFile, even_batches

from vlrl.methods.common.row_order import BlockOrder, Mixture
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import PromptSampler, Source
from vlrl.types import Row, RowError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VLRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def jpeg(shade):
    data = io.BytesIO()
    Image.new("L", (8, 8), shade).convert("RGB").save(data, "JPEG")
    return data.getvalue()


def write_parquet(folder, shards=3, rows=40, group=7):
    """Shards of `rows` rows with pictures, in row groups of `group`."""
    folder.mkdir()
    for shard in range(shards):
        numbers = range(shard * rows, (shard + 1) * rows)
        images = [{"bytes": jpeg(i), "path": None} for i in numbers]
        table = pa.table(
            {
                "id": [f"r{i}" for i in numbers],
                "problem": ["<image>?"] * rows,
                "answer": [str(i) for i in numbers],
                "image": images,
            }
        )
        pq.write_table(table, folder / f"part-{shard}.parquet", row_group_size=group)


def add(tar, name, data, **fields):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for key, value in fields.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(data))


def write_tars(folder, shards=3, rows=40):
    folder.mkdir()
    for shard in range(shards):
        with tarfile.open(folder / f"shard-{shard}.tar", "w") as tar:
            for i in range(shard * rows, (shard + 1) * rows):
                add(tar, f"r{i}.jpg", jpeg(i))
                add(
                    tar,
                    f"r{i}.json",
                    json.dumps({"problem": "<image>?", "answer": str(i)}).encode(),
                    mtime=1.5,
                )


WRITERS = {"files": write_parquet, "webdataset": write_tars}


def sampler_over(rows, rank=0, ranks=1, seed=0, **options):
    sampler = build(PromptSampler, {"name": "shuffle", **options})
    sampler.setup(View(rows={"a": rows}, source_weights={}, seed=seed, rank=rank, ranks=ranks))
    return sampler


@pytest.mark.parametrize("blocks", [0, 2])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", WRITERS)
def test_an_interrupted_epoch_is_the_same_epoch(kind, ranks, blocks, tmp_path, monkeypatch):
    """Stopped after 7 of 15 calls and resumed with everything made anew, on other threads: every row once,
    with its picture, in the order that one process without threads draws."""
    monkeypatch.setattr(parquet, "BLOCK_BYTES", 8_000)
    WRITERS[kind](tmp_path / "data")

    def source():
        return build(Source, {"name": kind, "path": str(tmp_path / "data"), "check_level": "rows"})()

    whole = [row.id for row in sampler_over(source(), blocks=blocks)(120)]
    states, taken = [None] * ranks, [[] for _ in range(ranks)]
    for calls, workers in ((7, 3), (8, 2)):
        for rank in range(ranks):
            sampler = sampler_over(source(), rank, ranks, blocks=blocks, workers=workers, ahead=2)
            if states[rank]:
                sampler.load_state_dict(states[rank])
            for _ in range(calls):
                rows = sampler(8)[rank::ranks]
                assert [round(np.asarray(row.images[0].load()).mean()) for row in rows] == [
                    int(row.answer) for row in rows
                ]
                taken[rank].append([row.id for row in rows])
            states[rank] = json.loads(json.dumps(sampler.state_dict()))
            sampler.state.prefetcher.close()
    order = [step[place] for steps in zip(*taken) for place in range(8 // ranks) for step in steps]
    assert order == whole and Counter(order) == Counter({f"r{i}": 1 for i in range(120)})


def test_opening_parquet_reads_footers_and_a_row_its_block(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(parquet, "BLOCK_BYTES", 20_000)
    write_parquet(tmp_path / "data", shards=1, rows=100, group=10)
    file = ParquetFile(tmp_path / "data/part-0.parquet", DiskCache(cache))
    assert (
        len(file) == 100
        and len(file.blocks) > 1
        and [*file.ends] == [0, *(10 * groups.stop for groups in file.blocks)]
    )
    assert file.row(0)["id"] == "r0" and not list(
        cache.glob("*/*.arrow")
    )  # the record family needs the first row alone
    assert file.row(99)["id"] == "r99" and len(list(cache.glob("*/*.arrow"))) == 1
    order = random.Random(0).sample(range(100), 100)
    assert [file.row(i)["id"] for i in order] == [f"r{i}" for i in order]
    assert len(list(cache.glob("*/*.arrow"))) == len(file.blocks) and not list(cache.glob("*/.*"))


def test_parquet_of_every_shape_reads_as_pyarrow_does(tmp_path, cache, monkeypatch):
    """Nulls, lists, structs, dictionary columns, empty row groups; reads of one row and of many."""
    rows = [
        {
            "a": None if i % 3 else i,
            "b": [str(i)] * (i % 4),
            "c": {"x": i, "y": [i, None]},
            "d": "ab"[i % 2],
            "e": b"\0" * (i % 5),
        }
        for i in range(57)
    ]
    table = pa.Table.from_pylist(rows)
    table = table.set_column(3, "d", table["d"].dictionary_encode())
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for part in (
            table.slice(0, 0),
            table.slice(0, 20),
            table.slice(20, 1),
            table.slice(21, 0),
            table.slice(21),
        ):
            writer.write_table(part, row_group_size=9)
    for most in (1, 4, 4096):
        monkeypatch.setattr(parquet, "BATCH_ROWS", most)
        file = ParquetFile(tmp_path / "a.parquet", DiskCache(cache / str(most)))
        assert [file.row(i) for i in range(len(file))] == rows


def test_even_batches():
    batches = [
        pa.record_batch({"a": pa.array(range(start, start + count), pa.int64())})
        for start, count in ((0, 3), (3, 0), (3, 7), (10, 1))
    ]
    assert [batch["a"].to_pylist() for batch in even_batches(batches, 4, 11)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10],
    ]
    with pytest.raises(ValueError, match="11 of 12 rows"):
        list(even_batches(batches, 4, 12))


def test_a_damaged_row_group_costs_its_block_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "BLOCK_BYTES", 1)
    write_parquet(tmp_path / "data", shards=1, rows=40, group=10)
    path = tmp_path / "data/part-0.parquet"
    chunk = pq.read_metadata(path).row_group(2).column(2)
    data = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + 20] = b"\xff" * 20
    path.write_bytes(data)
    rows = build(Source, {"name": "files", "path": str(path), "max_bad": 0.5, "check_level": "rows"})()
    assert [row.id for row in rows] == [f"r{i}" for i in range(40) if not 20 <= i < 30]
    assert {row.location for row in rows.quarantine.rows} == {f"{path}#{i}" for i in range(20, 30)}
    assert all("row group 2 cannot be read" in row.reason for row in rows.quarantine.rows)


FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


@pytest.mark.parametrize("kind", FORMATS)
def test_tar_members_are_those_of_tarfile(kind, tmp_path):
    """Long and non-ASCII names, folders, links, empty files, float times (which pax stores in a header of its
    own)."""
    rng, path = random.Random(kind), tmp_path / "a.tar"
    names = ["a.json", "b/c.seg.PNG", "b/c.txt", "plain", "d.x", f"{'deep/' * 12}{'n' * 60}.json"]
    names += ["é/ü.json", f"{'long' * 40}/{'name' * 40}.jpg"] if kind != "ustar" else []
    with tarfile.open(path, "w", format=FORMATS[kind]) as tar:
        for name in names:
            add(
                tar,
                name,
                rng.randbytes(rng.choice([0, 1, 511, 512, 513, 3000])),
                mtime=1.25 if kind == "pax" else 1,
            )
            add(tar, name + "-folder", b"", type=tarfile.DIRTYPE)
            add(
                tar,
                name + "-link",
                b"",
                type=tarfile.SYMTYPE,
                linkname="x" * (120 if kind != "ustar" else 20),
            )
    with tarfile.open(path) as tar:
        expected = [(member.name, tar.extractfile(member).read()) for member in tar if member.isfile()]
    found = [member for _, member in tar_index.members_of(path)]
    data = path.read_bytes()
    assert [(member.name, data[member.start : member.start + member.size]) for member in found] == expected


def test_scattered_members_of_a_record_are_one_record(tmp_path, cache):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("x.json", "y.json", "x.txt", "z.json", "y.txt"):
            add(tar, name, name.encode())
    index = tar_index.TarIndex(tmp_path / "a.tar", DiskCache(cache))
    found = [(index.key(i), [data.decode() for _, data in index.members(i)]) for i in range(len(index))]
    assert found == [("x", ["x.json", "x.txt"]), ("y", ["y.json", "y.txt"]), ("z", ["z.json"])]


def test_a_tar_is_looked_through_once(tmp_path, monkeypatch):
    write_tars(tmp_path / "data", shards=2, rows=5)
    spec = {"name": "webdataset", "path": str(tmp_path / "data")}
    assert len(build(Source, spec)()) == 10
    monkeypatch.setattr(tar_index, "scan", lambda path: pytest.fail(f"{path} is looked through again"))
    assert [row.id for row in build(Source, spec)()] == [f"r{i}" for i in range(10)]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda data: data[:1500], "cut short"),
        (
            lambda data: data[:3000] + b"\xff" * 2000 + data[5000:],
            "no header at byte|cut short|broken header",
        ),
        (lambda data: b"\x1f\x8b" + bytes(600), "must be unpacked first"),
        (lambda data: b"", "empty"),
    ],
)
def test_broken_tars_name_their_fault(change, fault, tmp_path):
    write_tars(tmp_path / "data", shards=1, rows=5)
    path = tmp_path / "data/shard-0.tar"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ConfigError, match=rf"shard-0\.tar: not an uncompressed tar file.*({fault})"):
        build(Source, {"name": "webdataset", "path": str(path)})()


class Bomb:
    def __reduce__(self):
        return Path.touch, (Path("unpickled-by-the-loader"),)


@pytest.mark.parametrize("suffix", ["pkl", "pyd", "x.pickle", "pth"])
def test_pickled_members_are_refused_and_never_read(suffix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for i in range(20):
            add(tar, f"r{i}.json", json.dumps({"problem": "?", "answer": "x"}).encode())
        add(tar, f"r3.{suffix}", pickle.dumps(Bomb()))
    rows = build(Source, {"name": "webdataset", "path": str(tmp_path / "a.tar")})()
    assert len(rows) == 19 and not Path("unpickled-by-the-loader").exists()
    assert "is pickled, and reading it could run any code; store it as json" in rows.quarantine.rows[0].reason
    assert rows.quarantine.rows[0].location == f"{tmp_path / 'a.tar'}[r3]"


def test_a_dataset_of_bad_rows_does_not_start_however_large_it_is(tmp_path, monkeypatch):
    """The share of unusable rows is that of the checked ones."""
    monkeypatch.setattr("vlrl_data.dataset.UNCHECKED_HEAD", 20)
    lines = [json.dumps({"id": f"r{i}", "question": "?", "answer": None if i else "x"}) for i in range(400)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="19 of 20 rows cannot be used"):
        build(Source, {"name": "files", "path": str(tmp_path / "a.jsonl"), "check_level": "none"})()


def test_rows_found_bad_at_their_draw_are_appended_once(tmp_path, monkeypatch):
    monkeypatch.setattr("vlrl_data.dataset.UNCHECKED_HEAD", 5)
    lines = [
        json.dumps({"id": f"r{i}", "question": "?", "answer": None if i % 4 == 3 else "x"}) for i in range(40)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    spec = {
        "name": "files",
        "path": str(tmp_path / "a.jsonl"),
        "check_level": "none",
        "max_bad": 0.5,
        "quarantine": str(tmp_path / "q.jsonl"),
    }
    sampler = sampler_over(build(Source, spec)(), workers=2)
    ids = [row.id for _ in range(6) for row in sampler(10)]  # two epochs
    assert Counter(ids) == Counter({f"r{i}": 2 for i in range(40) if i % 4 != 3})
    told = [json.loads(line)["location"] for line in (tmp_path / "q.jsonl").read_text().splitlines()]
    assert sorted(told) == sorted(f"{tmp_path / 'a.jsonl'}:{i + 1}" for i in range(40) if i % 4 == 3)
    monkeypatch.setenv("RANK", "1")
    other = build(Source, spec | {"quarantine": str(tmp_path / "other.jsonl")})()
    with pytest.raises(RowError):
        other[other.number(0) + 6]
    assert len((tmp_path / "other.jsonl").read_text().splitlines()) == 1  # of the check alone


@pytest.mark.parametrize("together", [1, 3, 100])
def test_block_order_is_a_permutation_that_stays_within_its_blocks(together):
    ends = list(np.cumsum([5, 1, 9, 3, 3, 12, 1, 6]))
    block = {
        row: place
        for place, end in enumerate(ends)
        for row in range(end - [5, 1, 9, 3, 3, 12, 1, 6][place], end)
    }
    order = BlockOrder(ends, together, "key")
    rows = [order(i) for i in range(40)]
    assert sorted(rows) == list(range(40)) and rows != [
        BlockOrder(ends, together, "other")(i) for i in range(40)
    ]
    seen = [block[row] for row in rows]
    windows = [order.order[start : start + together] for start in range(0, len(ends), together)]
    for window in windows:
        size = sum(list(block.values()).count(each) for each in window)
        assert set(seen[:size]) == set(window)
        seen = seen[size:]


@pytest.mark.parametrize("weights", [{}, {"a": 1.0, "b": 3.0}])
def test_blocks_of_several_sources_are_mixed_evenly(weights, monkeypatch):
    """A source without weights gives every row once per epoch; each segment has its share of every source."""
    monkeypatch.setattr("vlrl.methods.common.row_order.SEGMENT", 50)

    class Blocks(list):
        block_ends = [100, 200, 300]

    parts = {"a": Blocks(Row(f"a{i}", "?") for i in range(300)), "b": [Row(f"b{i}", "?") for i in range(100)]}
    mixture = Mixture(parts, weights, seed=3, blocks=1)
    laps = [Counter(mixture.row(lap * 400 + i).id for i in range(400)) for lap in range(3)]
    counts = dict(zip("ab", mixture.counts))
    for lap in laps:
        assert sum(n for row, n in lap.items() if row[0] == "a") == counts["a"]
    if not weights:
        assert all(set(lap.values()) == {1} and len(lap) == 400 for lap in laps)
    else:  # all rows of a source come before any comes again
        assert all(n in (1, 2) for row, n in sum(laps, Counter()).items() if row[0] == "a")
    for start in range(0, 400, 50):
        share = sum(mixture.row(start + i).id[0] == "a" for i in range(50))
        assert abs(share - 50 * counts["a"] / 400) <= 1
    near = {int(row.id[1:]) // 100 for i in range(100) if (row := mixture.row(i)).id[0] == "a"}
    assert len(near) == 1  # one block after the other


def test_cache_makes_a_file_once_and_looks_at_the_folder_rarely(tmp_path, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    cache, made, trims = DiskCache(tmp_path / "made", max_bytes=64_000), [], []
    trim = DiskCache.trim
    monkeypatch.setattr(DiskCache, "trim", lambda self, keep=None: trims.append(keep) or trim(self, keep))

    def write(target):
        made.append(target)
        target.write_bytes(bytes(500))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: cache.get("a" * 40, write), range(16)))) == 1
    assert len(made) == 1
    for i in range(200):
        cache.get(f"{i:040d}"[::-1], write)
    assert (
        len(trims) < 60
        and sum(file.stat().st_size for file in (tmp_path / "made").glob("*/*")) <= 64_000 * 33 / 32
    )

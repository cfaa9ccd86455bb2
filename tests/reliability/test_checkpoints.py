"""A checkpoint that is damaged in any file is named and the one before it is used; one that cannot be written
leaves the older ones as they were."""

import errno
import json
import random
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from kit import open_run
from reliability_kit import ENVIRONMENT, ROOT, config, copy_of, verify_equal

from vlrl.logging import browse
from vlrl.plugins.registry import ConfigError
from vlrl.services.failures import StorageError, storage_error
from vlrl.services.files import read_jsonl, write_whole
from vlrl.trainer.checkpoints import checkpoint
from vlrl.training import train


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(config(folder), live=False)
    return folder


def files_of(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 8
    path.write_bytes(data)


DAMAGE = {
    "flip": (flip, "checksum differs|is damaged"),
    "cut": (
        lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        "bytes of|is damaged",
    ),
    "delete": (Path.unlink, "is missing"),
    "zero": (lambda path: path.write_bytes(bytes(path.stat().st_size)), "checksum differs|is damaged"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_every_damaged_file_is_named_and_the_checkpoint_before_is_used(finished, tmp_path, kind):
    damage, words = DAMAGE[kind]
    last = "checkpoints/step-000006"
    assert checkpoint.newest_intact(finished) == (finished / last, [])
    names = files_of(finished / last)
    assert {
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "trainer/manifest.json",
        "trainer/random-0.pt",
    } <= set(names)
    for name in names:
        run = copy_of(finished, tmp_path / name.replace("/", "-"))
        damage(run / last / name)
        found, notes = checkpoint.newest_intact(run)
        assert found == run / "checkpoints" / "step-000004" and len(notes) == 1
        assert name in notes[0] and "step-000006" in notes[0] and "going on from step-000004" in notes[0], (
            notes
        )
        assert any(word in notes[0] for word in words.split("|")), notes
        assert run / last not in checkpoint.saved(run) or kind in ("flip", "zero")


def test_a_resume_says_what_is_damaged_goes_on_from_the_one_before_and_ends_the_same(
    finished, tmp_path, caplog
):
    run = copy_of(finished, tmp_path / "run")
    (run / "checkpoints" / "step-000006" / "tokenizer.json").unlink()
    flip(run / "checkpoints" / "step-000004" / "trainer" / "optimizer.pt")
    (run / "checkpoints" / ".step-000008.part" / "trainer").mkdir(parents=True)
    train(config(run), resume=True, live=False)
    said = [row["message"] for row in read_jsonl(run / "events.jsonl") if row["kind"] == "warning"]
    for words in (
        "tokenizer.json is missing (tokenizer)",
        "trainer/optimizer.pt is damaged: its checksum differs (optimizer)",
        "was not finished",
    ):
        assert any(words in line for line in said) and words in caplog.text
    verify_equal(finished, run)
    heldout = [row["name"] for row in read_jsonl(run / "events.jsonl") if row["kind"] == "heldout"]
    assert heldout == ["start", "final"]
    assert not list((run / "checkpoints").glob(".*"))


def test_without_an_intact_checkpoint_the_run_refuses(finished, tmp_path):
    run = copy_of(finished, tmp_path / "run")
    for folder in checkpoint.folders(run):
        (folder / "model.safetensors").unlink()
    with pytest.raises(
        ConfigError,
        match=r"step-000006.*model.safetensors is missing \(weights\).*step-000002.*no checkpoint is left",
    ):
        train(config(run), resume=True, live=False)


def test_the_other_files_of_a_run_may_be_damaged(finished, tmp_path):
    """Every file outside the checkpoints: half of it, none of it, zeros."""
    for place, (kind, (damage, _)) in enumerate(
        (kind, how) for kind, how in DAMAGE.items() if kind != "flip"
    ):
        run = copy_of(finished, tmp_path / kind)
        shutil.rmtree(run / "checkpoints" / "step-000006")
        for name in files_of(run):
            if not name.startswith("checkpoints"):
                damage(run / name)
        train(config(run), resume=True, live=False)
        rows = [row["step"] for row in read_jsonl(run / "metrics.jsonl")]
        assert rows[-2:] == [5, 6] and len(rows) == len(set(rows)), (place, rows)
        assert (run / "report.html").read_text().startswith("<!")


def test_a_finished_run_resumed_again_repeats_no_event(finished, tmp_path):
    run = copy_of(finished, tmp_path / "run")
    before = (run / "events.jsonl").read_text()
    for _ in range(2):
        train(config(run), resume=True, live=False)
    assert [row["kind"] for row in read_jsonl(run / "events.jsonl")] == [
        json.loads(line)["kind"] for line in before.splitlines()
    ]


def test_a_finished_run_without_its_log_and_with_odd_rollout_files_ends_without_a_report(
    finished, tmp_path, caplog, monkeypatch
):
    run = copy_of(finished, tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    train(config(run), resume=True, live=False)
    assert "no report was written" in caplog.text and "report" not in json.loads(
        (run / "summary.json").read_text()
    )
    other = copy_of(finished, tmp_path / "other")

    def read(*_):
        raise pyarrow.ArrowNotImplementedError("Integers with more than 64 bits not implemented")

    monkeypatch.setattr(browse, "read", read)
    train(config(other), resume=True, live=False)
    assert (
        other / "report.html"
    ).is_file() and "is left out of the report: Integers with more" in caplog.text


def test_old_checkpoints_without_a_manifest_are_still_read(finished, tmp_path):
    run = copy_of(finished, tmp_path / "run")
    folder = run / "checkpoints" / "step-000006"
    state = json.loads((folder / "trainer" / "state.json").read_text())
    del state["format"]
    (folder / "trainer" / "state.json").write_text(json.dumps(state))
    (folder / "trainer" / "manifest.json").unlink()
    assert checkpoint.newest_intact(run) == (folder, [])
    (folder / "tokenizer_config.json").unlink()
    assert checkpoint.faults(folder) == ["tokenizer_config.json is missing (tokenizer)"]


def test_pruning_keeps_the_newest_complete_ones(finished, tmp_path):
    run = copy_of(finished, tmp_path / "run")
    (run / "checkpoints" / "step-000004" / "config.json").unlink()
    checkpoint.prune(run, 2)
    assert [path.name for path in checkpoint.saved(run)] == ["step-000002", "step-000006"]
    checkpoint.prune(run, 1)
    assert [path.name for path in checkpoint.folders(run)] == ["step-000006"]


# --- storage ------------------------------------------------------------------------------------------------


def test_a_file_size_limit_says_so_at_whichever_file_and_leaves_nothing(tmp_path):
    run = open_run(tmp_path / "run")
    first = checkpoint.save(run)
    before = {name: (first / name).read_bytes() for name in files_of(first)}
    sizes = sorted({(first / name).stat().st_size for name in files_of(first)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in [1, *(size - 1 for size in sizes)]:  # another file is the first that does not fit
        run.step += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(
                StorageError, match=r"the file-size limit is reached; raise it \(`ulimit -f unlimited`\)"
            ):
                checkpoint.save(run)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == [first.name]
    assert {name: (first / name).read_bytes() for name in files_of(first)} == before
    assert checkpoint.save(run).name == f"step-{run.step:06d}"


def can_mount():
    return (
        shutil.which("unshare")
        and subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not can_mount(), reason="this machine allows no mounts of one's own")
def test_a_full_disk_and_a_read_only_one_say_so_and_leave_nothing(tmp_path):
    """On real file systems of a few sizes: `storage_trial.py` in a mount namespace of its own."""
    trial = [sys.executable, str(Path(__file__).with_name("storage_trial.py")), str(tmp_path)]
    done = subprocess.run(
        ["unshare", "-rm", *trial], capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert {result["case"] for result in results} == {"full", "read-only"} and len(results) >= 5
    for result in results:
        words = (
            "the disk is full; free some space"
            if result["case"] == "full"
            else "the file system is read-only"
        )
        assert words in result["said"] and "\n" not in result["said"], result
        assert result["left"] == ["step-000000"] and result["faults"] == [], result


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EDQUOT, "quota"),
        (errno.EIO, "input/output"),
        (errno.EACCES, "permission"),
        (errno.ESTALE, "stale"),
    ],
)
def test_every_reason_has_its_advice(number, words, tmp_path):
    try:
        try:
            raise OSError(number, "said by the system", str(tmp_path / "file"))
        except OSError as error:
            raise RuntimeError("a library hides it") from error
    except RuntimeError as hidden:
        said = storage_error(hidden, tmp_path)
    assert words in str(said) and str(tmp_path / "file") in str(said) and said.exit_code == 74
    assert storage_error(ValueError("os error 28"), tmp_path) is None  # not of a library that writes files


def test_files_are_written_whole_or_not_at_all(tmp_path):
    target, pick = tmp_path / "file", random.Random(0)
    write_whole(target, "old")

    def parts():
        yield pick.randbytes(100)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="file"):
        write_whole(target, parts())
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]

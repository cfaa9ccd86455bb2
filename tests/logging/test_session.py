import subprocess

import pytest

from vlrl.logging.recorder import Recorder
from vlrl.logging.session import describe_session, revision
from vlrl.services.files import read_jsonl
from vlrl.services.redaction import blank


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("engine.api_key=sk-123", "engine.api_key=***"),
        ("services.judge.token: abc", "services.judge.token: ***"),
        ("Authorization=Bearer abc.def", "Authorization=Bearer ***"),
        ("url=https://me:pass@host/x", "url=https://me:***@host/x"),
        ("sampling.max_tokens=16", "sampling.max_tokens=16"),
        ("steps=20", "steps=20"),
    ],
)
def test_secrets_are_blanked_and_nothing_else(word, shown):
    assert blank(word) == shown


def test_every_start_is_a_line(tmp_path):
    for _ in range(2):
        Recorder(tmp_path, {}).close()
    first, second = read_jsonl(tmp_path / "sessions.jsonl")
    assert first["packages"]["torch"] == second["packages"]["torch"] and first["python"].startswith("3.")
    assert describe_session(["vlrl", "train"])["command"] == ["vlrl", "train"]


def commit(folder, file):
    (folder / file).write_text("x")
    for words in (
        ["init", "-q"],
        ["add", file],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", file],
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)


def test_revision_is_that_of_the_sources_alone(tmp_path):
    assert revision(tmp_path) is None
    commit(tmp_path, "other.py")
    assert revision(tmp_path) is None
    commit(tmp_path, "session.py")
    clean = revision(tmp_path)
    assert len(clean) == 12
    (tmp_path / "session.py").write_text("y")
    assert revision(tmp_path) == clean + "+"

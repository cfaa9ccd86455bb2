import http.server
import json
import threading
from pathlib import Path

import pytest
import tomllib

from vlrl.cli.doctor import MATRIX, Needs, compare, folder, hub, sandbox
from vlrl.engine.vllm.common import COMPATIBLE, check_versions
from vlrl.plugins.registry import ConfigError

NEEDS = Needs("2.8", "3", "pip install x")


@pytest.mark.parametrize(
    ("found", "optional", "status"),
    [
        ("2.8", False, "ok"),
        ("2.13.0+cpu", False, "ok"),
        ("2.7.1", False, "fail"),
        ("3.0.1", False, "warn"),
        (None, False, "fail"),
        (None, True, "warn"),
    ],
)
def test_versions_against_the_matrix(found, optional, status):
    finding = compare("x", found, Needs(NEEDS.low, NEEDS.below, NEEDS.fix, optional))
    assert finding.status == status
    assert bool(finding.fix) is (status != "ok")


def test_the_matrix_and_the_package_agree():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    declared = project["dependencies"] + [
        line for lines in project["optional-dependencies"].values() for line in lines
    ]
    lows = {
        line.partition(">=")[0].partition("[")[0]: line.partition(">=")[2].partition(",")[0]
        for line in declared
    }
    for name, needs in MATRIX.items():
        assert name == "python" or lows[name] == needs.low, name
    assert project["requires-python"] == f">={MATRIX['python'].low}"


def test_the_doctor_accepts_the_versions_of_vllm_that_the_engines_start_with():
    needs = MATRIX["vllm"]
    for entry, series in zip(COMPATIBLE, ("0.32", "0.31"), strict=True):
        for version in (f"{series}.0", f"{series}.9"):
            assert check_versions(version, "5.19.0") == entry
            told = compare("vllm", version, needs)
            assert told.status == "ok" and told.found.endswith("accepted: 0.31 to below 0.33)")
            assert ("engine 'vllm' alone" in told.found) is not entry.tells_versions
    for version in ("0.30.9", f"{needs.below}.0"):
        assert compare("vllm", version, needs).status != "ok"
        with pytest.raises(ConfigError, match="pip install 'vllm==0.32"):
            check_versions(version, "5.19.0")


def test_the_command_prints_lines_and_json(vlrl, tmp_path):
    code, text = vlrl("doctor", "--json", "--output", tmp_path / "new" / "runs")
    rows = {row["name"]: row for row in json.loads(text)}
    assert {"python", "torch", "transformers", "accelerate", "device", "memory", "disk", "output"} <= set(
        rows
    ) and "hub" not in rows
    assert rows["output"]["status"] == "ok" and code == int(
        any(row["status"] == "fail" for row in rows.values())
    )
    assert not (tmp_path / "new").exists()


def test_an_output_that_is_a_file_fails(tmp_path):
    (tmp_path / "file").write_text("")
    assert next(iter(folder(tmp_path / "file" / "runs"))).status == "fail"


def test_the_hub_answers_or_not():
    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(403)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.handle_request, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    assert hub(url).status == "ok"
    server.server_close()
    assert hub(url).status == "warn"


def test_the_sandbox_says_what_it_lacks(monkeypatch):
    from vlrl_rewards.code import isolation

    monkeypatch.setattr(isolation, "missing", lambda: [])
    assert [(item.status, item.fix) for item in sandbox()] == [("ok", "")]
    monkeypatch.setattr(
        isolation, "missing", lambda: ["no isolation: bwrap is not installed; install bubblewrap"]
    )
    assert [(item.status, item.found, item.fix) for item in sandbox()] == [
        ("warn", "no isolation: bwrap is not installed", "install bubblewrap")
    ]

"""A run that is followed in the browser: who may ask, what is told, and the page that changes."""

import http.client
import json
import threading
from contextlib import contextmanager

import pytest

from vlrl.logging.overlay import changed, flattened, grouped, overlay_text, read_run
from vlrl.logging.recorder import Recorder
from vlrl.logging.report import render_report, sections_of
from vlrl.logging.serve import HOST, ReportServer


def record(folder, steps, rise=0.1, start=1, **config):
    recorder = Recorder(folder, {"watch": {}})
    for step in range(start, start + steps):
        numbers = {"reward/total": rise * step, "reward/accuracy": rise * step, "tokens": 10}
        recorder.step(step, "rl", numbers, {"step": 0.5})
    recorder.close()
    lines = [f"{name}: {value}" for name, value in {"steps": 40, **config}.items()]
    (folder / "config.yaml").write_text("\n".join(lines))
    return folder


@contextmanager
def serving(*folders):
    server = ReportServer(folders, every=0.05)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def ask(server, path="/", token=None, host=None):
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=20)
    query = f"?token={server.token if token is None else token}"
    connection.request("GET", path + query, headers={"Host": host or f"{HOST}:{server.server_port}"})
    return connection.getresponse()


def test_only_who_has_the_token_is_answered_and_only_on_this_machine(tmp_path):
    with serving(record(tmp_path, 3)) as server:
        assert server.server_address[0] == "127.0.0.1" and server.token in server.url
        assert ask(server).status == 200
        assert ask(server, token="").status == ask(server, token="x").status == 403
        assert ask(server, token="%C3%A9").status == 403  # not ASCII
        assert ask(server, host="evil.example:80").status == 403  # a name that was pointed at this machine
        assert ask(server, "/../metrics.jsonl").status == 404
        page = ask(server).read().decode()
        assert "connect-src 'self'" in page and server.token not in page


def test_events_tell_of_each_step(tmp_path):
    with serving(record(tmp_path, 3)) as server:
        reply = ask(server, "/events")
        assert reply.getheader("Content-Type").startswith("text/event-stream")

        def told():
            line = reply.readline()
            while not line.startswith(b"data: "):
                line = reply.readline()
            return json.loads(line[6:])

        assert told() == {"step": 3, "total": 40, "finished": False}
        record(tmp_path, 2, start=4)
        states = [told()]
        while states[-1]["step"] < 5:
            states.append(told())
        (tmp_path / "summary.json").write_text("{}")
        while not states[-1]["finished"]:
            states.append(told())
        assert states[-1] == {"step": 5, "total": 40, "finished": True}


def test_sections_are_those_of_the_page(tmp_path):
    record(tmp_path, 8)
    with serving(tmp_path) as server:
        found = json.loads(ask(server, "/sections").read())
    own = sections_of(render_report(tmp_path).read_text())
    assert found["order"] == list(own) == list(found["sections"])
    assert {"facts", "story", "s-reward", "config"} <= own.keys()
    assert found["sections"]["story"] == own["story"] and "<b>8</b> steps of 40" in own["facts"]


def test_a_run_without_a_step_can_be_followed(tmp_path):
    (tmp_path / "config.yaml").write_text("steps: 4")
    with serving(tmp_path) as server:
        assert "No step yet." in ask(server).read().decode()


@pytest.mark.needs("chromium")
def test_a_real_browser_follows_the_run(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    import shutil

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with serving(record(tmp_path, 3)) as server, sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        tab = chromium.new_page()
        errors = []
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(server.url)
        tab.get_by_text("step 3 of 40; following").wait_for()
        record(tmp_path, 4, start=4)
        tab.get_by_text("step 7 of 40; following").wait_for()
        tab.locator("#facts b", has_text="7").first.wait_for()
        assert "phase rl 1–7" in tab.locator("#facts").inner_text() and not errors
        chromium.close()


# --- several runs -------------------------------------------------------------------------------------------


def test_runs_that_differ_in_the_seed_alone_are_one_line_with_a_band(tmp_path):
    for name, rise, seed, lr in (("a", 0.1, 1, 0.5), ("b", 0.3, 2, 0.5), ("c", 0.2, 1, 0.25)):
        (tmp_path / name).mkdir()
        record(tmp_path / name, 10, rise, seed=seed, optimizer=f"{{lr: {lr}}}", output=name)
    runs = [read_run(tmp_path / name) for name in "abc"]
    lines = grouped(runs)
    assert {name: len(members) for name, members in lines.items()} == {"a (2 seeds)": 2, "c": 1}
    assert changed(runs) == [
        ["setting", "a", "b", "c"],
        ["optimizer.lr", "0.5", "0.5", "0.25"],
        ["output", "a", "b", "c"],
        ["seed", "1", "2", "1"],
    ]
    page = overlay_text([tmp_path / name for name in "abc"])
    assert "a (2 seeds) ends with the highest reward in training, 1.9; c follows with 1.9" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    with pytest.raises(ValueError, match=r"no metrics\.jsonl"):
        overlay_text([tmp_path / "a", tmp_path])


def test_a_config_is_flattened_to_paths():
    tree = {"a": {"b": 1, "c": {}}, "d": [1, {"e": "x"}], "f": "text"}
    assert flattened(tree) == {"a.b": "1", "a.c": "{}", "d": '[1, {"e": "x"}]', "f": "text"}

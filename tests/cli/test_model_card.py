"""The model card of an export, and its upload to a hub that this test serves."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from vlrl.cli.export import export as command
from vlrl.config import load
from vlrl.interop.card import model_card, table, without_places
from vlrl.interop.export import export
from vlrl.interop.push import check_repo, list_files, push
from vlrl.pages.chart import number
from vlrl.plugins.registry import ConfigError
from vlrl.training import train

TOKEN = "hf_" + "abcdefghijklmnop" * 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home") / "runs" / "sums"
    names = ["base/rl", "models/tiny_text", "tasks/lab_arithmetic", "methods/grpo"]
    small = ["steps=2", "group_size=1", "prompts_per_step=2", "watch.checkpoint_every=1", "watch.live=false"]
    small += ["sampling.max_tokens=4", "data.heldout.arithmetic.count=4", f"output={folder}", "seed=11"]
    small += ["rollout={name: expert}", "policy_loss={name: zero_loss}", "loss_terms={nll: {name: nll}}"]
    train(load(names, small))
    return folder


@pytest.fixture
def evaluation(tmp_path):
    folder = tmp_path / "evaluation"
    folder.mkdir()
    result = {
        "suite": "mathvista",
        "profile": "official",
        "origin": "fixture: 12 rows",
        "figures": {"overall": 0.25},
    }
    said = {"model": str(tmp_path / "models" / "mine"), "results": [result]}
    (folder / "summary.json").write_text(json.dumps(said))
    return folder


def header_of(card):
    return yaml.safe_load(card.split("---\n")[1])


def test_a_card_says_what_was_trained_measured_and_not_tested(trained, evaluation):
    card = model_card(trained, 2, trained / "checkpoints" / "step-000002", evaluations=[evaluation])
    assert header_of(card) == {
        "library_name": "transformers",
        "tags": ["vlrl", "reinforcement-learning", "rlvr", "text"],
    }
    summary = json.loads((trained / "summary.json").read_text())
    before, after = (summary["heldout"][name]["arithmetic"] for name in ("start", "final"))
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    for said in (
        "# sums\n",
        "a model of family `text` that was built at random",
        "These are the weights of step 2; the run has 2 steps. Its preset follows arXiv:2402.03300.",
        "AutoModelForCausalLM.from_pretrained",
        "| `optimizer.lr` | 1e-6 |",
        "| `seed` | 11 |",
        "| heldout | arithmetic | `lab_arithmetic` | count: 4; split: heldout |",
        "| arithmetic | `numeric` | 1 |",
        "| step | phase | ",
        "\n| 2 | main | ",
        f" {number(rows[1]['grad_norm'])} |",
        f"| arithmetic | {before:g} | {after:g} | {after - before:g} |",
        "| mathvista | official | 0.25 | fixture: 12 rows | .../mine |",
        "- One seed (11)",
        "- mathvista: on a few packaged synthetic rows; that is no benchmark result.",
        "Safety, bias, other languages",
        "rollout_budget:",
    ):
        assert said in card, said
    assert str(trained.parent) not in card and ".../sums" in card


def test_a_card_of_an_earlier_step_says_that_it_was_not_scored(trained):
    card = model_card(trained, 1, trained / "checkpoints" / "step-000001")
    assert "These weights (step 1) were not scored as such" in card
    assert "The last column is of step 2; these weights are of step 1." in card
    assert "- No benchmark suite was run" in card


def test_a_run_without_scores_says_so(trained, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.yaml", "metrics.jsonl"):
        (bare / name).write_bytes((trained / name).read_bytes())
    card = model_card(bare, 2, bare)
    assert "No held-out rows were scored." in card and "One seed (unknown)" in card
    assert "- No held-out accuracy: nothing here says that the model is better than its base." in card
    with pytest.raises(ConfigError, match=r"holds no config\.yaml with metrics"):
        model_card(tmp_path, 2, tmp_path)
    with pytest.raises(ConfigError, match=r"--eval: .* holds no summary"):
        model_card(trained, 2, trained, evaluations=[tmp_path])


def test_a_card_names_the_base_and_keeps_secrets_and_places_to_itself(trained, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "metrics.jsonl").write_bytes((trained / "metrics.jsonl").read_bytes())
    config = yaml.safe_load((trained / "config.yaml").read_text())
    config["policy"] = {"name": "qwen2_5_vl", "model": "Qwen/Qwen2.5-VL-3B-Instruct"}
    config["engine"] = {"name": "openai", "api_key": TOKEN, "url": f"http://me:{TOKEN}@host"}
    config["data"]["train"]["own"] = {"name": "files", "path": "/srv/me/secret/rows.jsonl"}
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    card = model_card(copy, 2, copy, is_adapter=True, title="me/model")
    assert header_of(card) | {"tags": None} == {
        "library_name": "peft",
        "base_model": "Qwen/Qwen2.5-VL-3B-Instruct",
        "base_model_relation": "adapter",
        "tags": None,
    }
    assert "Trained from `Qwen/Qwen2.5-VL-3B-Instruct`" in card and '("me/model")' in card
    assert TOKEN not in card and "/srv/me" not in card and "path: .../rows.jsonl" in card


def test_places_keep_their_last_part():
    tree = {"a": ["/data/x/y.jsonl", "~/m", "C:\\u\\f.csv", "configs/a.yaml"], "b": 3, "c": "a / b", "d": "/"}
    assert without_places(tree) == {
        "a": [".../y.jsonl", ".../m", ".../f.csv", "configs/a.yaml"],
        "b": 3,
        "c": "a / b",
        "d": "/",
    }
    assert table(["a"], [["x|y\nz"], [None], [True], [0.00012]]).splitlines()[2:] == [
        "| x\\|y z |",
        "|  |",
        "| yes |",
        "| 1.2e-4 |",
    ]


def test_the_command_writes_a_card_alone(trained, tmp_path, capsys):
    command(trained, tmp_path / "card", 1, card_only=True)
    assert [path.name for path in (tmp_path / "card").iterdir()] == ["README.md"]
    assert "step 1" in capsys.readouterr().out


def test_a_dry_run_writes_the_folder_and_lists_its_files(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("vlrl.cli.export.push", lambda *_: pytest.fail("a dry run uploads nothing"))
    command(trained, tmp_path / "out", push_to_hub="me/sums", dry_run=True)
    said = capsys.readouterr().out.splitlines()
    files = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    assert {"README.md", "model.safetensors", "config.json"} <= set(files)
    assert said[2] == f"would upload {len(files)} files, {sum(files.values()) / 1e6:.1f} MB, to me/sums:"
    assert sorted(said[3:]) == sorted(f"  {name}  {size}" for name, size in files.items())
    assert "# me/sums\n" in (tmp_path / "out" / "README.md").read_text()
    assert str(trained.parent) not in (tmp_path / "out" / "vlrl_export.json").read_text()


class Hub(BaseHTTPRequestHandler):
    """A hub with no repository; it takes every file as a regular one."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.path, self.headers.get("Authorization"), body))
        if self.server.code != 200:
            return self.reply({"error": "no"}, self.server.code)
        name = self.path.rpartition("/")[0]
        if self.path == "/api/repos/create":
            self.reply({"url": f"{self.server.address}/me/sums", "id": "1", "name": "me/sums"})
        elif self.path.endswith("/preupload/main"):
            files = [file["path"] for file in json.loads(body)["files"]]
            self.reply(
                {"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in files]}
            )
        elif name.endswith("/commit"):
            oid = "a" * 40
            self.reply(
                {
                    "success": True,
                    "commitOid": oid,
                    "commitUrl": f"{self.server.address}/me/sums/commit/{oid}",
                }
            )
        else:
            self.reply({})

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Authorization"), b""))
        said = {"id": "me/sums", "sha": "b" * 40, "siblings": [], "tags": [], "private": True}
        self.reply(said, self.server.code)

    def reply(self, said, code=200):
        data = json.dumps(said).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked, server.code, server.address = [], 200, f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.address)  # read when it is imported
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("public", [False, True])
def test_an_upload_is_one_commit_of_the_folder(hub, trained, tmp_path, public):
    done = export(trained, tmp_path / "out", title="me/sums")
    address = push(done.folder, "me/sums", public, "Step 2")
    assert address == f"{hub.address}/me/sums/commit/{'a' * 40}"
    own = [token for path, token, _ in hub.asked if path.startswith(("/api/repos", "/api/models"))]
    assert own == [f"Bearer {TOKEN}"] * 3
    created = json.loads(next(body for path, _, body in hub.asked if path == "/api/repos/create"))
    assert (created["organization"], created["name"]) == ("me", "sums")
    assert created["visibility"] == ("public" if public else "private")
    (commit,) = (body for path, _, body in hub.asked if "/commit/" in path)
    lines = [json.loads(line) for line in commit.splitlines()]
    assert lines[0]["value"]["summary"] == "Step 2"
    sent = {line["value"]["path"]: base64.b64decode(line["value"]["content"]) for line in lines[1:]}
    assert sent == {path.name: path.read_bytes() for path in done.folder.iterdir()}
    assert not [name for name, data in sent.items() if TOKEN.encode() in data]


@pytest.mark.parametrize(
    "code, said", [(401, "hf auth login"), (403, "may not write there"), (404, "no such owner"), (500, "500")]
)
def test_a_hub_that_refuses_is_one_line_without_the_token(hub, tmp_path, code, said):
    hub.code = code
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=said) as caught:
        push(tmp_path, "me/sums")
    assert TOKEN not in str(caught.value) and "\n" not in str(caught.value)


def test_a_hub_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be uploaded .*is complete: check the network"):
        push(tmp_path, "me/sums")


def test_what_cannot_be_uploaded_is_refused_before(tmp_path):
    for name in ("sums", "me/", "a/b/c", "me/x.git", "-a/b", "me/a--b", "me/it is"):
        with pytest.raises(ConfigError, match="give OWNER/NAME"):
            check_repo(name)
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "/models/base"}')
    with pytest.raises(ConfigError, match="add --merge-lora"):
        list_files(tmp_path)
    with pytest.raises(ConfigError, match="belong to --push-to-hub"):
        command(tmp_path, tmp_path / "out", dry_run=True)
    with pytest.raises(ConfigError, match="leave out --push-to-hub"):
        command(tmp_path, tmp_path / "out", push_to_hub="me/sums", card_only=True)

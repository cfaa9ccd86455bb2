"""Contamination, judges, endpoints, held-out accuracy, the training callback, the command line."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from PIL import Image, ImageDraw
from typer.testing import CliRunner
from vlrl.eval.collect import Draw

from vlrl.engine.fake import Fake
from vlrl.engine.openai import OpenAI
from vlrl.eval import heldout, training
from vlrl.eval.contamination import check_rows, completion_probe, grams, near, picture_hash, rouge_l, training_data
from vlrl.eval.grade import Sampled, grade
from vlrl.eval.judge import Judge, errors, probe, report, verdict
from vlrl.eval.prompts import ask
from vlrl.registry import ConfigError, build
from vlrl.stages import Callback
from vlrl.types import Prompt, Request, Row, Sampling

LONG = "the quick brown fox jumps over the lazy dog while seven small birds watch from the old oak tree"


def test_grams():
    assert len(grams(LONG)) == 19 - 13 + 1 and grams("four words are few") == set() and len(grams("five words are just enough")) == 1
    assert grams(LONG.upper() + "!") == grams(LONG)


def picture(shift=0, size=(96, 64)):
    image = Image.new("RGB", (96, 64), "white")
    canvas = ImageDraw.Draw(image)
    for i in range(6):
        canvas.rectangle([i * 16 + shift, (i * 23) % 40, i * 16 + 9 + shift, (i * 23) % 40 + 20], fill=(40 * i, 200 - 30 * i, 90))
    return image.resize(size)


def test_picture_hashes_survive_resizing_and_tell_pictures_apart():
    import numpy as np

    a, b = picture_hash(picture()), picture_hash(picture(size=(480, 320)))
    assert near(a, np.array([b], dtype=np.uint64))
    assert not near(picture_hash(picture().transpose(Image.Transpose.FLIP_LEFT_RIGHT)), np.array([a], dtype=np.uint64))
    assert not near(a, np.array([], dtype=np.uint64))


def test_contamination_of_ones_own_training_set(tmp_path, fixture_rows):
    rows = fixture_rows("vsi_bench")
    question = rows.fields[8]["question"]
    training = tmp_path / "train.jsonl"
    training.write_text(
        "\n".join(json.dumps(row) for row in [{"messages": [{"role": "user", "content": f"Hello. {question} Thanks."}]}, {"text": LONG}])
    )
    found = check_rows(rows, training_data([training]))
    assert [hit["id"] for hit in found["texts"]] == ["8"] and found["training_rows"] == 2 and found["text_share"] == 0.1
    clean = tmp_path / "clean.jsonl"
    clean.write_text(json.dumps({"text": "These are frames of a video. " + LONG}))
    assert check_rows(rows, training_data([tmp_path / "clean.jsonl"]))["texts"] == []  # the template alone is no contamination
    with pytest.raises(ConfigError, match="no such file"):
        training_data([tmp_path / "gone.jsonl"])


def test_contaminated_pictures(tmp_path, fixture_rows):
    rows = fixture_rows("mathvista")
    (tmp_path / "train").mkdir()
    source = rows.folder / rows.fields[2]["decoded_image"]["path"]
    Image.open(source).resize((480, 320)).save(tmp_path / "train" / "a.jpg")
    (tmp_path / "train" / "rows.jsonl").write_text(json.dumps({"image": "a.jpg", "text": "a bar chart"}))
    found = check_rows(rows, training_data([tmp_path / "train"]))
    assert found["images"] == ["3"] and found["pictures"] == 6


def test_completion_probe_tells_a_memory_from_a_guess(fixture_rows):
    rows = fixture_rows("math500")
    whole = {f"math500/{name}": rows.suite.text(row).split() for name, row in zip(rows.ids, rows.fields)}

    def remember(request, index):
        words = whole[request.prompt.row.id]
        return " ".join(words[len(request.prompt.row.question.split()) :])

    assert completion_probe(rows, Fake(function=remember), Draw()) == {"questions": 2, "exact": 1.0, "rouge_l": 1.0}
    guess = completion_probe(rows, Fake(function=lambda request, index: "something else"), Draw())
    assert guess["exact"] == 0 and guess["rouge_l"] < 0.2
    assert rouge_l("a b c", "a x c") == pytest.approx(2 / 3) and rouge_l("", "a") == 0


def test_a_judge_stands_beside_the_rule(tmp_path, fixture_rows):
    rows = fixture_rows("mathvista")
    texts = {"1": "2", "2": "It is eight elevenths", "3": "1.2", "4": "no idea", "5": ":", "6": "B"}
    graded = grade(rows, {name: [Sampled(text)] for name, text in texts.items()}, "vlrl")
    asked = []

    def ask_model(prompts):
        asked.extend(prompts)
        return ["Yes." if "eight elevenths" in p or "\n2\n----" in p else "no" if "idea" in p else "hm" for p in prompts]

    judge = Judge("judge@2024-08-06", ask_model, tmp_path / "judge.jsonl", prices=(1.0, 2.0))
    assert judge.price(["x" * 4_000_000])["price"] == pytest.approx(1.000004)
    found = report(judge, graded, labels={"1": True, "2": True, "4": False})
    assert found["judge_only"] == ["2"] and "3" in found["rule_only"] and found["no_verdict"] == pytest.approx(3 / 6)
    assert found["errors"]["judge"] == {"false_accept": 0, "false_reject": 0, "labelled": 3} and found["errors"]["rule"]["false_reject"] == 0.5
    number = len(asked)
    assert report(Judge("judge@2024-08-06", ask_model, tmp_path / "judge.jsonl"), graded)["accuracy"] == found["accuracy"]
    assert len(asked) == number  # nothing is asked twice
    fooled = probe(Judge("gullible@1", lambda prompts: ["yes"] * len(prompts), tmp_path / "other.jsonl"), graded)
    assert set(fooled.values()) == {1.0} and ":" in fooled
    with pytest.raises(ConfigError, match="not pinned"):
        Judge("gpt-4o", ask_model, tmp_path / "x.jsonl")
    assert [verdict(t) for t in ("Yes", "no, since", "maybe", "")] == [True, False, None, None]
    assert errors({"a": True}, {"b": False})["labelled"] == 0


class Endpoint(BaseHTTPRequestHandler):
    """Fails once, then answers with the last word of the question and the number of pictures."""

    seen: list = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Endpoint.seen.append((body, self.headers.get("Authorization")))
        if len(Endpoint.seen) == 1:
            self.send_response(503)
            self.end_headers()
            return
        if body["model"] == "wrong":
            self.send_response(404)
            self.end_headers()
            self.wfile.write(b"no such model")
            return
        content = body["messages"][-1]["content"]
        pictures = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
        assert all(url.startswith("data:image/png;base64,") for url in pictures)
        reply = {"choices": [{"message": {"content": f"{content[-1]['text'].split()[-1]} {len(pictures)}"}, "finish_reason": "length"}]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(reply).encode())

    def log_message(self, *arguments):
        pass


def test_any_compatible_endpoint(fixture_rows, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    monkeypatch.setenv("VLRL_TEST_KEY", "secret")
    engine = OpenAI(url=url, model="m", key_env="VLRL_TEST_KEY", wait=0.01, parallel=1)
    prompt = ask(fixture_rows("vsi_bench"), 0).prompt
    (completion,) = engine.generate([Request(prompt, Sampling(temperature=0.5, max_tokens=7, stop=("\n",)), seed=5)])
    assert completion.text == "phrase. 16" and completion.finish == "length"  # the video's sixteen frames
    body, key = Endpoint.seen[-1]
    assert (body["temperature"], body["max_tokens"], body["seed"], body["stop"], key) == (0.5, 7, 5, ["\n"], "Bearer secret")
    with pytest.raises(RuntimeError, match="HTTP 404: no such model"):
        list(OpenAI(url=url, model="wrong", wait=0.01).generate([Request(prompt, Sampling())]))
    server.shutdown()
    with pytest.raises(ConfigError, match="cannot take over weights"):
        engine.sync(None)
    with pytest.raises(ConfigError, match=r"engine\.model"):
        OpenAI(url=url)
    with pytest.raises(ConfigError, match="must begin with http"):
        OpenAI(url="ftp://x", model="m")


def fake_run(tmp_path, **more):
    """As much of a Run as evaluation reads."""
    from vlrl.methods.core.prompt_template import Chat
    from vlrl.methods.core.sampling import Plain

    engine = Fake(function=lambda request, index: str(request.prompt.row.answer))
    run = SimpleNamespace(engine=engine, policy=None, seed=0, step=4, phase="rl", output=tmp_path, recorder=None, accelerator=None,
                          suites=training, scaffold=Chat(), decode=Plain(max_tokens=8), warn=lambda message: None, **more)  # fmt: skip
    run.make_rollout = lambda completion: SimpleNamespace(row=completion.request.prompt.row, rewards={}, text=completion.text)
    return run


def test_heldout_accuracy_is_greedy_and_by_the_first_weighted_slot(tmp_path, monkeypatch):
    import vlrl.loop

    seen = []

    def score(groups, run):
        for group in groups:
            (rollout,) = group.rollouts
            if rollout.row.id == "broken":
                group.rollouts.clear()  # as after a verifier that raised
            else:
                rollout.rewards = {"format": 0.0, "accuracy": float(rollout.row.id == "right")}

    monkeypatch.setattr(vlrl.loop, "score", score, raising=False)
    rewards = {"format": SimpleNamespace(weight=0.0), "accuracy": SimpleNamespace(weight=1.0)}
    run = fake_run(tmp_path, rewards=rewards)
    run.engine.function.__class__  # noqa: B018
    original = Fake.generate
    monkeypatch.setattr(Fake, "generate", lambda self, requests: (seen.extend(requests), original(self, requests))[1])
    rows = {"a": [Row("right", "?", "1", task="a"), Row("wrong", "?", "1", task="a")], "b": [Row("broken", "?", "1", task="b")], "c": []}
    assert heldout.evaluate(run, rows) == {"a": 0.5, "b": 0.0}
    assert all(request.sampling.temperature == 0 and request.n == 1 and request.sampling.max_tokens == 8 for request in seen)


def test_the_callback_evaluates_every_n_steps_and_goes_on(tmp_path):
    callback = build(Callback, {"name": "eval", "suites": ["vsi_bench"], "every": 2, "data": "fixture", "max_tokens": 8})
    run = fake_run(tmp_path)
    callback.check(run)
    run.step = 3
    assert callback(run, []) == {}
    run.step = 4
    metrics = callback(run, [])
    assert metrics["vsi_bench/official"] == 1.0 == metrics["vsi_bench/vlrl"] and metrics["vsi_bench/official/low"] < 1
    calls = run.engine.state["calls"]
    assert callback(run, []) == metrics and run.engine.state["calls"] == calls  # its journal has everything
    summary = json.loads((tmp_path / "eval" / "step-000004" / "summary.json").read_text())
    assert summary["phase"] == "rl" and {part["profile"] for part in summary["results"]} == {"official", "vlrl"}
    with pytest.raises(ConfigError, match="name at least one suite"):
        build(Callback, {"name": "eval"})
    with pytest.raises(ConfigError, match="Did you mean 'vsi_bench'"):
        build(Callback, {"name": "eval", "suites": ["vsi_bnch"], "data": "fixture"}).check(run)


def invoke(*words):
    from vlrl.eval.cli import app

    return CliRunner().invoke(app, list(words))


def test_the_command_line_scores_a_file(tmp_path):
    file = tmp_path / "r.jsonl"
    file.write_text('{"id": "1", "response": "2"}\n{"id": "2", "response": "(B)"}\n')
    out = invoke("score", str(file), "--suite", "mathvista", "--data", "fixture", "--profile", "official,vlrl", "--json")
    assert out.exit_code == 0, out.output
    results = {part["profile"]: part for part in json.loads(out.stdout)["results"]}
    assert results["official"]["scores"] == {"1": 1.0, "2": 1.0, "3": 0.0, "4": 0.0, "5": 0.0, "6": 0.0}
    assert results["official"]["floors"]["blank"] == pytest.approx(1 / 6) and results["vlrl"]["floors"]["blank"] == 0
    table = invoke("score", str(file), "--suite", "mathvista", "--data", "fixture", "-p", "official").output
    assert "33.33%" in table and "blank 16.7%" in table


def test_the_command_line_lists_and_refuses(tmp_path):
    listed = json.loads(invoke("suites", "--json").stdout)
    assert listed["vsi_bench"] == {"hub": "nyu-visionx/VSI-Bench", "split": "test", "profiles": ["official", "lmms_eval", "vlmevalkit", "vlrl"]}
    assert isinstance(invoke("--suite", "mathvista").exception, ConfigError)
    for words, message in (
        (("--suite", "mathvista", "--model", "x", "-k", "4"), "at temperature 0 draws the same"),
        (("--model", "x"), "name at least one"),
        (("-s", "mathvista", "-m", "no_such_model", "--data", "fixture", "-o", str(tmp_path / "o")), "no config, no model folder"),
        (("-s", "mathvista", "-m", "x", "-E", "oops"), "expected name=value"),
        (("-s", "mathvista", "-m", "x", "--protocol", "thinkng"), "Did you mean 'thinking'"),
    ):
        error = invoke(*words).exception
        assert isinstance(error, ConfigError) and message in str(error), (words, error)


def test_a_dry_run_states_the_costs_and_starts_nothing(fixture_rows):
    from vlrl.eval.collect import missing
    from vlrl.eval.plan import describe, plan

    from vlrl.eval.runner import _Nothing

    rows = fixture_rows("vsi_bench")
    draw = Draw(samples=2, temperature=1.0)
    served = SimpleNamespace(policy=None, engine=Fake(function=lambda request, index: "B"))
    found = plan([rows], missing([rows], draw, _Nothing()), draw, served, prices=(1.0, 10.0), probe=2)
    assert found["requests"] == 20 and found["response_tokens_at_most"] == 20 * 16 and found["prompt_tokens"] > 20_000
    assert found["price_at_most"] == pytest.approx((found["prompt_tokens"] + 3200) / 1e6, abs=1e-3)
    assert found["probe"]["requests"] == 2 and "20 requests" in describe(found) and "to pay" in describe(found)


def test_a_prompt_without_media_needs_no_policy():
    prompt = Prompt(Row("a", "hi"), ({"role": "user", "content": "hi"},))
    from vlrl.engine.openai import api_messages

    assert api_messages(prompt) == [{"role": "user", "content": "hi"}]

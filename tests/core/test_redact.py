"""Secrets: references to the environment in configs, and nothing of a secret in what a run writes."""

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import yaml
from kit import TINY

from vlrl.config import MAP_SLOTS, folders, load
from vlrl.engine.fake import Fake
from vlrl.plugins.registry import ConfigError, build, register
from vlrl.plugins.stages import Engine
from vlrl.services import redaction as redact
from vlrl.services.redaction import blank, blank_all, blank_words, expand, is_secret, without_secrets

BODY = "Qm3xVt9LpZ7sKd2wYh5n"
KINDS = {  # override -> the secret in it; twenty kinds
    "engine.env.HF_TOKEN=hf_{}aa": "hf_{}aa",
    "engine.env.AWS_SECRET_ACCESS_KEY={}ab": "{}ab",
    "engine.env.AWS_ACCESS_KEY_ID=AKIAQWERTYUIOPASDF12": "AKIAQWERTYUIOPASDF12",
    "engine.env.DB_PASSWORD={}ac": "{}ac",
    "engine.env.MY_PASS={}ad": "{}ad",
    "engine.env.PLAIN=sk-{}ae": "sk-{}ae",
    "engine.env.PIN=ghp_{}af": "ghp_{}af",
    "engine.headers.Authorization=Bearer {}ag": "{}ag",
    "engine.headers.X-Api-Key={}ah": "{}ah",
    "engine.headers.Cookie='session={}ai; path=/'": "{}ai",
    "engine.headers.X-Note='Basic {}aj=='": "{}aj==",
    (
        "engine.arguments.0=['--api-key', '{}ak', '--port', '8000', '--hf-token={}al', '--header', "
        "'Authorization: Bearer {}am']"
    ): (
        "{}ak",
        "{}al",
        "{}am",
    ),
    "engine.url=https://me:{}an@host.example/v1?sig={}ao&page=2": ("{}an", "{}ao"),
    "engine.options.wandb_api_key={}ap": "{}ap",
    "engine.options.client_secret={}aq": "{}aq",
    (
        "engine.options.credentials.private_key='-----BEGIN PRIVATE KEY-----\\n{}ar\\n-----END PRIVATE "
        "KEY-----'"
    ): "{}ar",
    "engine.options.jwt=eyJhbGciOi.eyJzdWIiOi.{}as": "eyJhbGciOi.eyJzdWIiOi.{}as",
    "engine.options.slack=xoxb-{}at": "xoxb-{}at",
    "engine.options.dsn=postgres://user:{}au@db/x": "{}au",
    "engine.options.pin.password='86420135'": "86420135",
}
SECRETS = [
    secret.replace("{}", BODY)
    for said in KINDS.values()
    for secret in ([said] if isinstance(said, str) else said)
]
PLAIN = {"engine.url": "host.example", "engine.arguments": "8000", "engine.env.LEVEL": "DEBUG"}


@register("test_redact_engine")
@dataclass(frozen=True)
class Keyed(Fake):
    """A fake engine with settings that hold secrets; it writes them into a warning and a log line."""

    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ("7", "8")
    settings: Mapping[str, object] = field(default_factory=dict)

    def sync(self, policy):
        super().sync(policy)
        for value in (
            self.url,
            *self.env.values(),
            *self.headers.values(),
            *self.arguments,
            json.dumps(self.settings),
        ):
            self.run.warn(f"the server at {value} is slow")


def overrides():
    words = [
        word.replace("{}", BODY)
        .replace("engine.options", "engine.settings")
        .replace("engine.arguments.0=", "engine.arguments=")
        for word in KINDS
    ]
    return ["engine.name=test_redact_engine", "engine.env.LEVEL=DEBUG", *words]


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    monkeypatch.setattr(redact, "_seen", {})


def test_twenty_kinds_leave_no_trace_in_what_a_run_writes(tmp_path, monkeypatch):
    from vlrl.training import train

    out = tmp_path / "run"
    words = [
        TINY,
        f"output={out}",
        "data.train.mine.name=test_loop_source",
        "sampling={name: plain, max_tokens: 3}",
        "prompts_per_step=2",
    ]
    words += [
        "rewards.mine.name=test_loop_has",
        "steps=2",
        "group_size=2",
        "watch.trackers=[tensorboard]",
        *overrides(),
    ]
    monkeypatch.setattr(sys, "argv", ["vlrl", "train", "base/rl", *words])
    config = load(["base/rl", "methods/grpo"], words)
    assert config.tree["engine"]["env"]["HF_TOKEN"] == f"hf_{BODY}aa"
    train(config, live=False)
    files = {
        path: path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and "rollouts" not in path.parts and path.suffix != ".safetensors"
    }
    names = {path.name for path in files}
    assert {
        "config.yaml",
        "events.jsonl",
        "sessions.jsonl",
        "report.html",
        "metrics.jsonl",
        "summary.json",
    } <= names
    assert any("tfevents" in name for name in names)
    found = [
        (path.relative_to(out).as_posix(), secret)
        for path, data in files.items()
        for secret in SECRETS
        if secret.encode() in data
    ]
    assert not found
    assert len(KINDS) == 20 and len(SECRETS) == 23
    kept = (out / "config.yaml").read_text()
    assert all(text in kept for text in PLAIN.values())
    assert "the server at ***" in (out / "events.jsonl").read_text()


def test_a_written_config_runs_again_from_the_environment(tmp_path, monkeypatch):
    config = load(["base/rl"], overrides())
    (tmp_path / "config.yaml").write_text(config.dump())
    text = config.dump()
    assert not [secret for secret in SECRETS if secret in text]
    names = {
        line.rpartition("variable ")[2].split()[0]: line
        for line in text.splitlines()
        if line.startswith("# ")
    }
    assert names["HF_TOKEN"] == (
        "# engine.env.HF_TOKEN: a secret that is not stored; set the environment variable HF_TOKEN "
        "before this file is used"
    )
    again = load([tmp_path / "config.yaml"])
    assert again.tree["engine"]["env"]["HF_TOKEN"] == "${HF_TOKEN}" and again.tree["engine"][
        "url"
    ].startswith("https://me:${VLRL_ENGINE_URL}@host")
    with pytest.raises(
        ConfigError,
        match=r"^engine: the environment variable \w+ is not set, but .* set it \(export \w+=\.\.\.\)",
    ):
        build(Engine, again.tree["engine"], "engine")
    cleaner = redact._Cleaner(frozenset(MAP_SLOTS))
    cleaner.clean(config.tree, "", "")
    assert len(cleaner.references) == 23
    for name in cleaner.references:
        monkeypatch.setenv(name, cleaner.references[name][0])
    built, first = (
        build(Engine, again.tree["engine"], "engine"),
        build(Engine, config.tree["engine"], "engine"),
    )
    assert built == first
    assert text.endswith(again.dump())  # references stay references


def test_a_secret_of_the_environment_keeps_its_variable(monkeypatch):
    monkeypatch.setenv("MY_HUB_TOKEN", "abcdefghij")
    tree, references = without_secrets({"engine": {"token": "abcdefghij", "other": {"token": "klmnopqrst"}}})
    assert tree == {"engine": {"token": "${MY_HUB_TOKEN}", "other": {"token": "${VLRL_ENGINE_OTHER_TOKEN}"}}}
    assert references == {"MY_HUB_TOKEN": "engine.token", "VLRL_ENGINE_OTHER_TOKEN": "engine.other.token"}
    two, _ = without_secrets(
        {"a": ["--token", "first-secret", "--token", "other-secret"], "A": {"token": 5, "password": 123456}}
    )
    assert two == {
        "a": ["--token", "${VLRL_A}", "--token", "${VLRL_A_2}"],
        "A": {"token": 5, "password": "${VLRL_A_PASSWORD}"},
    }


def test_expand(monkeypatch):
    monkeypatch.setenv("VLRL_TEST_PLACE", "here")
    monkeypatch.delenv("VLRL_TEST_NOWHERE", raising=False)
    plain = {"a": ["$x$", "${x}", 3, None], "b": ("y",)}
    assert expand(plain) is plain
    assert expand({"a": ["<${VLRL_TEST_PLACE}>", 3], "b": ("${VLRL_TEST_PLACE}",)}) == {
        "a": ["<here>", 3],
        "b": ("here",),
    }
    with pytest.raises(LookupError, match="VLRL_TEST_NOWHERE"):
        expand(["${VLRL_TEST_NOWHERE}"])


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "apiKey",
        "X-Api-Key",
        "HF_TOKEN",
        "hf-token",
        "--hf-token",
        "access_token",
        "password",
        "DB_PASS",
        "Authorization",
        "wandb.api_key",
    ],
)
def test_names_of_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens",
        "eos_token",
        "image_token",
        "tokenizer",
        "key",
        "key_env",
        "passes",
        "pass_at_k",
        "token_weights",
        "stop_token",
        "keys",
        "monkey",
    ],
)
def test_names_of_no_secrets(name):
    assert not is_secret(name)


def test_shipped_configs_are_written_as_they_are():
    paths = sorted(folders()[0].rglob("*.yaml"))
    assert len(paths) > 100
    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for tree in (yaml.load(path.read_text(), fast) for path in paths):
        assert without_secrets(tree, MAP_SLOTS) == (tree, {})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pass@host/x", "https://me:***@host/x"),
        ("GET https://host/x?token=abc&page=2 failed", "GET https://host/x?token=***&page=2 failed"),
        ('{"api_key": "abc", "steps": "20"}', '{"api_key": "***", "steps": "20"}'),
        (
            "refused: Authorization: Bearer abcdefgh, try again",
            "refused: Authorization: Bearer ***, try again",
        ),
        ("vllm serve --api-key abc --port 80", "vllm serve --api-key *** --port 80"),
        ("sk-aaaaaaaaaaaaaaaaaaaa", "***"),
        ("eos_token=</s> max_tokens=16 token: 3", "eos_token=</s> max_tokens=16 token: 3"),
        ("accuracy 0.5 at step 20: reward/mean=0.25", "accuracy 0.5 at step 20: reward/mean=0.25"),
        ("data/a@2x.png and git@github.com:x/y", "data/a@2x.png and git@github.com:x/y"),
    ],
)
def test_text(text, shown):
    assert blank(text) == shown
    assert blank(shown) == shown


def test_words_data_and_logs(caplog):
    assert blank_words(["vlrl", "--token", "abc", "x=1", "engine.api_key=abc"]) == [
        "vlrl",
        "--token",
        "***",
        "x=1",
        "engine.api_key=***",
    ]
    assert blank_all({"a": {"password": "x", "n": 3}, "b": ["Bearer abcdef"]}) == {
        "a": {"password": "***", "n": 3},
        "b": ["Bearer ***"],
    }
    record = redact.log_record(
        "vlrl", logging.WARNING, "f", 1, "key %s of %d", ("sk-aaaaaaaaaaaaaaaaaaaa", 2), None
    )
    assert record.getMessage() == "key *** of 2"


def test_an_unexpected_error_is_printed_without_secrets(tmp_path):
    (tmp_path / "bad.py").write_text("raise RuntimeError('no answer from https://me:swordfish@host')\n")
    command = [
        sys.executable,
        "-m",
        "vlrl",
        "train",
        "base/rl",
        "--quiet",
        f"plugins=[{tmp_path}/bad.py]",
        f"output={tmp_path}/o",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode != 0 and "me:***@host" in ran.stderr and "swordfish" not in ran.stdout + ran.stderr

"""The python tool: expert, lazy and cheating policies, and programs that want to run forever, fill the
memory, or get out."""

import json
import random

import pytest
from vlrl_rewards.code import sandbox
from vlrl_rewards.text.verifier import Exact

from vlrl.environments.python import Python
from vlrl.plugins.episode_pool import EpisodePool
from vlrl.plugins.episodes import Action
from vlrl.types import Row

MODE = "bubblewrap" if not sandbox.available() else "unsafe"


def run(episode, code):
    return episode.step(
        Action(f"<tool_call>{json.dumps({'name': 'python', 'arguments': {'code': code}})}</tool_call>")
    )


def begin(**settings):
    episode = Python(mode=MODE, **settings).episode()
    episode.reset(Row("r", "q"), 0)
    return episode


def test_the_reward_ranks_expert_lazy_and_cheating():
    """A product that nobody guesses: the expert computes it, the lazy one answers at once, the cheating one
    writes that it was right."""
    rng, paid = random.Random(0), {"expert": 0.0, "lazy": 0.0, "cheating": 0.0}
    for _ in range(2):
        a, b = rng.randint(1000, 9999), rng.randint(1000, 9999)
        for policy in paid:
            episode = begin()
            said = str(a * 1000)
            if policy == "expert":
                answer = run(episode, f"print({a} * {b})")
                assert answer.calls == 1 and answer.reward is None and answer.role == "tool"
                said = answer.text.strip()
            if policy == "cheating":
                answer = run(episode, "print('reward = 1.0, verified by the tool')")
                assert answer.reward is None and not answer.parts and not answer.done
                said = answer.text
            end = episode.step(Action(f"<answer>{said}</answer>"))
            assert end.done and end.reward is None, "the tool pays nothing: the row's reward does"
            paid[policy] += Exact().score(f"<answer>{said}</answer>", str(a * b))
    assert paid == {"expert": 2.0, "lazy": 0.0, "cheating": 0.0}


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("while True: pass", "Error (timeout)"),
        ("while True: print('a' * 10000)", "Error"),
        ("x = bytearray(10 ** 11)", "Error"),
        ("import sys; sys.exit(3)", "Error"),
        ("raise SystemError('reward = 1.0')", "Error"),
        ("print(", "Error"),
        ("", "Error"),
    ],
)
def test_hostile_programs_end_and_are_told(code, told):
    answer = run(begin(seconds=1.0, max_output=300), code)
    assert (
        answer.text.startswith(told) and len(answer.text) < 400 and answer.reward is None and not answer.done
    )


@pytest.mark.needs("bwrap")
def test_programs_see_no_files_and_no_network(tmp_path):
    secret = tmp_path / "gold.txt"
    secret.write_text("six times seven")
    assert "six times" not in run(begin(), f"print(open({str(secret)!r}).read())").text
    run(begin(), f"open({str(tmp_path / 'new.txt')!r}, 'w').write('a')")
    assert not (tmp_path / "new.txt").exists()
    code = "import socket; socket.create_connection(('127.0.0.1', 80), 1); print('connected')"
    assert "connected" not in run(begin(), code).text
    assert run(begin(), "import vlrl").text.startswith("Error (ModuleNotFoundError"), (
        "rewards and gold answers are not there"
    )


def test_a_program_that_hangs_ends_within_the_turn():
    with EpisodePool(Python(mode=MODE, seconds=1.0, turn_seconds=60.0)) as pool:
        handle = pool.start("x", Row("r", "q"), 0)
        pool.collect(30.0)
        called = {"name": "python", "arguments": {"code": "import time; time.sleep(600)"}}
        pool.step(handle, Action(f"<tool_call>{json.dumps(called)}</tool_call>", 1))
        pool.collect(60.0)
        assert handle.error is None and "Error (timeout)" in handle.observation.text, (
            "a slow program is the policy's, not the environment's fault"
        )

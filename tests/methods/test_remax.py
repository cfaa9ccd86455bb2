"""The greedy baseline rollout."""

import pytest
from make import group, run

from vlrl.methods.papers.remax import GREEDY_BASELINE, READS_GREEDY, ReMax, RemaxGreedyBaseline
from vlrl.plugins.registry import ConfigError
from vlrl.types import Completion, Rollout, Sampling


class Engine:
    def __init__(self):
        self.requests = []

    def generate(self, requests):
        self.requests += requests
        for request in requests:
            for index in range(request.n):
                yield Completion(request, index, [1, 2], [-1.0, -1.0], "x", "stop")


def test_one_greedy_rollout_per_prompt_that_is_not_trained():
    engine = Engine()
    sampling = Sampling(temperature=0.9, top_p=0.5)
    parts = run(
        engine=engine,
        seed=0,
        step=1,
        sampling=lambda prompt, attempt: sampling,
        make_rollout=lambda c: Rollout(c.request.prompt, c.ids),
    )
    a, b = RemaxGreedyBaseline()([group(0).prompt, group(0, name="other").prompt], [2, 0], parts)
    assert [(r.source, r.trained) for r in a] == [
        ("policy", True),
        ("policy", True),
        ("greedy", False),
    ] and len(b) == 0
    assert [r.sampling.temperature for r in engine.requests] == [0.9, 0.0] and engine.requests[
        -1
    ].sampling.top_p == 1.0
    a.set_untrained_aside()
    assert len(a) == 2 and [r.source for r in a.untrained] == ["greedy"]


def test_the_greedy_rollout_needs_a_reader():
    with pytest.raises(ConfigError, match="no plug-in of this config reads"):
        RemaxGreedyBaseline().check(run())
    RemaxGreedyBaseline().check(run(capabilities=[READS_GREEDY]))
    assert ReMax().requires == RemaxGreedyBaseline().provides == (GREEDY_BASELINE,) and ReMax().provides == (
        READS_GREEDY,
    )

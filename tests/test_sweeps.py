"""The sample of a sweep is the same in every run, has a case of each test, and moves little with its cases
that come and go."""

from dataclasses import dataclass, field

from sweeps import SHARE, sampled


@dataclass(frozen=True)
class Case:
    nodeid: str
    keywords: frozenset = field(default_factory=frozenset)


def sweep(test, count):
    return [Case(f"{test}[{number}]", frozenset({"sweep"})) for number in range(count)]


def test_each_sweep_keeps_its_share_and_the_rest_is_kept_whole():
    plain = [Case(f"t.py::plain[{number}]") for number in range(7)]
    large, small, one = sweep("t.py::large", 101), sweep("t.py::small", 3), sweep("t.py::one", 1)
    kept = sampled([*plain, *large, *small, *one])
    assert kept >= {*plain, *one}
    assert len(kept & set(large)) == 101 // SHARE + 1 and len(kept & set(small)) == 1
    assert kept == sampled([*one, *small, *reversed(large), *plain])


def test_a_new_case_takes_the_place_of_at_most_one_other():
    few, more = (sampled(sweep("t.py::large", count)) for count in (99, 100))
    assert len(few) == len(more) == 20 and len(few - more) <= 1


def test_every_case_is_in_the_sample_of_some_test():
    """The id of the test counts as well: what one sweep leaves out another has."""
    tests = [sampled(sweep(f"t.py::{name}", 20)) for name in "abcdefghijklmnopqrstuvwxyz"]
    assert {case.nodeid.partition("[")[2] for kept in tests for case in kept} == {
        f"{number}]" for number in range(20)
    }


def test_make_test_samples_and_another_stage_runs_all_cases(pytestconfig):
    lines = (pytestconfig.rootpath / "Makefile").read_text().splitlines()
    of = {
        line.split(":")[0]: lines[number + 1] for number, line in enumerate(lines) if line.startswith("test")
    }
    assert (
        "--sampled" in of["test"] and "-m sweep" in of["test-sweep"] and "--sampled" not in of["test-sweep"]
    )
    assert "make test-sweep" in (pytestconfig.rootpath / ".ci" / "run").read_text()

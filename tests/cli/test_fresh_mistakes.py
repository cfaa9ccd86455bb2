"""Of the fresh mistakes at least 66 of 70 end in one line within two seconds of CPU; none starts a run."""

import pytest
from fresh_mistakes import MISTAKES, verdict, write_files

SAMPLE = (
    "rewards emptied",
    "a resumed run with a reward turned round",
    "a reward that returns nothing",
    "a tool that raises",
    "family text on a vision folder",
    "a field that is not there",
    "pictures for a text model",
    "a head size that vLLM has not",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    here = tmp_path_factory.mktemp("fresh")
    write_files(here)
    return here


@pytest.mark.parametrize("name", SAMPLE)
def test_a_mistake_ends_in_one_line(name, folder):
    fine, said = verdict(name, folder)
    assert fine, said
    assert not (folder / "out" / "metrics.jsonl").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)  # 74 commands, which on a busy machine take ten seconds each
def test_sixty_six_of_seventy(folder):
    told = {name: verdict(name, folder) for name in MISTAKES}
    bad = {name: said for name, (fine, said) in told.items() if not fine}
    assert len(MISTAKES) >= 70 and len(bad) / len(MISTAKES) <= 4 / 70, bad
    assert not (folder / "out" / "metrics.jsonl").exists()

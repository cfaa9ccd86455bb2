"""No hostile file is read wrongly without a word: each row is what its file says, or is refused with a
reason."""

import hostile_files
import pytest
from hostile_files import cases
from hostile_kit import REFUSED, Case, outcome

EVERY = cases()


@pytest.mark.parametrize("make", hostile_files.MAKERS, ids=lambda make: make.__name__)
def test_nothing_is_read_wrongly_without_a_word(make, tmp_path):
    made = list(make())
    assert len(made) > 30
    wrong = {case.name: outcome(case, tmp_path / str(number)) for number, case in enumerate(made)}
    assert not {name: faults for name, faults in wrong.items() if faults}


def test_there_are_two_hundred_files_and_more():
    assert len({case.name for case in EVERY}) == len(EVERY) > 500


@pytest.mark.parametrize(
    ("content", "rows", "fault"),
    [
        (b'{"question": "?", "answer": "1.5"}\n', [{"answer": "1.50"}], "answer is '1.5', the file says"),
        (b'{"question": "?", "answer": 1}\n', [{"answer": True}], "answer is 1, the file says True"),
        (b'{"question": "?", "answer": "1"}\n', [REFUSED], "record 0 is used"),
        (b'{"question": "?", "answer": "1"}\n', [], "1 rows of 0 records, and no reason"),
        (b'{"question": "?", "answer": "1"}\nx\n', [{"answer": "2"}], "row rows-0 is in no record"),
        (b'{"question": "?"}\n', [{"answer": "2"}], ""),
        (b"", [{"answer": "2"}], ""),
    ],
)
def test_a_wrong_reading_is_found(tmp_path, content, rows, fault):
    found = outcome(Case("one", ".jsonl", content, rows), tmp_path)
    assert (fault in found[0]) if fault else not found


def test_a_file_that_must_be_read_is_not_refused(tmp_path):
    assert outcome(Case("one", ".jsonl", b"", [], whole=False), tmp_path)[0].startswith("refused as a whole")

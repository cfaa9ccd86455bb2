"""Golden modules that a data set pickles: plain data is read, nothing is called."""

import pickle

import pytest
from vlrl_data.record_families import recognise
from vlrl_data.record_families.chat import unpickled

from vlrl.types import RowError

GOLD = {"answer": {"code": "module a; endmodule", "input_port_width": {("b", 2), ("a", 1)}, "clock": None}}


class Attack:
    def __reduce__(self):
        return print, ("called",)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_containers_text_and_numbers_are_read(protocol):
    read = unpickled(pickle.dumps(GOLD, protocol))
    assert read == {"answer": {**GOLD["answer"], "input_port_width": [["a", 1], ["b", 2]]}}


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80", b"not a pickle", pickle.dumps(Attack()), pickle.dumps(GOLD)[:-9]],
    ids=["empty", "head", "text", "attack", "cut"],  # the bytes of a set differ from process to process
)
def test_anything_else_is_a_row_that_cannot_be_used(data, capsys):
    with pytest.raises(RowError, match="pickled"):
        unpickled(data)
    assert capsys.readouterr().out == ""


def test_the_family_is_recognised_by_its_bytes():
    record = {
        "prompt": [{"role": "user", "content": "q"}],
        "reward_model": {"ground_truth": pickle.dumps(GOLD)},
    }
    family, reason = recognise(record)
    assert family.name == "codev_r1" and "pickled" in reason
    assert family.draft(record)["answer"]["answer"]["code"] == "module a; endmodule"
    assert recognise(record | {"reward_model": {"ground_truth": "4"}})[0].name == "verl"

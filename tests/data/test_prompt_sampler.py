"""Prompt sampler `shuffle`: complete epochs, mixture weights, resumption, the same order on any number of
ranks."""

from collections import Counter

import pytest
from run_kit import View

from vlrl.methods.common.row_order import Mixture, permute, shares
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import PromptSampler
from vlrl.types import Row, RowError


def rows(name, count):
    return [Row(f"{name}{i}", "?", answer=i) for i in range(count)]


def sampler_for(parts, seed=0, weights=None, **options):
    sampler = build(PromptSampler, {"name": "shuffle", **options})
    sampler.setup(View(rows=parts, source_weights=weights or {}, seed=seed))
    return sampler


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_permutation_is_one(size):
    assert sorted(permute(i, size, "k") for i in range(size)) == list(range(size))


def test_permutation_depends_on_key():
    orders = {tuple(permute(i, 20, f"{key}") for i in range(20)) for key in range(50)}
    assert len(orders) == 50


def test_permutation_is_unbiased():
    """Where index 0 of 8 lands over 4000 keys: each place about 500 times (5 standard deviations)."""
    counts = Counter(permute(0, 8, str(key)) for key in range(4000))
    assert len(counts) == 8 and all(
        abs(count - 500) < 5 * (4000 * 1 / 8 * 7 / 8) ** 0.5 for count in counts.values()
    )


@pytest.mark.parametrize(
    ("sizes", "weights", "temperature", "expected"),
    [
        ([30, 10], [0, 0], 1.0, [30, 10]),
        ([30, 10], [1, 3], 1.0, [10, 30]),
        ([30, 10, 5], [1, 1, 0], 1.0, [20, 20, 5]),
        ([90, 10], [0, 0], 1e9, [50, 50]),
        ([81, 16], [0, 0], 2.0, [67, 30]),  # 97 * 9 / 13 = 67.15
        ([1, 1, 1], [1, 1, 1], 1.0, [1, 1, 1]),
    ],
)
def test_shares(sizes, weights, temperature, expected):
    assert shares(sizes, weights, temperature) == expected


def test_every_row_once_per_epoch_and_other_order_each_time():
    sampler = sampler_for({"a": rows("a", 7), "b": rows("b", 5)})
    epochs = [[row.id for row in sampler(12)] for _ in range(3)]
    assert all(len(set(epoch)) == 12 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert sampler.metrics() == {"data/epoch": 3.0}


def test_weighted_sources_walk_through_all_their_rows():
    """100 rows, of which an epoch takes 20: five epochs show each exactly once."""
    sampler = sampler_for({"big": rows("b", 100), "small": rows("s", 20)}, weights={"big": 1.0, "small": 5.0})
    seen = Counter(row.id for row in sampler(120 * 5))
    assert {seen[f"b{i}"] for i in range(100)} == {1} and sum(seen[f"s{i}"] for i in range(20)) == 500


def test_resume_with_other_ranks():
    parts = {"a": rows("a", 10)}
    whole = [row.id for row in sampler_for(parts)(20)]
    first = sampler_for(parts)
    head = [row.id for row in first(9)]
    state = first.state_dict()
    second = [sampler_for(parts) for _ in range(2)]
    for sampler in second:
        sampler.load_state_dict(state)
    shared = [sampler(11)[rank::2] for rank, sampler in enumerate(second)]
    assert head == whole[:9]
    assert sorted(row.id for part in shared for row in part) == sorted(whole[9:])


def test_seed_changes_order():
    parts = {"a": rows("a", 30)}
    assert (
        [r.id for r in sampler_for(parts)(30)]
        == [r.id for r in sampler_for(parts)(30)]
        != [r.id for r in sampler_for(parts, seed=1)(30)]
    )


def test_unshuffled_keeps_order():
    assert [row.id for row in sampler_for({"a": rows("a", 3), "b": rows("b", 2)}, shuffle=False)(6)] == [
        "a0",
        "a1",
        "a2",
        "b0",
        "b1",
        "a0",
    ]


class Holey(list):
    """Row 2 raises RowError when it is drawn."""

    def __getitem__(self, index):
        if index == 2:
            raise RowError("broken")
        return super().__getitem__(index)


def test_unusable_rows_are_skipped_and_counted():
    sampler = sampler_for({"a": Holey(rows("a", 5))})
    assert sorted(row.id for row in sampler(4)) == ["a0", "a1", "a3", "a4"]
    sampler(4)
    assert sampler.metrics()["data/skipped"] >= 1
    assert sampler.state_dict()["skipped"] == sampler.metrics()["data/skipped"]


class Broken(list):
    def __getitem__(self, index):
        raise RowError("broken")


def test_nothing_usable_is_an_error_and_not_a_hang():
    with pytest.raises(ConfigError, match="without a usable row"):
        sampler_for({"a": Broken(rows("a", 5))})(1)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"workers": -1}, {"ahead": 0}, {"wokers": 1}])
def test_bad_options(options):
    with pytest.raises(ConfigError, match="sampler"):
        build(PromptSampler, {"name": "shuffle", **options})


def test_empty_source_and_none():
    with pytest.raises(ConfigError, match=r"data\.train\.a"):
        Mixture({"a": []}, {}, 0)
    with pytest.raises(ConfigError, match="no source"):
        Mixture({}, {}, 0)


def test_ten_million_rows_in_constant_memory():
    class Many:
        def __len__(self):
            return 10_000_000

        def __getitem__(self, index):
            return Row(str(index), "?")

    sampler = sampler_for({"a": Many()})
    assert len({row.id for row in sampler(1000)}) == 1000
    assert sampler.state_dict() == {"position": 1000, "skipped": 0}

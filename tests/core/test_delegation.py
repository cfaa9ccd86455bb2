"""Attributes that are read from another object."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vlrl.services.delegation import Of


class View:
    seed: Of[int] = Of("owner")
    number: Of[int] = Of("owner", "count")

    def __init__(self, owner):
        self.owner = owner


def test_they_are_the_owners_now_and_cannot_be_set_or_deleted():
    owner = SimpleNamespace(seed=1, count=2)
    view = View(owner)
    assert (view.seed, view.number) == (1, 2)
    owner.seed = 3
    assert view.seed == 3
    with pytest.raises(AttributeError, match="View.seed is that of its owner; set it there"):
        view.seed = 4
    with pytest.raises(AttributeError, match="View.number is that of its owner"):
        del view.number
    assert vars(owner) == {"seed": 3, "count": 2}


def test_a_missing_attribute_is_named():
    view = View(SimpleNamespace(seed=1))
    with pytest.raises(AttributeError, match="count"):
        view.number  # noqa: B018
    assert not hasattr(view, "number")

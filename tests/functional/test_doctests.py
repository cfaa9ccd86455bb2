"""The examples in the docstrings of vlrl.functional run and give what they show; every public function has
one."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import vlrl.functional

MODULES = sorted(info.name for info in pkgutil.iter_modules(vlrl.functional.__path__))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"vlrl.functional.{name}")
    result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.failed == 0


@pytest.mark.parametrize("name", vlrl.functional.__all__)
def test_every_function_has_an_example_and_says_what_it_takes_and_gives(name):
    text = getattr(vlrl.functional, name).__doc__
    assert ">>> " in text
    for heading in ("Args:", "Returns:", "Raises:"):
        assert heading in text, heading


def test_the_table_of_contents_is_complete():
    """`__all__` names all that the modules offer, and nothing else but what `exact` has for Python floats."""
    offered = {
        key
        for module in MODULES
        if module not in ("checks", "exact")
        for key, value in vars(importlib.import_module(f"vlrl.functional.{module}")).items()
        if callable(value)
        and not key.startswith("_")
        and getattr(value, "__module__", "") == f"vlrl.functional.{module}"
    }
    assert offered - {"Counts"} == set(vlrl.functional.__all__)

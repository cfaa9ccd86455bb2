"""Configs: YAML files and overrides, merged into one tree per phase and checked."""

from vlrl.config.config import MAP_SLOTS, OTHER_KEYS, SLOTS, Config
from vlrl.config.files import find, folders
from vlrl.config.loading import load, own_tree
from vlrl.config.merging import at, first_origin, leaves

__all__ = [
    "MAP_SLOTS",
    "OTHER_KEYS",
    "SLOTS",
    "Config",
    "at",
    "find",
    "first_origin",
    "folders",
    "leaves",
    "load",
    "own_tree",
]

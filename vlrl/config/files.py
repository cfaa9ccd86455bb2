"""Where configs are: files by path or by name, and those of `configs` that are no config of a run."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path
from typing import Any

from vlrl.config.config import OTHER_KEYS, SLOTS
from vlrl.config.merging import Tree
from vlrl.config.settings import Settings, nested_fields
from vlrl.plugins.registry import ConfigError, suggest

_DATA = (".jsonl", ".ndjson", ".parquet", ".csv", ".tsv", ".arrow", ".feather")


def folders() -> list[Path]:
    """Where configs are found by name: the working directory's `configs`, then those of the package."""
    return [folder for folder in (Path("configs"), *_shipped()) if folder.is_dir()]


def _shipped() -> list[Path]:
    here = Path(__file__).parents[1]
    return [here / "configs", here.parent / "configs"]


@cache
def _resolved() -> tuple[Path, ...]:
    return tuple(folder.resolve() for folder in _shipped())


def is_shipped(path: Path) -> bool:
    """Whether a config file is one of the package's own. The path is resolved."""
    return any(folder in path.parents for folder in _resolved())


def find(name: str | Path, beside: Path | None = None) -> Path:
    """The file of a config given by path or by name. Raises ConfigError naming the nearest ones."""
    roots = [Path(), *([beside] if beside else []), *folders()]
    for root in roots if Path(name).suffix not in _DATA else ():
        for candidate in (root / name, root / f"{name}.yaml"):
            if is_file(candidate):
                return candidate
    if len(str(name)) > 4000 or len(Path(name).name) > 255 or not str(name).isprintable():
        raise ConfigError(f"no config {str(name)[:80]!r}...: this is no name of a file")
    if Path(name).suffix in _DATA:
        raise ConfigError(
            f"{str(name)!r} holds data and is no config; name it as a source: data.train.mine='{{name: "
            f"files, path: {name}}}'"
        )
    if Path(name).is_dir() and not any((folder / name).is_dir() for folder in folders()):
        inner = "/config.yaml" if (Path(name) / "config.yaml").is_file() else ""
        raise ConfigError(
            f"no config {str(name)!r}: this is a folder; give "
            f"{f'{name}{inner}' if inner else 'a config file'}"
        )
    if known_key(str(name)):
        raise ConfigError(f"no config {str(name)!r}; a setting is written with its value: {name}=...")
    near = [path for root in dict.fromkeys(roots) if (path := root / Path(name).parent).is_dir()]
    siblings = {str(Path(name).parent / path.name) for folder in near for path in folder.glob("*.yaml")}
    close = (
        difflib.get_close_matches(str(name), sorted(siblings), n=1, cutoff=0.7)
        if str(name).endswith(".yaml")
        else []
    )
    known = {
        path.relative_to(folder).with_suffix("").as_posix()
        for folder in folders()
        for path in folder.rglob("*.yaml")
    }
    raise ConfigError(f"no config {str(name)!r}.{suggest(str(name), close or known)}")


def known_key(name: str) -> bool:
    """Whether a name is a key of a config, or a field of the nested settings like optimizer.lr."""
    return name.partition(".")[0] in {*SLOTS, *OTHER_KEYS, *Settings.__dataclass_fields__} and (
        "." not in name or name in nested_fields()
    )


def refuse_other_files(path: Path, own: Tree, shipped: bool) -> None:
    """Files of `configs` that are no config of a run: evaluation suites and launch files. Raises
    ConfigError."""
    kind = path.parent.name if shipped else ""
    if kind == "eval":
        raise ConfigError(
            f"{path.stem!r} is an evaluation suite, not a run; use vlrl eval --suite {path.stem}, or "
            f"eval.suites=[{path.stem}]"
        )
    if kind in ("accelerate", "deepspeed") or "compute_environment" in own:
        raise ConfigError(
            f"{path.stem!r} is a launch file of accelerate, not a run; give the run's config and "
            f"--processes N --sharding {path.stem}"
        )


def plugin_paths(value: Any, folder: Path, origin: str) -> list[str]:
    """Paths of plug-in files as absolute paths. Raises ConfigError for what is no path, or no file."""
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ConfigError(
            f"plugins: expected a list of Python files, like [my_reward.py], got {value!r} ({origin})"
        )
    out = []
    for path in paths:
        try:
            file = (folder / Path(path).expanduser()).resolve()
        except (OSError, ValueError, RuntimeError):
            raise ConfigError(
                f"plugins: {path[:80]!r} is no name of a file ({origin}); give a list of Python files, "
                "like [my_reward.py]"
            ) from None
        if not is_file(file):
            known = {str(other.relative_to(folder)) for other in folder.glob("*.py")}
            near = suggest(path, known) if known else ""
            raise ConfigError(
                f"plugins: no file {str(file)!r} ({origin}); give a path relative to {str(folder)!r}, or "
                f"an absolute one.{near}"
            )
        out.append(str(file))
    return out


def is_file(path: Path) -> bool:
    """Whether this is a file; False for what cannot be a path."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long for a path, or with a null byte
        return False

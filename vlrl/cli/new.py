"""`vlrl new`: a working plug-in and a test that tests it, to change into your own."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from vlrl.cli.words import complete_kind
from vlrl.config import SLOTS
from vlrl.plugins.registry import ConfigError, names, suggest
from vlrl.plugins.stages import STAGES

_TEMPLATES = Path(__file__).parent / "templates"
_SPLIT = "# --- test ---\n"
_TYPES = (
    "Completion",
    "FilterDecision",
    "Group",
    "LossInputs",
    "Prompt",
    "Request",
    "Rollout",
    "Row",
    "Sampling",
)
_EPISODES = ("Action", "Observation")
_MAPS = {  # kinds whose slot is a named map
    "source": "data: {{train: {{mine: {{name: {0}}}}}}}",
    "select": "select: {{mine: {{name: {0}}}}}",
    "reward": "rewards: {{mine: {{name: {0}}}}}",
    "reward_shaping": "reward_shaping: {{mine: {{name: {0}}}}}",
    "group_filter": "group_filters: {{mine: {{name: {0}}}}}",
    "aux_tensor": "aux_tensors: {{<the name that a plug-in needs>: {{name: {0}}}}}",
    "token_weight": "token_weights: {{mine: {{name: {0}}}}}",
    "loss_term": "loss_terms: {{mine: {{name: {0}}}}}",
    "callback": "callbacks: {{mine: {{name: {0}}}}}",
    "metric": "metrics: {{mine: {{name: {0}}}}}",
}
_SLOT_OF = {kind: slot for slot, kind in SLOTS.items()}


def new(
    kind: Annotated[
        str,
        typer.Argument(
            help="A kind of plug-in: reward, policy_loss, ... (`vlrl list` shows all), or a config slot.",
            autocompletion=complete_kind,
        ),
    ],
    name: Annotated[str, typer.Argument(help="What configs will call it, for instance my_reward.")],
    folder: Annotated[Path, typer.Option("--folder", "-d", help="Where the two files go.")] = Path(),
) -> None:
    """Write NAME.py, a small working plug-in of that kind, and test_NAME.py, and say how to use them."""
    kind = SLOTS.get(kind, kind)
    files = render(kind, name)
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        if (folder / file).exists():
            raise ConfigError(
                f"new: {str(folder / file)!r} is there already; choose another name or another --folder"
            )
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    plugin, test = (folder / file for file in files)
    slot = _MAPS.get(kind, _SLOT_OF.get(kind, kind) + ": {{name: {0}}}").format(name)
    needs = " ".join(
        ["pytest", *(["torch"] if re.search(r"^import torch", files[test.name], re.MULTILINE) else [])]
    )
    typer.echo(f"wrote {plugin} and {test}\ntry it:  python -m pytest {test}   (needs: pip install {needs})")
    typer.echo(f"see it:  vlrl list {kind} --plugin {plugin}")
    typer.echo(f"use it, in a config:\n  plugins: [{plugin}]\n  {slot}")


def render(kind: str, name: str) -> dict[str, str]:
    """{file name: text} of a plug-in and its test. Raises ConfigError for an unknown kind or a name that
    Python cannot import."""
    if kind not in STAGES:
        raise ConfigError(f"new: no kind of plug-in is called {kind!r}.{suggest(kind, STAGES)}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"new: {name!r} cannot be a name; use small letters, digits and _, for instance my_{kind}"
        )
    if name in names(STAGES[kind]):
        raise ConfigError(
            f"new: there is a {kind} named {name!r} already; choose another name, for instance my_{name}"
        )
    if name in sys.stdlib_module_names:
        raise ConfigError(
            f"new: {name}.py would hide Python's own module {name!r}; choose another name, for instance "
            f"my_{name}"
        )
    words = {"name": name, "Class": "".join(part.capitalize() for part in name.split("_"))}
    text = Template((_TEMPLATES / f"{kind}.tmpl").read_text(encoding="utf-8")).substitute(words)
    plugin, _, test = text.partition(_SPLIT)
    return {f"{name}.py": plugin, f"test_{name}.py": _test_header(kind, name, test) + "\n\n\n" + test}


def _test_header(kind: str, name: str, body: str) -> str:
    """Imports of what the test uses, and `make`, which builds the plug-in as a config would."""

    def used(word: str) -> bool:
        return bool(re.search(rf"\b{word}\b", body))

    stage = STAGES[kind].__name__
    stages = sorted([stage, "Denominators"] if used("Denominators") else [stage])
    types = [word for word in _TYPES if used(word)]
    standard = [*(["import math"] if used("math") else []), "from pathlib import Path"]
    standard += ["from types import SimpleNamespace"] if used("SimpleNamespace") else []
    others = [f"import {module}" for module in ("pytest", "torch") if used(module)]
    episodes = [word for word in _EPISODES if used(word)]
    own = [f"from vlrl.plugins.episodes import {', '.join(episodes)}"] if episodes else []
    own += [
        "from vlrl.plugins.registry import build, load_plugin_file",
        f"from vlrl.plugins.stages import {', '.join(stages)}",
    ]
    own += [f"from vlrl.types import {', '.join(types)}"] if types else []
    blocks = ["\n".join(block) for block in (standard, others, own) if block]
    make = (
        f'load_plugin_file(Path(__file__).with_name("{name}.py"))\n\n\ndef make(**fields):\n    return '
        f'build({stage}, {{"name": "{name}", **fields}})'
    )
    return "\n\n".join([f'"""{name} does what it says."""', *blocks, make])

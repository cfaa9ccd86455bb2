"""GRPO in plain Python: `GRPOTrainer` takes rows, functions and the name of a model, and trains the same
`Run` as `vlrl train`.

    from vlrl import GRPOTrainer

    def right_hour(text, answer, **row):
        return float(text.strip() == answer)

    trainer = GRPOTrainer("tiny_qwen2_5_vl", [right_hour], rows, args=dict(steps=50))
    trainer.train()
    trainer.evaluate(heldout)
    trainer.save("out")

What a call names becomes a config (`trainer.config`); objects (functions, sources, rewards, families,
engines) stand in it as they are. A config that holds objects is written to `config.yaml` with their names and
plain fields, and runs again through Python only.
"""

from __future__ import annotations

import dataclasses
import html
import inspect
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from vlrl.config import Config, folders, load
from vlrl.config.model_folder import located
from vlrl.config.trl_config import BASE, TRL_NAMES, is_trl_config, settings_of_trl, trl_renames
from vlrl.eval.model import policy_spec
from vlrl.plugins.function_reward import BatchFunctionReward, FunctionReward, columns_of
from vlrl.plugins.registry import ConfigError, build, names, suggest
from vlrl.plugins.stages import Reward, Source, Stage
from vlrl.services.failures import RunFailure
from vlrl.services.third_party import quiet
from vlrl.trainer.data.check_golds import check_golds
from vlrl.trainer.heldout import evaluate
from vlrl.trainer.phase import PhasePlan
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.views import StepView
from vlrl.training import train_session
from vlrl.types import Row


class GRPOTrainer:
    """Trains a model on rows with rewards, by GRPO or another preset.

    Args:
        model: A config of configs/models ("tiny_qwen2_5_vl", "qwen2_5_vl_3b"), a model's or a run's folder, a
            hub id, or a `Family`.
        reward_funcs: One reward or several. Each is a function (`FunctionReward`), the name of a shipped
            reward ("iou"), a mapping with its name and fields ({"name": "iou", "binary": True}), or a
            `Reward`. A mapping of slot names to these names the slots. None: those that the sources bring
            along (`Source.own_rewards`; the source `reasoning_gym` has one).
        train_dataset: Rows: a list of dicts or of `Row`, a `datasets.Dataset`, a file or folder, a hub id, or
            a `Source`.
        args: Settings: nested or dotted keys ({"steps": 50, "optimizer.lr": 1e-5}), words of the command line
            (["steps=50"]), TRL's `GRPOConfig`, or a whole `Config`, which then replaces the base and the
            method. Values hold in every phase, as on the command line.
        eval_dataset: Held-out rows, like `train_dataset`; or a mapping of names to these.
        reward_weights: One factor per reward; None: that of each.
        method: One preset of configs/methods or several.

    Settings, rewards and rows are checked at once, without importing torch; combinations of plug-ins when
    `train` begins, before the model is loaded.

    Raises:
        ConfigError: For an argument that cannot be used, with its value, what is allowed and the fix.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        train_dataset: Any = None,
        args: Mapping[str, Any] | Sequence[str] | Config | None = None,
        eval_dataset: Any = None,
        *,
        reward_weights: Sequence[float] | None = None,
        method: str | Sequence[str] = "grpo",
    ) -> None:
        if is_trl_config(args):
            reward_weights = reward_weights or getattr(args, "reward_weights", None)
            args, method = _of_trl(args, train_dataset, method)
        config, objects = _base_config(args, method)
        config.tree["policy"] = _policy(model)
        config.tree.pop("outcome", None)
        data = {"train": {"train": source_of(train_dataset, "train_dataset")}}
        if eval_dataset is not None:
            several = eval_dataset if isinstance(eval_dataset, Mapping) else {"heldout": eval_dataset}
            data["heldout"] = {
                name: source_of(rows, f"eval_dataset.{name}") for name, rows in several.items()
            }
        config.tree["data"] = data
        brought = reward_funcs is None and any(_brings_rewards(source) for source in data["train"].values())
        config.tree["rewards"] = {} if brought else _rewards(reward_funcs, reward_weights)
        config.tree.setdefault("output", time.strftime("runs/python-%Y%m%d-%H%M%S"))
        for path, value in objects.items():
            _set(config.tree, path, value)
        self.config = config
        self.summary: dict[str, Any] = {}
        quiet()
        self.plan = Plan.of(config)
        self.plan.check(golds=False)
        _check_columns(self.plan.phases[0])
        check_golds(self.plan.phases)

    @cached_property
    def session(self) -> Session:
        """The session that trains; its model is loaded by the first call that needs it."""
        return Session(self.plan)

    def train(
        self, resume: bool = False, overwrite: bool = False, live: bool | None = None
    ) -> dict[str, Any]:
        """Train; returns the summary: held-out scores, seconds, paths of checkpoint, metrics and report.

        Args:
            resume: Continue from the newest checkpoint of the output folder.
            overwrite: Replace the run that the output folder holds.
            live: Show the live view; None: as `watch.live` says.
        """
        with _in_python():
            self.summary = train_session(self.session, resume, live, overwrite)
        return self.summary

    def evaluate(self, rows: Any = None) -> dict[str, float]:
        """Greedy accuracy by task on `rows` (as `train_dataset`), or on `eval_dataset`; before training, of
        the model as it is.

        An answer is correct where the outcome reward reaches its `correct_at`. Raises ConfigError without
        rows.
        """
        session = self._opened()
        by_task: dict[str, list[Row]] = {}
        for row in source_of(rows, "rows")() if rows is not None else ():
            by_task.setdefault(row.task, []).append(row)
        by_task = by_task or session.current.heldout_by_task()
        if not by_task:
            raise ConfigError("evaluate: there are no rows; pass some, or give GRPOTrainer an `eval_dataset`")
        session.engine.setup(session)
        session.engine.sync(session.policy)
        with session.policy.gather_params():
            result = evaluate(StepView.between_steps(session), by_task)
        session.engine.close()
        return dict(result.accuracy)

    def save(self, folder: str | Path) -> Path:
        """Write the model as a transformers folder (an adapter merged, and kept beside it); returns the
        folder."""
        path = Path(folder)
        session = self._opened()
        if session.is_main:
            path.mkdir(parents=True, exist_ok=True)
        if session.is_main or session.state_sharded:
            session.policy.save(path)
        return path

    save_model = save  # TRL's name

    def _repr_html_(self) -> str:
        """What a notebook shows for the trainer: the report of its run, whole and self-contained in a frame;
        its folder before there is one."""
        folder = Path(str(self.config.tree["output"]))
        report = Path(str(self.summary.get("report") or folder / "report.html"))
        if not report.is_file():
            return (
                "<p>GRPOTrainer, not trained yet; its run goes to "
                f"<code>{html.escape(str(folder))}</code></p>"
            )
        page = html.escape(report.read_text(encoding="utf-8"), quote=True)
        return (
            f'<iframe srcdoc="{page}" style="width: 100%; height: 720px; border: 0" '
            'sandbox="allow-scripts"></iframe>'
        )

    def _opened(self) -> Session:
        if not self.session.is_open:
            self.session.open()
            self.session.use(len(self.session.phases) - 1)
        return self.session


# --- rewards ------------------------------------------------------------------------------------------------


def _reward(item: Any, where: str) -> Any:
    if isinstance(item, (Reward, Mapping)):
        return item
    if isinstance(item, str):
        known = names(Reward)
        if item not in known:
            raise ConfigError(
                f"{where}: no reward named {item!r}.{suggest(item, known)} See `vlrl list reward`, or pass "
                "a function."
            )
        return {"name": item}
    if not callable(item):
        raise ConfigError(
            f"{where}: {item!r} is no reward; pass a function (text, answer, **row) -> float, a reward's "
            "name, or a Reward"
        )
    parameters = inspect.signature(item).parameters
    if any(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters.values()):
        raise ConfigError(
            f"{where}: {_name(item)!r} takes arguments by position only; name them, like (text, answer, "
            "**row)"
        )
    if "completions" in parameters:
        return BatchFunctionReward(function=item)
    if "text" not in parameters and "rollout" not in parameters:
        raise ConfigError(
            f"{where}: {_name(item)!r} takes ({', '.join(parameters)}); it needs `text` (one completion) "
            "or `completions` (TRL's lists)"
        )
    return FunctionReward(function=item)


def _brings_rewards(source: Any) -> bool:
    return bool(getattr(source, "own_rewards", None))


def _rewards(items: Any, weights: Sequence[float] | None) -> dict[str, Any]:
    """Slot -> reward."""
    single = (
        callable(items)
        or isinstance(items, (str, Reward))
        or (isinstance(items, Mapping) and "name" in items)
    )
    listed = (
        list(items.items())
        if isinstance(items, Mapping) and not single
        else [("", item) for item in ([items] if single else items or ())]
    )
    if not listed:
        raise ConfigError(
            "reward_funcs: none is given; pass a function (text, answer, **row) -> float, or a reward's "
            "name such as 'iou'"
        )
    if weights is not None and len(weights) != len(listed):
        raise ConfigError(
            f"reward_weights: {len(weights)} weights for {len(listed)} rewards; give one for each"
        )
    slots: dict[str, Any] = {}
    for place, (slot, item) in enumerate(listed):
        reward = _reward(item, f"reward_funcs[{place}]")
        slot = slot or _name(item)
        if slot in slots:
            raise ConfigError(
                f"reward_funcs: two rewards are called {slot!r}; pass a mapping that names them, like "
                f"{{'first': ..., 'second': ...}}"
            )
        if weights is not None:
            weight = float(weights[place])
            reward = (
                dataclasses.replace(reward, weight=weight)
                if isinstance(reward, Reward)
                else {**reward, "weight": weight}
            )
        slots[slot] = reward
    return slots


def _name(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, Mapping):
        return str(item.get("name"))
    if isinstance(item, Reward):
        return item.name
    return str(getattr(item, "__name__", type(item).__name__)).replace("<lambda>", "function")


def _check_columns(phase: PhasePlan) -> None:
    """Every argument without a default of a reward function is a column of the first row. Raises
    ConfigError."""
    for split in ("train", "heldout"):
        for slot, rows in phase.rows(split).items():
            known = {*columns_of(rows[0]), "text", "rollout", "completions", "prompts", "completion_ids"}
            for name, reward in phase.rewards.items():
                parameters = (
                    inspect.signature(reward.function).parameters
                    if isinstance(reward, FunctionReward)
                    else {}
                )
                for parameter in parameters.values():
                    optional = parameter.default is not parameter.empty or parameter.kind in (
                        parameter.VAR_KEYWORD,
                        parameter.VAR_POSITIONAL,
                    )
                    if parameter.name not in known and not optional:
                        near = suggest(parameter.name, known)
                        raise ConfigError(
                            f"reward_funcs: {name!r} takes {parameter.name!r}, which rows of "
                            f"data.{split}.{slot} do not have.{near}"
                        )


# --- rows ---------------------------------------------------------------------------------------------------


def source_of(data: Any, where: str) -> Any:
    """A dataset as a `Source`, or as the mapping that a config has for one. Raises ConfigError for what is
    neither.

    Args:
        data: A list of dicts or of `Row`, a `datasets.Dataset`, a path, a hub id, a `Source`, or a mapping
            with a source's name.
        where: The argument, for messages.
    """
    if isinstance(data, Source) or (isinstance(data, Mapping) and "name" in data):
        return _built(data, where)
    if isinstance(data, (str, Path)):
        return _built(_stored(data, where), where)
    if isinstance(data, Mapping) and hasattr(data, "keys"):
        raise ConfigError(
            f"{where}: a mapping of {', '.join(map(str, data))}; pass one split, for instance "
            f"{where}=dataset['train']"
        )
    if not hasattr(data, "__getitem__") and hasattr(data, "__iter__"):
        data = list(data)
    if not hasattr(data, "__len__") or not len(data):
        raise ConfigError(
            f"{where}: {type(data).__name__} without rows; pass a list of dicts, a datasets.Dataset, a "
            "path, a hub id or a Source"
        )
    first = data[0]
    if isinstance(first, Row):
        return _built({"name": "rows_in_memory", "rows": data}, where)
    if not isinstance(first, Mapping):
        raise ConfigError(
            f"{where}: a row is {type(first).__name__}, expected a dict such as {{'question': ..., "
            f"'answer': ..., 'image': ...}} or a Row"
        )
    return _built({"name": "records_in_memory", "records": data, "answers": "optional"}, where)


def _built(spec: Any, where: str) -> Any:
    return build(Source, spec, where)


def _stored(data: str | Path, where: str) -> dict[str, Any]:
    path = Path(data).expanduser()
    if path.is_file():
        return {"name": "files", "path": str(path), "answers": "optional"}
    if path.is_dir():
        saved = any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))
        return {"name": "hub" if saved else "folder", "path": str(path), "answers": "optional"}
    if isinstance(data, str) and data.count("/") == 1 and not path.suffix and not data.startswith((".", "/")):
        return {"name": "hub", "path": data, "answers": "optional"}
    raise ConfigError(
        f"{where}: no file or folder {str(data)!r}, and no hub id, which looks like 'owner/name'"
    )


def _plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_plain, value))
    return value is None or isinstance(value, (str, int, float, bool))


# --- the config ---------------------------------------------------------------------------------------------


def _base_config(args: Any, method: str | Sequence[str]) -> tuple[Config, dict[str, Any]]:
    """The config without model, rewards and data, and the objects of `args` by their path."""
    if isinstance(args, Config):
        return Config({**args.tree}, {**args.origins}), {}
    presets = [method] if isinstance(method, str) else list(method)
    files = [
        "base/rl",
        *(preset if "/" in preset or preset.endswith(".yaml") else f"methods/{preset}" for preset in presets),
    ]
    if args is None or (
        isinstance(args, Sequence)
        and not isinstance(args, str)
        and all(isinstance(word, str) for word in args)
    ):
        words: list[str] = list(args or ())
        objects: dict[str, Any] = {}
    elif isinstance(args, Mapping):
        words, objects = _words(args)
    else:
        raise ConfigError(
            f"args: {args!r} are no settings; pass a dict such as dict(steps=50), a list of words such as "
            "['steps=50'], or a Config"
        )
    with _in_python():
        config = load(files, words)
    if config.origins.get("output") != "command line":
        config.tree.pop("output", None)
    return config, objects


@contextmanager
def _in_python() -> Iterator[None]:
    """Messages of the command line in the words of Python."""
    try:
        yield
    except (ConfigError, RunFailure) as error:
        text = str(error)
        for said, meant in _IN_PYTHON.items():
            text = text.replace(said, meant)
        if text == str(error):
            raise
        other = type(error)(text)
        other.__dict__.update(error.__dict__)
        raise other from None


_IN_PYTHON = {
    "with --resume": "with train(resume=True)",
    "with --overwrite": "with train(overwrite=True)",
    "--resume": "train(resume=True)",
    "--overwrite": "train(overwrite=True)",
    "another `output=`": "another `output` in `args`",
    "command line": "args",
}


def _of_trl(args: Any, rows: Any, method: str | Sequence[str]) -> tuple[dict[str, Any], str | Sequence[str]]:
    """(settings, presets) of TRL's `GRPOConfig`. A method other than the default keeps its own objective."""
    settings = settings_of_trl(
        args, len(rows) if hasattr(rows, "__len__") and not isinstance(rows, str) else 0
    )
    if method == "grpo":
        return settings, BASE
    objective = ("policy_loss", "loss_terms", "loss_aggregation", "advantage")
    return {key: value for key, value in settings.items() if not key.startswith(objective)}, method


def _words(args: Mapping[str, Any], where: str = "") -> tuple[list[str], dict[str, Any]]:
    words: list[str] = []
    objects: dict[str, Any] = {}
    for key, value in args.items():
        path = f"{where}{key}"
        if path in TRL_NAMES:
            raise ConfigError(
                f"args.{path}: {trl_renames(args)}; or pass trl.GRPOConfig(...) itself, which is read"
            )
        if key in ("policy", "rewards", "data") and not where:
            argument = {
                "policy": "model",
                "rewards": "reward_funcs",
                "data": "train_dataset and eval_dataset",
            }[key]
            raise ConfigError(f"args.{key}: is given by {argument}")
        if isinstance(value, Stage):
            objects[path] = value
        elif isinstance(value, Mapping) and value:
            inner_words, inner_objects = (
                _words(value, f"{path}.") if not _plain(value) else ([f"{path}={json.dumps(value)}"], {})
            )
            words += inner_words
            objects |= inner_objects
        elif _plain(value):
            words.append(f"{path}={json.dumps(value)}")
        elif isinstance(value, Path):
            words.append(f"{path}={json.dumps(str(value))}")
        else:
            raise ConfigError(f"args.{path}: {value!r} is neither a plain value nor a plug-in")
    return words, objects


def _policy(model: Any) -> Any:
    """The policy's mapping, or the `Family` itself. Raises ConfigError."""
    if getattr(model, "kind", "") == "family" or (isinstance(model, Mapping) and "name" in model):
        return model
    if not isinstance(model, (str, Path)):
        raise ConfigError(
            f"model: {model!r} is no model; pass a config of configs/models, a folder, a hub id or a Family"
        )
    presets = {
        path.stem: path for folder in reversed(folders()) for path in (folder / "models").glob("*.yaml")
    }
    name = str(model).removeprefix("models/")
    if name.startswith("fetched:"):
        return policy_spec(located(name, "model"))
    if name in presets:
        return load([presets[name]]).tree["policy"]
    if not Path(model).exists() and str(model).count("/") != 1:
        raise ConfigError(f"model: no config, folder or hub id {str(model)!r}.{suggest(name, presets)}")
    return policy_spec(str(model))


def _set(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for key in parents:
        tree = tree.setdefault(key, {})
    tree[last] = value

"""Environments for tests of the adapter of verifiers: a small package of that name with the 0.1 interface,
and files for the real packages."""

import os
import subprocess
import sys
from functools import cache

import pytest

PACKAGE = {
    "verifiers/__init__.py": """
def load_environment(name, **args):
    return __import__(name).load_environment(**args)
""",
    "verifiers/types.py": """
class ClientConfig:
    def __init__(self, api_base_url, **rest):
        self.url = api_base_url
""",
    "towns.py": '''
import asyncio, json, os, time, urllib.request

TOWNS = {"Arlen": "Birk", "Corva": "Dorn", "Elm": "Fenn"}
TOOL = {"type": "function", "function": {"name": "neighbour", "description": "The town next to a town.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}}}


class Rows(list):
    column_names = ["prompt", "answer"]


def request(url, messages, tools):
    body = json.dumps({"messages": messages, "tools": tools}).encode()
    sent = urllib.request.Request(url + "/chat/completions", body)
    with urllib.request.urlopen(sent, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]


class Towns:
    """Asks which town is next to a town; pays 1 for the right one, 0.5 less without a look."""

    eval_dataset = eval_dataset_source = None

    def __init__(self, does, group):
        self.does, self.requires_group_rollouts = does, group

    def get_dataset(self):
        ask = "Which town is next to %s?"
        look = {"role": "system", "content": "Look."}
        asked = {town: [look, {"role": "user", "content": ask % town}] for town in TOWNS}
        return Rows({"prompt": asked[town], "answer": other} for town, other in TOWNS.items())

    async def run_rollout(self, row, client, model, sampling, max_retries):
        messages, looks = list(row["prompt"]), 0
        print("noise on the standard output")
        while True:
            message = await asyncio.to_thread(request, client.url, messages, [TOOL])
            messages.append(message)
            for call in message.get("tool_calls") or ():
                town = json.loads(call["function"]["arguments"]).get("town", "")
                looks += 1
                told = TOWNS.get(town, "no such town")
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": told})
            if self.does == "rewrites":
                messages[0] = {"role": "system", "content": "Forget."}
            if self.does == "hangs":
                time.sleep(60)
            if self.does == "dies":
                os._exit(3)
            if self.does == "fails":
                raise ValueError("broken rubric")
            if self.does == "begs":
                messages.append({"role": "user", "content": "reward = 1.0 <answer>Birk</answer>"})
                self.does = ""
                continue
            if not message.get("tool_calls"):
                right = float(row["answer"] in (message["content"] or ""))
                metrics = {"looks": looks, "nan": float("nan")}
                return {"reward": right * (1.0 if looks else 0.5), "metrics": metrics}

    async def _teardown(self):
        pass


def load_environment(does="", group=False):
    return Towns(does, group)
''',  # noqa: E501
}

TOWNS_01 = '''
import verifiers as vf
from datasets import Dataset

TOWNS = {"Arlen": "Birk", "Corva": "Dorn", "Elm": "Fenn"}


def neighbour(town: str) -> str:
    """The town next to a town.

    Args:
        town: its name
    """
    return TOWNS[town]


def load_environment():
    ask = "Which town is next to %s?"
    data = Dataset.from_list([{"question": ask % town, "answer": other} for town, other in TOWNS.items()])

    def right(completion, answer, **kwargs) -> float:
        return float(answer in (completion[-1].content or ""))

    rubric, system = vf.Rubric(funcs=[right]), "Use the tool."
    return vf.ToolEnv(tools=[neighbour], dataset=data, rubric=rubric, system_prompt=system, max_turns=4)
'''

TOWNS_04 = '''
import verifiers.v1 as vf

__all__ = ["TownTaskset"]
TOWNS = {"Arlen": "Birk", "Corva": "Dorn", "Elm": "Fenn"}


class TownData(vf.TaskData):
    answer: str = ""


class TownTools(vf.Toolset[vf.SharedToolsetConfig]):
    @vf.tool
    async def neighbour(self, town: str) -> str:
        """The town next to a town."""
        return TOWNS[town]


class TownTask(vf.Task[TownData]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(self.data.answer in (trace.last_reply or ""))


class TownTaskset(vf.Taskset[TownTask, vf.TasksetConfig]):
    def load(self):
        for town, other in TOWNS.items():
            asked = f"Which town is next to {town}?"
            data = TownData(prompt=asked, system_prompt="Use the tool.", answer=other)
            yield TownTask(data, self.config.task)

    @classmethod
    def toolsets(cls, config):
        return [TownTools(vf.SharedToolsetConfig())]


if __name__ == "__main__":
    TownTools.run()
'''  # noqa: E501


@cache
def interpreter(release):
    """The interpreter that has this release of verifiers: VLRL_VERIFIERS_01 or _04 names it, or this one.
    Skips the test where there is none."""
    for python in (os.environ.get(f"VLRL_VERIFIERS_{release.replace('.', '')}"), sys.executable):
        if python:
            found = subprocess.run(
                [python, "-c", "from importlib.metadata import version; print(version('verifiers'))"],
                capture_output=True,
                text=True,
                timeout=60,
            )
            if found.stdout.startswith(f"{release}."):
                return python
    return pytest.skip(
        f"no interpreter with verifiers {release}; name one in VLRL_VERIFIERS_{release.replace('.', '')}"
    )


def write(folder, files):
    """Write files, by name."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)

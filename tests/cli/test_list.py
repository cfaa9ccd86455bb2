import json

import pytest

from vlrl.plugins.registry import ConfigError, shipped
from vlrl.plugins.stages import STAGES

PLUGIN = '''
from dataclasses import dataclass
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Reward

@register("{name}")
@dataclass(frozen=True, kw_only=True)
class Mine(Reward):
    """Pays [bold]always[/bold].

    Paper: nobody, arXiv:1234.56789, eq. 1.
    """
    amount: float = 0.5
    sizes: tuple[int, ...] = (1, 2)

    def __call__(self, rollout):
        return self.amount
'''


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    file = tmp_path_factory.mktemp("plugin") / "mine.py"
    file.write_text(PLUGIN.format(name="listed_in_a_test"))
    return file


def test_all_kinds(vlrl):
    code, text = vlrl("list", "--json")
    rows = {row["kind"]: row for row in json.loads(text)}
    assert code == 0 and set(rows) == {*STAGES, "family", "scorer", "aggregate"}
    assert "grpo" in rows["advantage_estimator"]["plugins"] and "qwen2_5_vl" in rows["family"]["plugins"]


def test_a_users_plugin_is_listed_with_its_paper_and_fields(vlrl, plugin):
    rows = {row["name"]: row for row in json.loads(vlrl("list", "reward", "--plugin", plugin, "--json")[1])}
    mine = rows["listed_in_a_test"]
    assert (mine["summary"], mine["paper"]) == ("Pays [bold]always[/bold].", "arXiv:1234.56789")
    assert (
        mine["fields"]["amount"] == {"type": "float", "default": "0.5"}
        and mine["fields"]["weight"]["default"] == "1.0"
    )
    assert mine["origin"].endswith("mine.py:8")
    line = next(
        line
        for line in vlrl("list", "reward", "--plugin", plugin)[1].splitlines()
        if "listed_in_a_test" in line
    )
    assert "Pays [bold]always[/bold]." in line and "arXiv:1234.56789" in line


@pytest.mark.parametrize(
    "kind",
    ["advantage_estimator", "token_credit", "policy_loss", "loss_term", "loss_aggregation", "token_weight"],
)
def test_methods_are_listed_with_a_paper_and_a_whole_line(vlrl, kind):
    ours = shipped(STAGES[kind])  # other tests register plug-ins of their own in the same process
    rows = {row["name"]: row for row in json.loads(vlrl("list", kind, "--json")[1]) if row["name"] in ours}
    assert not [
        name
        for name, row in rows.items()
        if not row["paper"] or len(row["summary"]) < 5 or row["summary"].endswith((":", ","))
    ]
    assert (
        rows.get("grpo", {"paper": "arXiv:2402.03300"})["paper"] == "arXiv:2402.03300"
    )  # not the one that it mentions first


def test_one_plugin_in_full(vlrl, plugin):
    text = vlrl("list", "reward", "listed_in_a_test", "--plugin", plugin)[1]
    assert "Paper: nobody, arXiv:1234.56789, eq. 1." in text and "sizes: tuple[int, ...] = (1, 2)" in text


def test_configs(vlrl):
    rows = {row["name"] for row in json.loads(vlrl("list", "config", "--json")[1])}
    assert {"quickstart", "base/rl", "methods/grpo"} <= rows


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rewrad"], "'rewrad'.*Did you mean 'reward'"),
        (["advantage", "grop"], "'grop'.*Did you mean 'grpo'"),
        (["reward", "--plugin", "nowhere.py"], "no file 'nowhere.py'"),
    ],
)
def test_mistakes_are_told_with_a_suggestion(vlrl, words, message):
    with pytest.raises(ConfigError, match=message):
        vlrl("list", *words)


def test_configs_by_folder_and_by_name(vlrl):
    folders = vlrl("list", "config")[1]
    assert (
        len(folders.splitlines()) < 25 and "methods" in folders and "vlrl list config methods/dapo" in folders
    )
    inside = json.loads(vlrl("list", "config", "methods", "--json")[1])
    assert len(inside) > 300 and all(row["name"].startswith("methods/") for row in inside)
    assert "clip-higher" in vlrl("list", "config", "methods/dapo")[1]
    with pytest.raises(ConfigError, match="Did you mean 'methods'"):
        vlrl("list", "config", "method")

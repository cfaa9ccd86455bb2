"""The README's code runs as it stands, its table names every text kind, and importing the package needs no
torch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from vlrl_rewards import verify
from vlrl_rewards.audit import text as attacks_text

from vlrl.plugins.registry import build, get, load_plugin_file, names
from vlrl.plugins.stages import Reward

README = Path(__file__).parents[3] / "rewards" / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_first_example_runs(capsys):
    exec(compile(BLOCKS[0], "README", "exec"), {})
    assert "0.5" in capsys.readouterr().out


def test_a_reward_in_ten_lines(tmp_path, rollout):
    file = tmp_path / "readme_reward.py"
    file.write_text(BLOCKS[1])
    load_plugin_file(file)
    reward = build(Reward, "same_length")
    assert [reward(rollout("abc", f"<answer>{said}</answer>")) for said in ("xyz", "abcd", "")] == [1, 0, 0]
    code = [
        line for line in BLOCKS[1].splitlines() if line.strip() and not line.startswith(("from", "import"))
    ]
    assert len(code) <= 10


def test_a_kind_in_one_function(tmp_path):
    file = tmp_path / "readme_kind.py"
    file.write_text(BLOCKS[2])
    load_plugin_file(file)
    assert verify("", "<answer>level</answer>", "palindrome").correct
    assert not verify("", "<answer>level</answer>", "palindrome", at_least=9).correct
    with pytest.raises(ValueError, match="at_least"):
        verify("", "x", "palindrome", at_most=9)


def test_the_table_names_every_text_kind():
    named = set(
        re.findall(
            r"`(\w+)`",
            README.read_text(encoding="utf-8").partition("## Kinds")[2].partition("The perception kinds")[0],
        )
    )
    assert {*attacks_text.SEEDS, *attacks_text.ALIASES} <= named


def test_every_reward_is_in_a_guide():
    guides = README.read_text(encoding="utf-8") + README.with_name("PERCEPTION.md").read_text(
        encoding="utf-8"
    )
    shipped = [name for name in names(Reward) if get(Reward, name).__module__.startswith("vlrl_rewards.")]
    assert len(shipped) > 100 and not [name for name in shipped if f"`{name}`" not in guides]


def test_without_torch():
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "accelerate", "datasets", "sklearn", "skimage", "cv2"):
            raise ImportError(name + " is not installed")
sys.meta_path.insert(0, Refuse())
from vlrl_rewards import verify
assert "numpy" not in sys.modules
assert verify("6", "<answer>6</answer>").correct
assert verify("B", "(B)", choices=["x", "y"]).correct
from vlrl_rewards.verification import kinds
from vlrl.plugins.registry import names
from vlrl.plugins.stages import Reward
assert len(kinds()) > 20 and len(names(Reward)) > 30
assert not [name for name in sys.modules if name.split(".")[0] == "torch"]
"""  # noqa: E501
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_limits_of_shapes_are_said():
    limits = README.read_text(encoding="utf-8")
    assert "| 500, 100 | corners of a shape, polygons of a mask |" in limits
    assert "an answer of a perception kind" in limits

"""docs/functional.md: its training step learns, and its table names every function and nothing else."""

import re
from pathlib import Path

import vlrl.functional

PAGE = (Path(__file__).parents[2] / "docs" / "functional.md").read_text(encoding="utf-8")


def test_the_training_step_learns(capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    exec(compile(code, "docs/functional.md", "exec"), {})
    rewards = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(rewards) == 30 and rewards[0] < 0.35 and rewards[-1] > 0.9


def test_the_table_names_every_function():
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(vlrl.functional.__all__)


def test_what_the_page_mentions_exists():
    for name in set(re.findall(r"F\.(\w+)", PAGE)):
        assert name in vlrl.functional.__all__, name

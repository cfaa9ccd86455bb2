"""docs/complaints.md: every test that an answer names is there, and the counts are those of the table."""

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "complaints.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and "::" in line
]


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_answer_names_tests_that_are_there() -> None:
    assert len(ROWS) == 25
    for row in ROWS:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row[4])
        assert named and row[4].count("::") == len(named), row[0]
        for path, name in named:
            assert name in functions(ROOT / path), (path, name)


def test_the_counts_are_those_of_the_table() -> None:
    counts = Counter(row[2] for row in ROWS)
    assert set(counts) <= {"yes", "partly", "no"}
    said = re.search(r"Of (\d+) reports, (\d+) are answered, (\d+) in part, (\d+) is not", PAGE)
    assert said is not None
    assert [int(n) for n in said.groups()] == [len(ROWS), counts["yes"], counts["partly"], counts["no"]]

"""`vlrl verify`: judge rows of answers, find golds that no answer matches, attack a reward. Also a program:
`python -m vlrl_rewards.cli`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from vlrl.plugins.registry import load_plugin_file
from vlrl.plugins.scoring import Verdict

app = typer.Typer(help="Judge answers, test golds, attack rewards.", add_completion=False)

Rows = Annotated[
    Path | None,
    typer.Argument(
        help=(
            'JSON lines {"gold", "pred", "kind"?, "choices"?, "options"?, "correct"?}; "-" reads standard '
            "input."
        )
    ),
]
SelfTest = Annotated[
    Path | None, typer.Option("--self-test", help="JSON lines of golds: print those that no answer matches.")
]
Attack = Annotated[
    str,
    typer.Option(
        "--attack", help="A kind or reward: run every known hack against it and print those that pass."
    ),
]
Example = Annotated[
    Path | None,
    typer.Option(
        "--example",
        help='For --attack: a JSON file {"gold", "right", "wrong": [...], "choices"?, "meta"?, "options"?}.',
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", "--plugins", help="A Python file that registers rewards or kinds; repeatable."),
]
Kind = Annotated[str, typer.Option("--kind", help="The kind of rows without a kind.")]


def rows_in(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, row) of a JSON lines file, or of standard input for "-". Raises ValueError naming the
    line."""
    lines = sys.stdin if str(path) == "-" else path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from None
        if not isinstance(row, dict) or "gold" not in row:
            raise ValueError(
                f"{path}, line {number}: a row needs 'gold', got "
                f"{sorted(row) if isinstance(row, dict) else type(row).__name__}"
            )
        yield number, row


def judge_row(row: dict[str, Any], kind: str) -> Verdict:
    """The verdict on a row. A broken gold answer gives a verdict with the route "error"."""
    from vlrl_rewards import verify

    pred = row.get("pred", row.get("response"))
    try:
        return verify(
            row["gold"],
            "" if pred is None else str(pred),
            row.get("kind") or kind,
            row.get("choices"),
            **row.get("options") or {},
        )
    except ValueError as error:
        return Verdict(0.0, False, str(error), route="error", unread=True)


def judge_all(path: Path, kind: str) -> int:
    """Print a verdict per row. Returns the number of rows with a broken gold answer."""
    from vlrl_rewards.math import pool as math_pool

    math_pool.warm()
    counts: Counter[str] = Counter()
    for _, row in rows_in(path):
        verdict = judge_row(row, kind)
        counts["broken gold" if verdict.route == "error" else "right" if verdict.correct else "wrong"] += 1
        if isinstance(marked := row.get("correct"), bool):
            counts[
                "as marked"
                if verdict.correct is marked
                else "wrongly right"
                if verdict.correct
                else "wrongly wrong"
            ] += 1
        typer.echo(
            json.dumps(
                {**({"id": row["id"]} if "id" in row else {}), **verdict.to_dict()}, ensure_ascii=False
            )
        )
    typer.echo(
        ", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "no rows", err=True
    )
    return counts["broken gold"]


def demonstrations(gold: Any) -> list[str]:
    """Responses that state the gold answer itself, in several forms."""
    golds = (
        gold
        if isinstance(gold, (list, tuple)) and gold and all(isinstance(item, str) for item in gold)
        else [gold]
    )
    written = [
        item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for item in [gold, *golds]
    ]
    return [
        form.format(text)
        for text in dict.fromkeys(written)
        for form in ("<answer>{}</answer>", "\\boxed{{{}}}", "The answer is {}", "{}")
    ]


def self_test(path: Path, kind: str) -> int:
    """Print the golds that none of their demonstrations matches. Returns their number."""
    unreachable = total = 0
    for number, row in rows_in(path):
        total += 1
        shown = [str(row["target"])] if row.get("target") else []
        verdicts = [judge_row({**row, "pred": text}, kind) for text in [*shown, *demonstrations(row["gold"])]]
        if not any(verdict.correct for verdict in verdicts):
            unreachable += 1
            typer.echo(
                json.dumps(
                    {
                        "line": number,
                        "gold": row["gold"],
                        "kind": row.get("kind") or kind,
                        "reason": verdicts[0].reason,
                    },
                    ensure_ascii=False,
                )
            )
    typer.echo(f"{unreachable} of {total} golds match no answer", err=True)
    return unreachable


def shortened(text: str, limit: int = 300) -> str:
    """The text, or its beginning and its length where it is longer than `limit` characters."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def show_attack(name: str, example: Path | None) -> int:
    """Print the attacks that pass, each with its response. Returns their number."""
    from vlrl_rewards.audit.attack import attack, seed_from

    outcomes = attack(name, seed_from(example) if example is not None else None)
    passed = [one for one in outcomes if one.passed]
    for one in passed:
        typer.echo(f"PASSES  {one.attack}: score {one.score:g} ({one.reason}; {one.seconds:.2f} s)")
        typer.echo(f"        {shortened(one.response)!r}")
    typer.echo(f"{name}: {len(outcomes)} attacks, {len(passed)} pass")
    return len(passed)


@app.command("verify")
def verify(
    rows: Rows = None,
    self_test_rows: SelfTest = None,
    attack: Attack = "",
    example: Example = None,
    plugins: Plugins = None,
    kind: Kind = "auto",
) -> None:
    """Judge answers: one verdict per row, as JSON lines on standard output. Exit status 1: broken golds,
    unmatched golds, or attacks that pass."""
    try:
        for file in plugins or ():
            load_plugin_file(file)
        if attack:
            bad = show_attack(attack, example)
        elif self_test_rows is not None:
            bad = self_test(self_test_rows, kind)
        elif rows is not None:
            bad = judge_all(rows, kind)
        else:
            raise ValueError("nothing to do: give a file of rows, --self-test FILE or --attack KIND")
    except OSError as error:
        typer.echo(
            (
                f"vlrl: verify: cannot read {str(error.filename)!r} ({error.strerror}); give a file of "
                "JSON "
                "lines, for --example a JSON file"
            ),
            err=True,
        )
        raise typer.Exit(2) from None
    except ValueError as error:
        typer.echo(f"vlrl: {'' if str(error).startswith('attack: ') else 'verify: '}{error}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(1 if bad else 0)


if __name__ == "__main__":
    app()

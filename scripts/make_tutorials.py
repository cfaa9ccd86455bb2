"""Makes the tutorials: `python scripts/make_tutorials.py [--fast] [NAME ...]`.

A tutorial is one Markdown file in tutorials/. Its fences are cells: `python` and `bash` are run, and a fence
whose first line is `# NAME.EXT` is written to that file. From it come docs/tutorials/NAME.ipynb, executed by
a Jupyter kernel in an empty folder, and docs/tutorials/NAME.md with the output of every cell. Images that a
cell shows are stored beside the page.

`--fast` runs every cell in a shorter form and writes nothing: the front matter's `fast` has pairs of texts
that are replaced. Commands are forked from one process that has imported torch and transformers; exit code 1
where a cell fails. `--pages` takes texts from the sources and outputs from the notebooks.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[1]
SOURCES, PAGES = ROOT / "tutorials", ROOT / "docs" / "tutorials"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
RUN = ("python", "bash")
HEAD = (
    "*Made from `tutorials/{name}.md` by `scripts/make_tutorials.py`, executed as it stands. "
    "[Download the notebook]({name}.ipynb).*\n"
)


class Cell(NamedTuple):
    """A piece of a tutorial. `kind`: text, python, bash, or file (then `file` is its name)."""

    kind: str
    text: str
    file: str = ""
    language: str = ""


def source(name: str) -> tuple[dict[str, str], str]:
    """(replacements of the fast form, text) of a tutorial. Raises ValueError for a replacement of nothing."""
    _, head, text = (SOURCES / f"{name}.md").read_text(encoding="utf-8").split("---\n", 2)
    fast = yaml.safe_load(head)["fast"]
    if missing := [old for old in fast if old not in text]:
        raise ValueError(f"tutorials/{name}.md: `fast` replaces what is not there: {missing}")
    return fast, text.lstrip()


def cells(text: str) -> Iterator[Cell]:
    """The pieces of a tutorial, in order; fences of other languages belong to the text."""
    prose, end = "", 0
    for found in FENCE.finditer(text):
        prose += text[end : found.start()]
        end = found.end()
        named = re.match(r"# (\w+\.\w+)\n", found[2])
        if not named and found[1] not in RUN:
            prose += found[0]
            continue
        if prose.strip():
            yield Cell("text", prose.strip() + "\n")
        prose = ""
        yield Cell("file" if named else found[1], found[2].rstrip("\n"), named[1] if named else "", found[1])
    if (prose + text[end:]).strip():
        yield Cell("text", (prose + text[end:]).strip() + "\n")


def code(cell: Cell) -> str:
    """A cell as a notebook has it."""
    magic = {"bash": "%%bash\n", "file": f"%%writefile {cell.file}\n"}
    return magic.get(cell.kind, "") + cell.text


def notebook(name: str) -> Any:
    """A tutorial as a notebook without outputs."""
    import nbformat

    made = [
        nbformat.v4.new_markdown_cell(cell.text.rstrip())
        if cell.kind == "text"
        else nbformat.v4.new_code_cell(code(cell))
        for cell in cells(source(name)[1])
    ]
    for number, cell in enumerate(made):
        cell["id"] = f"{name.replace('_', '-')}-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": kernel})


def execute(name: str) -> Any:
    """The notebook with the outputs of a run in an empty folder. Raises where a cell fails."""
    from nbclient import NotebookClient

    made = notebook(name)
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        client = NotebookClient(made, timeout=3600, kernel_name="python3", resources=where)
        client.coalesce_streams = True
        client.execute()
        for cell in made.cells:
            cell.metadata.pop("execution", None)
            if cell.cell_type == "code":
                cell.outputs = [clean(output, folder) for output in cell.outputs]
    return made


def clean(output: Any, folder: str) -> Any:
    """An output without colours, the machine's paths and what a live line had overwritten."""

    def fit(text: str) -> str:
        text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text).replace(f"{folder}/", "").replace(folder, ".")
        text = (
            text.replace(f"{ROOT}/", "").replace(os.path.realpath(ROOT), ".").replace(f"{Path.home()}/", "~/")
        )
        return "\n".join(line.rsplit("\r", 1)[-1].rstrip() for line in text.splitlines()) + "\n"

    if "text" in output:
        output.text = fit(output.text)
    if "text/plain" in output.get("data", {}):
        output.data["text/plain"] = fit(output.data["text/plain"]).rstrip("\n")
    return output


def page(name: str, made: Any) -> tuple[str, dict[str, bytes]]:
    """(the page of an executed notebook, its images by name)."""
    lines, images = [], {}
    pieces = list(cells(source(name)[1]))
    for piece, cell in zip(pieces, made.cells, strict=True):
        if piece.kind == "text":
            lines += [cell.source, ""]
            continue
        lines += [f"```{piece.language}", piece.text, "```", ""]
        said = ""
        for output in cell.outputs if piece.kind != "file" else ():
            data = output.get("data", {})
            if "image/png" in data:
                image = f"{name}_{len(images) + 1}.png"
                images[image] = base64.b64decode(data["image/png"])
                lines += [f"![{data.get('text/plain', 'figure')}]({image})", ""]
            else:
                said += output.get("text") or data.get("text/plain", "") + "\n"
        if said.strip():
            lines += ["```text", said.strip("\n"), "```", ""]
    title, _, rest = "\n".join(lines).partition("\n")
    return f"{title}\n\n{HEAD.format(name=name)}{rest.rstrip()}\n", images


def stored(name: str) -> Any:
    """The notebook as it is, with the texts of the source. Raises ValueError where a cell has changed."""
    import nbformat

    old, new = nbformat.read(PAGES / f"{name}.ipynb", as_version=4), notebook(name)
    codes = [[cell.source for cell in made.cells if cell.cell_type == "code"] for made in (old, new)]
    if codes[0] != codes[1]:
        raise ValueError(
            f"cells of tutorials/{name}.md have changed: run python scripts/make_tutorials.py {name}"
        )
    outputs = iter([cell.outputs for cell in old.cells if cell.cell_type == "code"])
    for cell in new.cells:
        if cell.cell_type == "code":
            cell.outputs = next(outputs)
    return new


def write(name: str, made: Any) -> None:
    """Write notebook, page and images."""
    import nbformat

    text, images = page(name, made)
    PAGES.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, PAGES / f"{name}.ipynb")
    (PAGES / f"{name}.md").write_text(text, encoding="utf-8")
    for image, data in images.items():
        (PAGES / image).write_bytes(data)


def run_python(text: str, space: dict[str, Any]) -> None:
    """Run a cell; the value of a last expression is printed."""
    tree = ast.parse(text)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), space)
    if isinstance(last, ast.Expr):
        print(repr(eval(compile(ast.Expression(last.value), "cell", "eval"), space)))


def run_bash(text: str) -> None:
    """Run a cell's lines: `vlrl` in a fork of this process, pipes and redirections left out; others by bash.
    Raises RuntimeError where one fails, unless it ends with `|| true`."""
    for line in text.replace("\\\n", " ").splitlines():
        line = line.partition("  #")[0].strip()
        may_fail, line = line.endswith("|| true"), line.removesuffix("|| true").strip()
        if re.match(r"vlrl (?!.*--processes)", line):
            command = re.split(r" +(?:\d?>|\|)", line)[0]
            status = forked(lambda command=command: vlrl(command))
        else:
            status = subprocess.run(["bash", "-c", line], check=False).returncode if line else 0
        if status and not may_fail:
            raise RuntimeError(f"exit code {status}: {line}")


def vlrl(line: str) -> None:
    """The command `vlrl ...` in this process."""
    import shlex

    from vlrl.cli import main

    sys.argv = shlex.split(line)
    main()


def forked(function: Any) -> int:
    """Call a function in a forked process; its exit code."""
    sys.stdout.flush()
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        function()
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(status)


def fast(name: str) -> int:
    """Run the short form of a tutorial in an empty folder; the exit code."""
    replaced, text = source(name)
    for old, new in replaced.items():
        text = text.replace(old, new)

    def play() -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            space: dict[str, Any] = {"__name__": "__main__", "display": print}
            for cell in cells(text):
                if cell.kind == "file":
                    Path(cell.file).write_text(cell.text + "\n", encoding="utf-8")
                elif cell.kind == "python":
                    run_python(cell.text, space)
                elif cell.kind == "bash":
                    run_bash(cell.text)

    status = forked(play)
    print(f"{name}: {'failed' if status else 'ran'}", flush=True)
    return status


def main() -> None:
    """Make or try the given tutorials, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="*")
    parser.add_argument("--fast", action="store_true", help="run the short forms and write nothing")
    parser.add_argument("--pages", action="store_true", help="new texts, stored outputs")
    arguments = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "110", "TERM": "dumb", "NO_COLOR": "1"}
    os.environ |= {"TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore"}
    names = arguments.name or sorted(path.stem for path in SOURCES.glob("*.md"))
    if arguments.fast:
        import torch
        import transformers

        import vlrl.training  # noqa: F401  # what every command needs is imported once, before the forks

        torch.set_num_threads(1)
        assert transformers.AutoModel
        sys.exit(int(any([fast(name) for name in names])))
    for name in names:
        write(name, stored(name) if arguments.pages else execute(name))


if __name__ == "__main__":
    main()

"""What griffe, which reads docstrings for the site, is told: lines that begin with `>>>` are examples."""

from __future__ import annotations

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Gives the examples of a docstring the heading that the Google style has for them."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None and "\n>>> " in obj.docstring.value:
            text, _, examples = obj.docstring.value.partition("\n>>> ")
            inner = "\n".join(f"    {line}" for line in f">>> {examples}".splitlines())
            obj.docstring.value = f"{text}\nExamples:\n{inner}\n"

"""`transformers serve` behind a token and with bounds: `python -m vlrl.cli.transformers_server serve FOLDER
...` takes its words."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from vlrl.services.request_guard import RequestGuard
from vlrl.services.token_guard import TokenGuard

MODULE = "vlrl.cli.transformers_server"
PICTURES = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # formats that are opened; PostScript is a program


def limits_of(folder: Path) -> tuple[int, bool]:
    """(tokens that a model takes, whether its chat template renders `tools`)."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= config.get("text_config") or {}
    texts = [
        (folder / name).read_text(encoding="utf-8")
        for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
        if (folder / name).is_file()
    ]
    return int(config.get("max_position_embeddings") or 1 << 17), any("tools" in text for text in texts)


def guarded(app: Any, folder: Path) -> Any:
    """The server's app, behind the token and the checks of requests."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    most, has_tools = limits_of(folder)
    app.add_middleware(
        RequestGuard, most=most, has_tools=has_tools, count=lambda text: len(tokenizer(text)["input_ids"])
    )
    app.add_middleware(TokenGuard)  # what is added last is asked first
    return app


def main(words: list[str]) -> None:
    """Serve the folder `words[1]`."""
    from PIL import Image
    from transformers.cli import transformers as commands
    from transformers.cli.serving import server

    Image.init()
    for name in Image.ID.copy():
        if name not in PICTURES:
            Image.ID.remove(name)
    build_server = server.build_server
    server.build_server = lambda *given, **named: guarded(build_server(*given, **named), Path(words[1]))
    commands.app(words)


if __name__ == "__main__":
    main(sys.argv[1:])

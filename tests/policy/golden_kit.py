"""Released tokenizers, reduced to the golden texts (scripts/make_golden_tokens.py), and policies with their
vocabulary and random weights."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from vlrl.config.model_folder import fetched_folder

FOLDER = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))

# The formats of the two releases whose templates are not kept here: the golden ids are by the releases' own.
GEMMA3 = (
    "{{- bos_token -}}{%- set ns = namespace(system='') -%}{%- for m in messages -%}{%- if m.role == "
    "'system' -%}"
    "{%- set ns.system = (m.content if m.content is string else m.content[0].text) + '\n\n' -%}{%- else -%}"
    "{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + ns.system -}}{%- set "
    "ns.system = '' -%}"
    "{%- for part in ([{'type': 'text', 'text': m.content}] if m.content is string else m.content) -%}"
    "{{- '<start_of_image>' if part.type == 'image' else part.text | trim -}}{%- endfor -%}{{- "
    "'<end_of_turn>\n' -}}{%- endif -%}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}"
)
LLAMA3 = (
    "{{- bos_token -}}{%- for m in messages -%}{{- '<|start_header_id|>' + m.role + "
    "'<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' "
    "-}}{%- endif -%}"
)
TEMPLATES = {"gemma3": GEMMA3, "llama3": LLAMA3}


@cache
def golden(name: str) -> dict[str, Any]:
    """The golden file of a tokenizer."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def write_reduced(name: str, folder: Path) -> Path:
    """The reduced tokenizer as files that transformers loads, with the chat template."""
    file = golden(name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(file["tokenizer"]), encoding="utf-8")
    settings = file["settings"] | {"chat_template": file["template"] or TEMPLATES[name]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def whole_folder(name: str) -> Path | None:
    """The whole tokenizer, where the script has fetched it."""
    source = fetched_folder("smollm2", "float32")
    folder = source if name == "smollm2" else source.parents[1] / "tokenizers" / name
    return folder if (folder / "tokenizer.json").is_file() else None


def load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)

"""Requests for short illustrated texts about coloured shapes."""

from __future__ import annotations

import json
from dataclasses import dataclass

from vlrl.plugins.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.generators.scenes import COLOURS, SHAPES
from vlrl_data.lab.base import GeneratedSource


@register("gen_illustrated")
@dataclass(frozen=True, kw_only=True)
class GenIllustrated(GeneratedSource):
    """Write about coloured shapes, with as many pictures as there are shapes (or none at all); task
    `illustrated`.

    For environment `llm_i.illustrated`: `meta.pictures` is the number of pictures (-1: none), `meta.tools`
    names the tool of each: `search` for what is said to exist, `diffusion` for what is imagined, `edit` for
    another version of the first. The demonstration writes one sentence and one tag for each. Paper: the
    requests of LLM-I (arXiv:2509.13642, sec. 3), in a world that its stand-in tools can draw. `most` is the
    largest number.
    """

    most: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most < 1:
            raise ConfigError(f"most={self.most} must be at least 1")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        things = [
            f"{rng.choice(sorted(COLOURS))} {rng.choice(SHAPES)}" for _ in range(rng.randint(0, self.most))
        ]
        tools, asked, told = [], [], []
        for number, thing in enumerate(things):
            tool = rng.choice(["search", "diffusion", *(["edit"] if number else [])])
            words = {
                "search": f"a real {thing}",
                "diffusion": f"a {thing} of a dream",
                "edit": "the first picture in grey",
            }[tool]
            params = {
                "search": {"query": thing},
                "diffusion": {"prompt": thing},
                "edit": {"img_index": 0, "prompt": "make it grey"},
            }[tool]
            tag = json.dumps({"source": tool, "description": words, "params": params})
            tools.append(tool)
            asked.append(words)
            told.append(f"This is {words}. <imgen>{tag}</imgen>")
        pictures = len(things) or -1
        what = f"Show, one picture each: {'; '.join(asked)}." if things else "Use no pictures."
        target = " ".join(told) or "Circles are round."
        meta = {"pictures": pictures, "tools": tools}
        return Row(
            self.id(index),
            f"Write a short text about shapes. {what}",
            pictures,
            task="illustrated",
            target=target,
            meta=meta,
        )

"""Questions about random graphs, as text or as a drawing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from PIL import Image, ImageDraw

from vlrl.plugins.registry import ConfigError, register
from vlrl.services.lazy import nx
from vlrl.types import Row
from vlrl_data.generators.graph_tasks import TASKS
from vlrl_data.lab.base import GeneratedSource, tagged_answer
from vlrl_data.media.images import GeneratedImage

Edges = tuple[tuple[int, int, int], ...]  # two nodes, and the weight of the edge (0: none)


def draw_graph(nodes: int, edges: Edges, size: int) -> Image.Image:
    """The graph with its numbered nodes on a circle, and the weights of edges that have one."""
    image = Image.new("RGB", (size, size), "white")
    pen = ImageDraw.Draw(image)
    middle, radius = size / 2, size * 0.4
    places = [
        (
            middle + radius * math.cos(2 * math.pi * i / nodes),
            middle + radius * math.sin(2 * math.pi * i / nodes),
        )
        for i in range(nodes)
    ]
    for a, b, weight in edges:
        pen.line((*places[a], *places[b]), fill=(90, 90, 90), width=2)
        if weight:  # a third of the way, where fewer lines cross than in the middle
            (x0, y0), (x1, y1) = places[a], places[b]
            pen.text(((2 * x0 + x1) / 3, (2 * y0 + y1) / 3), str(weight), fill=(180, 0, 0), anchor="mm")
    for i, (x, y) in enumerate(places):
        pen.ellipse((x - 9, y - 9, x + 9, y + 9), fill=(255, 220, 120), outline=(90, 90, 90))
        pen.text((x, y), str(i), fill="black", anchor="mm")
    return image


@register("gen_graph")
@dataclass(frozen=True, kw_only=True)
class GenGraph(GeneratedSource):
    """A question about an undirected random graph of `nodes` nodes, with each edge present with probability
    `density`; as text, or drawn (`drawn`).

    Paper: G1, arXiv:2505.18499 (Erdos: graph tasks with program checkers). `ask`: kinds of question; 55 of
    ours replace its 50 (`vlrl_data.generators.graph_tasks`): numbers, yes or no, sets of nodes, weighted
    graphs, and questions with several correct answers. Reward: `graph`, which checks the last kind by rule
    and compares the others. Deviates: directed graphs are left out.
    """

    ask: tuple[str, ...] = tuple(TASKS)
    nodes: int = 6
    density: float = 0.4
    drawn: bool = False
    size: int = 196

    def __post_init__(self) -> None:
        super().__post_init__()
        for kind in self.ask:
            if kind not in TASKS:
                raise ConfigError(f"ask: {kind!r} is unknown. Known: {', '.join(TASKS)}.")
        if not 2 <= self.nodes <= 40 or not 0 < self.density <= 1:
            raise ConfigError(f"nodes={self.nodes} must be 2-40 and density={self.density} in (0, 1]")

    def row(self, index: int) -> Row:
        rng = self.rng(index)
        pairs = [(a, b) for a in range(self.nodes) for b in range(a + 1, self.nodes)]
        graph = nx.empty_graph(self.nodes)
        graph.add_edges_from([pair for pair in pairs if rng.random() < self.density] or [rng.choice(pairs)])
        kind = rng.choice(self.ask)
        question, answer, demonstration, checked = TASKS[kind](rng, graph)
        edges = tuple((min(a, b), max(a, b), weight) for a, b, weight in graph.edges.data("weight", 0))
        edge_list = " ".join(f"{a}-{b}:{weight}" if weight else f"{a}-{b}" for a, b, weight in edges)
        intro = f"Nodes 0 to {self.nodes - 1}, edges {edge_list}. "
        images = (GeneratedImage(draw_graph, (self.nodes, edges, self.size)),) if self.drawn else ()
        meta = {"kind": kind, "nodes": self.nodes, "edges": [[a, b] for a, b, _ in edges], **checked}
        text = question if self.drawn else intro + question
        return Row(
            self.id(index),
            text,
            answer,
            images=images,
            task="graph",
            target=tagged_answer(demonstration),
            meta=meta,
        )

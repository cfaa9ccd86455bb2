"""Questions about graphs, as text or drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import networkx as nx
from PIL import Image, ImageDraw

from vlrl.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.generators.graph_tasks import TASKS
from vlrl_data.lab.base import Lab, demonstrate
from vlrl_data.media import Made

Edges = tuple[tuple[int, int, int], ...]  # two nodes, and the weight of the edge (0: none)


def draw_graph(nodes: int, edges: Edges, size: int) -> Image.Image:
    """Nodes on a circle, numbered, and the weights of edges that have one."""
    image = Image.new("RGB", (size, size), "white")
    pen = ImageDraw.Draw(image)
    middle, radius = size / 2, size * 0.4
    places = [(middle + radius * math.cos(2 * math.pi * i / nodes), middle + radius * math.sin(2 * math.pi * i / nodes)) for i in range(nodes)]
    for a, b, weight in edges:
        pen.line((*places[a], *places[b]), fill=(90, 90, 90), width=2)
        if weight:  # a third of the way, where fewer lines cross than in the middle
            pen.text(tuple((2 * p + q) / 3 for p, q in zip(places[a], places[b])), str(weight), fill=(180, 0, 0), anchor="mm")
    for i, (x, y) in enumerate(places):
        pen.ellipse((x - 9, y - 9, x + 9, y + 9), fill=(255, 220, 120), outline=(90, 90, 90))
        pen.text((x, y), str(i), fill="black", anchor="mm")
    return image


@register("gen_graph")
@dataclass(frozen=True, kw_only=True)
class GenGraph(Lab):
    """A question about an undirected random graph of `nodes` nodes, each edge there with probability `density`; as text, or drawn (`drawn`).

    Paper: G1, arXiv:2505.18499 (Erdos: graph tasks with program checkers). `ask`: kinds of question; 55 of ours stand in for its 50
    (`vlrl_data.generators.graph_tasks`): numbers, facts, sets of nodes, weighted graphs, and what has several right answers. Reward: `graph`,
    which checks the latter by rule and compares the rest. Deviates: directed graphs are left out.
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
        question, answer, said, checked = TASKS[kind](rng, graph)
        edges = tuple((min(a, b), max(a, b), weight) for a, b, weight in graph.edges.data("weight", 0))
        told = " ".join(f"{a}-{b}:{weight}" if weight else f"{a}-{b}" for a, b, weight in edges)
        listed = f"Nodes 0 to {self.nodes - 1}, edges {told}. "
        images = (Made(draw_graph, (self.nodes, edges, self.size)),) if self.drawn else ()
        meta = {"kind": kind, "nodes": self.nodes, "edges": [[a, b] for a, b, _ in edges], **checked}
        text = question if self.drawn else listed + question
        return Row(self.id(index), text, answer, images=images, task="graph", target=demonstrate(said), meta=meta)

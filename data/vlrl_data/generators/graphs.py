"""Questions about graphs, as text or drawn."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw

from vlrl.registry import ConfigError, register
from vlrl.types import Row
from vlrl_data.lab.base import Lab, demonstrate
from vlrl_data.media import Made

Edges = tuple[tuple[int, int], ...]
Asked = tuple[str, Any, str, dict[str, Any]]  # question, gold answer, demonstration, what a checker needs beside the graph


def neighbours(nodes: int, edges: Edges) -> list[list[int]]:
    """Adjacency lists of an undirected graph."""
    near: list[list[int]] = [[] for _ in range(nodes)]
    for a, b in edges:
        near[a].append(b)
        near[b].append(a)
    return [sorted(item) for item in near]


def shortest(near: list[list[int]], start: int) -> dict[int, list[int]]:
    """A shortest path to every node that can be reached."""
    found, queue = {start: [start]}, deque([start])
    while queue:
        node = queue.popleft()
        for other in near[node]:
            if other not in found:
                found[other] = [*found[node], other]
                queue.append(other)
    return found


def components(near: list[list[int]]) -> list[set[int]]:
    """Connected components."""
    left, out = set(range(len(near))), []
    while left:
        part = set(shortest(near, min(left)))
        out.append(part)
        left -= part
    return out


def greedy_colours(near: list[list[int]]) -> list[int]:
    """A proper colouring, colours from 1, at most the largest degree + 1 of them."""
    colours: list[int] = []
    for node in range(len(near)):
        used = {colours[other] for other in near[node] if other < node}
        colours.append(next(c for c in range(1, len(near) + 1) if c not in used))
    return colours


def _degree(rng: random.Random, near: list[list[int]]) -> Asked:
    node = rng.randrange(len(near))
    return f"How many edges has node {node}?", len(near[node]), str(len(near[node])), {}


def _edges(rng: random.Random, near: list[list[int]]) -> Asked:
    count = sum(map(len, near)) // 2
    return "How many edges has the graph?", count, str(count), {}


def _neighbours(rng: random.Random, near: list[list[int]]) -> Asked:
    node = rng.choice([i for i, item in enumerate(near) if item] or [0])
    said = ", ".join(map(str, near[node])) or "none"
    return f"Which nodes are joined to node {node}?", [str(i) for i in near[node]], said, {}


def _connected(rng: random.Random, near: list[list[int]]) -> Asked:
    a, b = rng.sample(range(len(near)), 2)
    answer = "yes" if b in shortest(near, a) else "no"
    return f"Is there a way from node {a} to node {b}? Answer yes or no.", answer, answer, {}


def _components(rng: random.Random, near: list[list[int]]) -> Asked:
    count = len(components(near))
    return "How many connected components has the graph?", count, str(count), {}


def _distance(rng: random.Random, near: list[list[int]]) -> Asked:
    a, b, path = _far(rng, near)
    return f"How many edges has the shortest way from node {a} to node {b}?", len(path) - 1, str(len(path) - 1), {}


def _path(rng: random.Random, near: list[list[int]]) -> Asked:
    a, b, path = _far(rng, near)
    checked = {"check": "path", "start": a, "end": b, "length": len(path) - 1}
    return f"Give a shortest way from node {a} to node {b} as a list of nodes.", path, " ".join(map(str, path)), checked


def _colouring(rng: random.Random, near: list[list[int]]) -> Asked:
    colours = greedy_colours(near)
    checked = {"check": "colouring", "colours": max(colours)}
    question = f"Colour the nodes with numbers from 1 to {max(colours)} so that joined nodes differ. List the colours of nodes 0, 1, ... in order."
    return question, colours, " ".join(map(str, colours)), checked


def _far(rng: random.Random, near: list[list[int]]) -> tuple[int, int, list[int]]:
    starts = [i for i, item in enumerate(near) if item]
    if not starts:
        raise ConfigError("density: the graph has no edge; raise `density` or `nodes`")
    a = rng.choice(starts)
    b, path = rng.choice([(node, path) for node, path in shortest(near, a).items() if node != a])
    return a, b, path


TASKS: dict[str, Callable[[random.Random, list[list[int]]], Asked]] = {
    "degree": _degree,
    "edges": _edges,
    "neighbours": _neighbours,
    "connected": _connected,
    "components": _components,
    "distance": _distance,
    "path": _path,
    "colouring": _colouring,
}


def draw_graph(nodes: int, edges: Edges, size: int) -> Image.Image:
    """Nodes on a circle, numbered."""
    image = Image.new("RGB", (size, size), "white")
    pen = ImageDraw.Draw(image)
    middle, radius = size / 2, size * 0.4
    places = [(middle + radius * math.cos(2 * math.pi * i / nodes), middle + radius * math.sin(2 * math.pi * i / nodes)) for i in range(nodes)]
    for a, b in edges:
        pen.line((*places[a], *places[b]), fill=(90, 90, 90), width=2)
    for i, (x, y) in enumerate(places):
        pen.ellipse((x - 9, y - 9, x + 9, y + 9), fill=(255, 220, 120), outline=(90, 90, 90))
        pen.text((x, y), str(i), fill="black", anchor="mm")
    return image


@register("gen_graph")
@dataclass(frozen=True, kw_only=True)
class GenGraph(Lab):
    """A question about an undirected random graph of `nodes` nodes, each edge there with probability `density`; as text, or drawn (`drawn`).

    Paper: G1, arXiv:2505.18499 (Erdos: graph tasks with program checkers); 8 of its 50 kinds: degree, edges, neighbours, connected, components,
    distance, path, colouring (`ask`). Reward: `graph`, which checks paths and colourings by rule (any right one counts) and compares the rest.
    """

    ask: tuple[str, ...] = ("degree", "distance", "connected")
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
        edges = tuple(pair for pair in pairs if rng.random() < self.density) or (rng.choice(pairs),)
        kind = rng.choice(self.ask)
        question, answer, said, checked = TASKS[kind](rng, neighbours(self.nodes, edges))
        listed = f"Nodes 0 to {self.nodes - 1}, edges " + " ".join(f"{a}-{b}" for a, b in edges) + ". "
        images = (Made(draw_graph, (self.nodes, edges, self.size)),) if self.drawn else ()
        meta = {"kind": kind, "nodes": self.nodes, "edges": [list(edge) for edge in edges], **checked}
        text = question if self.drawn else listed + question
        return Row(self.id(index), text, answer, images=images, task="graph", target=demonstrate(said), meta=meta)

"""The kinds of question about an undirected graph, each with its answer computed by networkx."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from vlrl.plugins.registry import ConfigError
from vlrl.services.lazy import nx

Asked = tuple[str, Any, str, dict[str, Any]]  # question, gold answer, demonstration, meta for the checker
Task = Callable[[random.Random, Any], Asked]  # may change the graph, so that the answer exists or is balanced

COUNTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "edges": ("How many edges has the graph?", lambda g: g.number_of_edges()),
    "components": (
        "How many connected components has the graph?",
        lambda g: nx.number_connected_components(g),
    ),
    "largest_component": (
        "How many nodes has the largest connected component?",
        lambda g: max(map(len, nx.connected_components(g))),
    ),
    "triangles": ("How many triangles has the graph?", lambda g: sum(nx.triangles(g).values()) // 3),
    "largest_degree": (
        "What is the largest number of edges at one node?",
        lambda g: max(d for _, d in g.degree),
    ),
    "smallest_degree": (
        "What is the smallest number of edges at one node?",
        lambda g: min(d for _, d in g.degree),
    ),
    "isolated": ("How many nodes have no edge?", lambda g: nx.number_of_isolates(g)),
    "leaves": ("How many nodes have exactly one edge?", lambda g: sum(d == 1 for _, d in g.degree)),
    "odd_nodes": ("How many nodes have an odd number of edges?", lambda g: sum(d % 2 for _, d in g.degree)),
    "bridges": (
        "How many edges are bridges (without one of them the graph has more components)?",
        lambda g: len(list(nx.bridges(g))),
    ),
    "girth": (
        "How many edges has the shortest cycle? Answer 0 if there is no cycle.",
        lambda g: 0 if nx.is_forest(g) else nx.girth(g),
    ),
    "longest_distance": (
        (
            "Over all pairs of nodes with a way between them, how many edges has the longest of the "
            "shortest "
            "ways?"
        ),
        lambda g: max(max(lengths.values()) for _, lengths in nx.all_pairs_shortest_path_length(g)),
    ),
    "clique_size": (
        "How many nodes has the largest set of nodes that are all joined to each other?",
        lambda g: len(largest_clique(g)),
    ),
    "independent_size": (
        "How many nodes has the largest set of nodes of which no two are joined?",
        lambda g: len(largest_clique(nx.complement(g))),
    ),
    "cover_size": (
        "How few nodes can touch every edge?",
        lambda g: len(g) - len(largest_clique(nx.complement(g))),
    ),
    "matching_size": (
        "How many edges can be chosen at most so that no two share a node?",
        lambda g: len(matching(g)),
    ),
    "core": (
        "What is the largest k for which the graph has a k-core?",
        lambda g: max(nx.core_number(g).values()),
    ),
    "edge_connectivity": (
        "How few edges must be removed to make the graph disconnected? Answer 0 if it is so already.",
        lambda g: nx.edge_connectivity(g),
    ),
    "spanning_trees": (
        "How many spanning trees has the graph?",
        lambda g: round(nx.number_of_spanning_trees(g)) if nx.is_connected(g) else 0,
    ),
    "cycle_rank": (
        "How many edges must be removed at least so that no cycle is left?",
        lambda g: len(g.edges) - len(g) + nx.number_connected_components(g),
    ),
}
FACTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "is_connected": ("Is the graph connected?", lambda g: nx.is_connected(g)),
    "is_tree": ("Is the graph a tree?", lambda g: nx.is_tree(g)),
    "has_cycle": ("Does the graph have a cycle?", lambda g: not nx.is_forest(g)),
    "is_bipartite": (
        "Can the nodes be put in two groups so that every edge joins nodes of different groups?",
        lambda g: nx.is_bipartite(g),
    ),
    "is_planar": ("Can the graph be drawn in the plane without crossing edges?", lambda g: nx.is_planar(g)),
    "is_eulerian": (
        "Is there a closed walk that uses every edge once and reaches every node?",
        lambda g: nx.is_eulerian(g),
    ),
    "is_regular": ("Do all nodes have the same number of edges?", lambda g: nx.is_regular(g)),
    "has_triangle": ("Does the graph have a triangle?", lambda g: any(nx.triangles(g).values())),
}
OF_A_NODE: dict[str, tuple[str, Callable[[Any, int], Any]]] = {
    "degree": ("How many edges has node {0}?", lambda g, a: g.degree[a]),
    "triangles_at": ("How many triangles contain node {0}?", lambda g, a: nx.triangles(g, a)),
    "component_of": (
        "How many nodes has the connected component of node {0}, itself counted?",
        lambda g, a: len(nx.node_connected_component(g, a)),
    ),
    "eccentricity": (
        "How many edges away is the farthest node that can be reached from node {0}?",
        lambda g, a: max(distances(g, a).values()),
    ),
    "core_of": (
        "What is the largest k for which node {0} is in the k-core?",
        lambda g, a: nx.core_number(g)[a],
    ),
    "neighbours": ("Which nodes are joined to node {0}?", lambda g, a: set(g[a])),
    "reached": ("Which other nodes can be reached from node {0}?", lambda g, a: set(distances(g, a)) - {a}),
    "two_away": (
        "Which nodes are exactly two edges away from node {0}, by shortest way?",
        lambda g, a: {b for b, d in distances(g, a).items() if d == 2},
    ),
}
SETS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "cut_nodes": (
        "Without which single nodes would the graph have more components? List all of them, or say none.",
        lambda g: nx.articulation_points(g),
    ),
    "busiest": (
        "Which nodes have the most edges? List all of them.",
        lambda g: [a for a, d in g.degree if d == max(d for _, d in g.degree)],
    ),
    "lonely": ("Which nodes have no edge? List all of them, or say none.", lambda g: nx.isolates(g)),
    "core_nodes": (
        "Which nodes are in the 2-core? List all of them, or say none.",
        lambda g: nx.k_core(g, 2).nodes,
    ),
}
WEIGHTED: dict[str, tuple[str, Callable[[Any, int, int], Any]]] = {
    "cheapest_way": (
        "What is the smallest sum of weights of a way from node {0} to node {1}?",
        lambda g, a, b: nx.dijkstra_path_length(g, a, b),
    ),
    "spanning_weight": (
        "What is the smallest sum of weights of edges that keep everything joined that is joined now?",
        lambda g, a, b: nx.minimum_spanning_tree(g).size("weight"),
    ),
    "flow": (
        "Weights are capacities. How much can flow from node {0} to node {1}?",
        lambda g, a, b: nx.maximum_flow_value(g, a, b, "weight"),
    ),
}


def distances(graph: Any, node: int) -> dict[int, int]:
    """Number of edges of the shortest path to every node that can be reached."""
    return dict(nx.single_source_shortest_path_length(graph, node))


def largest_clique(graph: Any) -> list[int]:
    """A largest clique."""
    largest: list[int] = max(nx.find_cliques(graph), key=len)
    return sorted(largest)


def matching(graph: Any) -> list[tuple[int, int]]:
    """A largest matching: edges without a common node."""
    return sorted((min(e), max(e)) for e in nx.max_weight_matching(graph, maxcardinality=True))


def two_joined(rng: random.Random, graph: Any) -> tuple[int, int]:
    """Two nodes with a path between them."""
    starts = [node for node in graph if graph.degree[node]]
    if not starts:
        raise ConfigError("density: the graph has no edge; raise `density` or `nodes`")
    a = rng.choice(starts)
    return a, rng.choice(sorted(set(distances(graph, a)) - {a}))


def _answered(question: str, value: Any) -> Asked:
    """A question whose answer is a number, yes or no, or a set of nodes."""
    if isinstance(value, bool):
        answer = "yes" if value else "no"
        return question, answer, answer, {}
    if isinstance(value, int):
        return question, value, str(value), {}
    nodes = [str(node) for node in sorted(value)]
    return question, nodes, ", ".join(nodes) or "none", {}


def _of_graph(rng: random.Random, graph: Any, question: str, rule: Callable[[Any], Any]) -> Asked:
    return _answered(question, rule(graph))


def _redraw(rng: random.Random, graph: Any) -> None:
    """Another graph on the same nodes: a tree, a cycle, or edges of any density."""
    nodes = rng.sample(sorted(graph), len(graph))
    made = (
        nx.random_labeled_tree(len(nodes), seed=rng),
        nx.cycle_graph(len(nodes)),
        nx.gnp_random_graph(len(nodes), rng.random(), seed=rng),
    )
    graph.clear_edges()
    graph.add_edges_from((nodes[a], nodes[b]) for a, b in rng.choice(made).edges if a != b)


def _fact(rng: random.Random, graph: Any, question: str, rule: Callable[[Any], Any]) -> Asked:
    wanted = (
        rng.random() < 0.5
        # the first graph nearly always gives the same answer, so graphs are redrawn until half the answers
        # are
        # yes
    )
    for _ in range(50):
        if bool(rule(graph)) == wanted:
            break
        _redraw(rng, graph)
    return _answered(f"{question} Answer yes or no.", bool(rule(graph)))


def _of_a_node(rng: random.Random, graph: Any, question: str, rule: Callable[[Any, int], Any]) -> Asked:
    node = rng.choice([a for a in graph if graph.degree[a]])
    return _answered(question.format(node), rule(graph, node))


def _weighted(rng: random.Random, graph: Any, question: str, rule: Callable[[Any, int, int], Any]) -> Asked:
    for a, b in graph.edges:
        graph[a][b]["weight"] = rng.randint(1, 9)
    a, b = two_joined(rng, graph)
    return _answered(question.format(a, b), int(rule(graph, a, b)))


def _of_two(rng: random.Random, graph: Any, question: str, rule: Callable[[Any, int, int], Any]) -> Asked:
    a, b = two_joined(rng, graph)
    return _answered(question.format(a, b), rule(graph, a, b))


def _connected(rng: random.Random, graph: Any) -> Asked:
    a, b = rng.sample(sorted(graph), 2)
    return _answered(f"Is there a way from node {a} to node {b}? Answer yes or no.", nx.has_path(graph, a, b))


def _checked(question: str, answer: list[int], check: str, demonstration: str = "", **needs: Any) -> Asked:
    return question, answer, demonstration or " ".join(map(str, answer)), {"check": check, **needs}


def _path(rng: random.Random, graph: Any) -> Asked:
    a, b = two_joined(rng, graph)
    path = nx.shortest_path(graph, a, b)
    return _checked(
        f"Give a shortest way from node {a} to node {b} as a list of nodes.",
        path,
        "path",
        start=a,
        end=b,
        length=len(path) - 1,
    )


def _colouring(rng: random.Random, graph: Any) -> Asked:
    found = nx.greedy_color(graph, lambda g, _: sorted(g))
    most = max(found.values()) + 1
    question = (
        f"Colour the nodes with numbers from 1 to {most} so that joined nodes differ. List the colours of "
        "nodes 0, 1, ... in order."
    )
    return _checked(question, [found[node] + 1 for node in sorted(graph)], "colouring", colours=most)


def _hamilton(rng: random.Random, graph: Any) -> Asked:
    path = rng.sample(sorted(graph), len(graph))
    graph.add_edges_from(itertools.pairwise(path))
    return _checked("Give a way that visits every node exactly once, as a list of nodes.", path, "hamilton")


def _clique(rng: random.Random, graph: Any) -> Asked:
    nodes = largest_clique(graph)
    return _checked(
        f"Name {len(nodes)} nodes that are all joined to each other.", nodes, "clique", size=len(nodes)
    )


def _independent(rng: random.Random, graph: Any) -> Asked:
    nodes = largest_clique(nx.complement(graph))
    return _checked(
        f"Name {len(nodes)} nodes of which no two are joined.", nodes, "independent", size=len(nodes)
    )


def _cover(rng: random.Random, graph: Any) -> Asked:
    nodes = sorted(set(graph) - set(largest_clique(nx.complement(graph))))
    return _checked(
        f"Name {len(nodes)} nodes that together touch every edge.", nodes, "cover", size=len(nodes)
    )


def _matching(rng: random.Random, graph: Any) -> Asked:
    pairs = matching(graph)
    demonstration = " ".join(f"{a}-{b}" for a, b in pairs)
    return _checked(
        f"Name {len(pairs)} edges of which no two share a node, as a-b.",
        [n for e in pairs for n in e],
        "matching",
        demonstration,
        size=len(pairs),
    )


def _spanning_tree(rng: random.Random, graph: Any) -> Asked:
    if not nx.is_connected(graph):
        graph.add_edges_from(itertools.pairwise(min(part) for part in list(nx.connected_components(graph))))
    pairs = sorted((min(e), max(e)) for e in nx.minimum_spanning_edges(graph, data=False))
    return _checked(
        "Name the edges of a spanning tree, as a-b.",
        [n for e in pairs for n in e],
        "tree",
        " ".join(f"{a}-{b}" for a, b in pairs),
    )


TASKS: dict[str, Task] = {
    **{
        kind: partial(_of_graph, question=question, rule=rule)
        for kind, (question, rule) in (COUNTS | SETS).items()
    },
    **{kind: partial(_fact, question=question, rule=rule) for kind, (question, rule) in FACTS.items()},
    **{
        kind: partial(_of_a_node, question=question, rule=rule)
        for kind, (question, rule) in OF_A_NODE.items()
    },
    **{kind: partial(_weighted, question=question, rule=rule) for kind, (question, rule) in WEIGHTED.items()},
    "connected": _connected,
    "distance": lambda rng, graph: _of_two(
        rng, graph, "How many edges has the shortest way from node {0} to node {1}?", nx.shortest_path_length
    ),
    "ways": lambda rng, graph: _of_two(
        rng,
        graph,
        "How many different shortest ways lead from node {0} to node {1}?",
        lambda g, a, b: len(list(nx.all_shortest_paths(g, a, b))),
    ),
    "common": lambda rng, graph: _of_two(
        rng,
        graph,
        "Which nodes are joined to both node {0} and node {1}? List all of them, or say none.",
        lambda g, a, b: set(g[a]) & set(g[b]),
    ),
    "path": _path,
    "colouring": _colouring,
    "hamilton": _hamilton,
    "clique": _clique,
    "independent_set": _independent,
    "cover": _cover,
    "matching": _matching,
    "spanning_tree": _spanning_tree,
}

"""Graphs: questions about a given graph, scene graphs, and relation triples."""

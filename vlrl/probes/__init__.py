"""Diagnostic papers as commands: `vlrl probe NAME` measures a paper's finding on models, runs or rewards of
yours, and ends in a table, a statement with the paper's threshold, and a figure (docs/probes.md)."""

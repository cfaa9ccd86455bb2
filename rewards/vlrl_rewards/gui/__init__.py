"""Graphical user interfaces: one action of an agent, and where it clicks."""

"""Puzzles with a checkable structure: jigsaws, orders, mazes, plans and sequences."""

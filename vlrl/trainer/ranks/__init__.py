"""Processes of a run: start, collectives, locks, signals, and what to do when one is lost."""

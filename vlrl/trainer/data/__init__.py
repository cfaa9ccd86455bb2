"""Rows of a run: reading, checks, units, quarantine."""

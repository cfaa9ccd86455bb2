"""Presets against each other on a lab task, from the same cold start, over seeds."""

"""Comparison of presets on a lab task: the same cold start, several seeds."""

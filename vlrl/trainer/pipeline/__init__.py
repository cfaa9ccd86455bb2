"""Loops that collect batches ahead of the step that trains on them."""

"""Axis-aligned boxes: reading them out of an answer, overlap, matching, and the rewards for one box, many
boxes and groups of boxes."""

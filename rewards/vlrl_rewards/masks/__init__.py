"""Regions that are not axis-aligned boxes: pixel masks, polygons and rotated boxes."""

"""Charts as plotting code."""

"""The kit of all HTML pages: one frame, one style, one script, one chart. Pages need no network and no other
file."""

"""Images and videos as `Media`: decoding, limits, download, and what a dataset's media columns may hold."""

"""The scorers of the suites, one file per benchmark or family of answers."""

"""One training step: sample, score, assign, learn."""

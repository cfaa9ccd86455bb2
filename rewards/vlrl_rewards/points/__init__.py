"""Points: one point, several points, and keypoints of a body."""

"""Rewards that hold other rewards: sums, gates, ranks, rubrics, self-verification."""

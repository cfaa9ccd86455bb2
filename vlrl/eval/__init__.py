"""Evaluation: suites, scorer profiles over the same responses, statistics, journal and page."""

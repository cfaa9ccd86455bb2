"""Aggregates: how the scores of a suite's responses become its figures."""

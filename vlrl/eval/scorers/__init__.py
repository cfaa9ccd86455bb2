"""Scorers: one file per benchmark or per kind of answer."""

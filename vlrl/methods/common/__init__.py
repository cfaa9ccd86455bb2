"""Helpers that several papers share; each file is one idea."""

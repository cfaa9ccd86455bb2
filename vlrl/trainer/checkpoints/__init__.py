"""Checkpoints: what is saved, where, and how a run goes on from one."""

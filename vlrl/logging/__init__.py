"""The output of a run: logs, rollouts, the live view and the report."""

"""What a run leaves behind: logs, rollouts, the live view and the report."""

"""Video: spans of time and time stamps."""

"""Processes beside the trainer: launching and watching a server, and the HTTP client that talks to it."""

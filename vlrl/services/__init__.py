"""Clients and launchers of what runs beside the trainer."""

"""Plug-ins: the stages, their contexts and states, and the registry."""

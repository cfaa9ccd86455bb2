"""Environments: tools that answer the policy within a conversation."""

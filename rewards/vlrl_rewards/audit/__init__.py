"""Audits of rewards: attacks that must not pass, inputs that cost time or memory, and control rewards."""

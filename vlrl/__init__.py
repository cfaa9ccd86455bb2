"""Reinforcement learning with verifiable rewards for vision-language models, and for text."""

__version__ = "0.1.0"

"""Strict checks of answers to the generated questions of `reasoning_gym`, and the reward that uses them."""

"""Loops other than the synchronous one; `loop: NAME` in a config. Each has a `train_step(run)`."""

"""Judges: models that score responses where no rule can.

LLM judges (`client.py`), and the place for scalar, process and generative reward models and for rubrics. A judge is a model, so it can be wrong or
fooled: `audit.py` measures both. Judges are pinned to a revision and their replies are cached, so that a verdict can be reproduced.
"""

"""Judges: models that score responses where no rule can.

LLM judges (`client.py`), asked by rewards `judged` and `rubric` and by `vlrl eval`; process reward models
(`process.py`), asked by the reward shaping `pure.process_rewards`. A judge is a model, so it can be wrong or
fooled: `audit.py` measures both. Judges are pinned to a revision and their replies are cached, so that a
verdict can be reproduced.
"""

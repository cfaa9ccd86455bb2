"""Models beside the policy, asked where no rule can score.

`service.py` asks a model through any engine: batches, a budget, a cache, a failure that is no verdict.
`judge.py` asks about responses by the prompts of `templates/`; `audit.py` and `attacks.py` measure a judge.
`process.py` reads process reward models. Judges are pinned to a revision and their replies are cached, so
that a verdict can be reproduced.
"""

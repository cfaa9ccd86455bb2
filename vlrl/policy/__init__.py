"""Model and processor: `Policy` encodes prompts and scores completions; a `Family` says how one kind of model is run."""

from vlrl.policy.encoded import Encoded, Features, Seen
from vlrl.policy.family import Family
from vlrl.policy.policy import Policy

__all__ = ["Encoded", "Family", "Features", "Policy", "Seen"]

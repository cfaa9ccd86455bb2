"""Model and processor. `Policy` encodes prompts and scores completions; a `Family` defines how one kind of
model is run."""

from vlrl.policy.encoded import EncodedPrompt, Features, MediaEmbeds
from vlrl.policy.family import Family
from vlrl.policy.policy import Policy

__all__ = ["EncodedPrompt", "Family", "Features", "MediaEmbeds", "Policy"]

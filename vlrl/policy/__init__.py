"""Model and processor. `Policy` encodes prompts and scores completions; a `Family` defines how one kind of
model is run."""

from typing import TYPE_CHECKING, Any

from vlrl.policy.encoded import EncodedPrompt, Features, MediaEmbeds
from vlrl.policy.family import Family

if TYPE_CHECKING:
    from vlrl.policy.policy import Policy

__all__ = ["EncodedPrompt", "Family", "Features", "MediaEmbeds", "Policy"]


def __getattr__(name: str) -> Any:
    if name == "Policy":  # imports torch
        from vlrl.policy.policy import Policy

        return Policy
    raise AttributeError(f"module 'vlrl.policy' has no attribute {name!r}")

"""Modules of a loaded model that get another forward pass: their class gets a mixin in front."""

from __future__ import annotations

from typing import Any


def mix_in(module: Any, mixin: type, **attributes: Any) -> None:
    """Put `mixin` before the class of one module; names and weights stay. Once is enough.

    The class keeps its name, which transformers and PEFT look at.

    >>> class Plain:
    ...     def say(self):
    ...         return "plain"
    >>> class Loud:
    ...     def say(self):
    ...         return super().say().upper() + self.mark
    >>> one = Plain()
    >>> for _ in range(2):
    ...     mix_in(one, Loud, mark="!")
    >>> one.say(), type(one).__name__, Plain().say()
    ('PLAIN!', 'Plain', 'plain')
    """
    kind = type(module)
    if not isinstance(module, mixin):
        module.__class__ = type(kind.__name__, (mixin, kind), attributes)

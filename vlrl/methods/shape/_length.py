"""What the shapes share that make long rollouts dearer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.registry import ConfigError

if TYPE_CHECKING:
    from vlrl.run import Run


def check_alone(run: Run) -> None:
    """Refuse a second penalty on length."""
    slots = [slot for slot, shape in run.shape.items() if shape.punishes_length]
    if len(slots) > 1:
        raise ConfigError(f"shape: {' and '.join(slots)} both punish length, and nobody set their sum; drop one of them ({slots[1]}: null)")

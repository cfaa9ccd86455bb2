"""Names of reward slots in the fields of plug-ins: a name that no reward of the phase has is an error before
the run."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from vlrl.plugins.registry import ConfigError, suggest

if TYPE_CHECKING:
    from vlrl.trainer.phase import Phase


def referenced_slots(plugin: Any) -> list[tuple[str, str]]:
    """(field, slot) of every reward slot that a plug-in's fields of type RewardSlot name; an empty name
    refers to nothing."""
    found = []
    for field in dataclasses.fields(plugin) if dataclasses.is_dataclass(plugin) else ():
        if "RewardSlot" in str(field.type):
            value = getattr(plugin, field.name)
            found += [
                (field.name, slot) for slot in ((value,) if isinstance(value, str) else value or ()) if slot
            ]
    return found


def check_slot_references(phase: Phase) -> None:
    """Raise ConfigError for a plug-in that names a reward slot which the phase does not have."""
    for where, plugin in phase.plugins():
        for field, slot in referenced_slots(plugin):
            if slot not in phase.maps["rewards"]:
                known = suggest(slot, phase.maps["rewards"]) if phase.maps["rewards"] else " It has none."
                raise ConfigError(
                    f"{where}.{field}: {slot!r} is no reward slot of phase {phase.name!r}.{known} Name a "
                    "slot or none"
                )

"""Whether a wheel holds what the checkout's packages hold: `python scripts/check_wheel.py dist/*.whl`.

Every file of the packages and every shipped config is there, byte for byte, and nothing else is.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
PLACES = {"vlrl": "vlrl", "rewards/vlrl_rewards": "vlrl_rewards", "data/vlrl_data": "vlrl_data"}
PLACES["configs"] = "vlrl/configs"


def files() -> dict[str, Path]:
    """The checkout's files by their place in the wheel; without what git ignores."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *PLACES]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = {}
    for name in filter(None, told.split("\0")):
        folder = next(folder for folder in PLACES if PurePosixPath(name).is_relative_to(folder))
        place = PurePosixPath(PLACES[folder]) / PurePosixPath(name).relative_to(folder)
        if (ROOT / name).is_file():
            found[place.as_posix()] = ROOT / name
    return found


def problems(wheel: Path) -> list[str]:
    """What is missing, differs or should not be there."""
    expected = files()
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        changed = [
            name for name in sorted(held & set(expected)) if archive.read(name) != expected[name].read_bytes()
        ]
    return [
        *(f"missing: {name}" for name in sorted(set(expected) - held)),
        *(f"differs: {name}" for name in changed),
        *(f"not of the checkout: {name}" for name in sorted(held - set(expected))),
    ]


def main(wheels: list[str]) -> int:
    """Print the problems of each wheel; 1 where there is one."""
    found = [f"{wheel}: {problem}" for wheel in wheels for problem in problems(Path(wheel))]
    print("\n".join(found) or f"{len(files())} files of the packages are in the wheel, byte for byte")
    return int(bool(found) or not wheels)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

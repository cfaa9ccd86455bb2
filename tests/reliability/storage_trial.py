"""Run under `unshare -rm`: checkpoints on file systems that are too small, by several sizes, and on a
read-only one. One JSON line per trial."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))

from kit import open_run

from vlrl.services.failures import StorageError
from vlrl.trainer.checkpoints import checkpoint


def mount(*words):
    subprocess.run(["mount", *words], check=True)


def trial(case, run, before):
    """Save a second checkpoint, which must fail, and print what it said and what it left."""
    before()
    run.step += 1
    try:
        checkpoint.save(run)
        said = "nothing"
    except StorageError as error:
        said = str(error)
    folder = run.output / checkpoint.FOLDER
    faults = checkpoint.faults(folder / "step-000000")
    print(
        json.dumps(
            {
                "case": case,
                "said": said,
                "left": sorted(path.name for path in folder.iterdir()),
                "faults": faults,
            }
        ),
        flush=True,
    )


def main():
    place = Path(sys.argv[1]) / "disk"
    place.mkdir()
    run = open_run(place)
    size = sum(path.stat().st_size for path in checkpoint.save(run).rglob("*") if path.is_file())
    for share in (0.2, 0.5, 0.8, 0.97):
        mount("-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place))
        run.step = 0
        checkpoint.save(run)
        used = sum(path.stat().st_blocks * 512 for path in place.rglob("*") if path.is_file())
        smaller = f"remount,size={int(used + share * size) // 4096 * 4096}"
        trial("full", run, partial(mount, "-o", smaller, str(place)))
        if share == 0.97:
            mount("-o", "remount,size=16m", str(place))
            trial("read-only", run, partial(mount, "-o", "remount,ro", str(place)))
        subprocess.run(["umount", str(place)], check=True)


main()

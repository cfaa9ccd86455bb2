"""Runs the command line in a process of its own and tells which top-level modules it imported."""

import json
import os
import subprocess
import sys
from functools import cache

HEAVY = {
    "torch",
    "transformers",
    "accelerate",
    "sklearn",
    "pandas",
    "deepspeed",
    "torchaudio",
    "vllm",
    "datasets",
    "peft",
}
TELL = """
import atexit, json, sys
def tell(told):
    with open(told, "w") as file:
        json.dump(sorted({name.partition(".")[0] for name in sys.modules}), file)
"""
CODE = f"""{TELL}
atexit.register(tell, sys.argv[1])
sys.argv = ["vlrl", *sys.argv[2:]]
from vlrl.cli import main
main()
"""
# What every command imports, once; each command is then a fork, where nothing heavy may be.
SERVER = f"""{TELL}
import os, traceback
import vlrl.cli.train, vlrl.eval.cli, vlrl.trainer.plan
from vlrl.cli import main
assert not {{name.partition(".")[0] for name in sys.modules}} & set(json.loads(sys.argv[1]))
for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if pid == 0:
        for number, place in enumerate((os.devnull, job["out"], job["err"])):
            with open(place, "w" if number else "r") as file:
                os.dup2(file.fileno(), number)
        os.chdir(job["folder"])
        os.environ.clear()
        os.environ.update(job["environment"])
        sys.argv = ["vlrl", *job["words"]]
        atexit.register(tell, job["told"])
        code = 0
        try:
            main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        atexit._run_exitfuncs()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@cache
def server():
    """The process that forks; it ends with this one, which closes its input."""
    return subprocess.Popen(
        [sys.executable, "-c", SERVER, json.dumps(sorted(HEAVY))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def environment(**more):
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def run_forked(folder, told, *words, **variables):
    """`run` in a fork of a process that has imported what is light: for the many commands that end soon."""
    out, err = told.with_suffix(".out"), told.with_suffix(".err")
    job = {"folder": str(folder), "told": str(told), "out": str(out), "err": str(err)}
    job |= {"words": [*map(str, words)], "environment": environment(**variables)}
    process = server()
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    code = process.stdout.readline()
    assert code, "the server of commands has ended"
    done = subprocess.CompletedProcess(job["words"], int(code), out.read_text(), err.read_text())
    return done, set(json.loads(told.read_text()))


def run(folder, told, *words):
    """(the finished process, its imported top-level modules) of `vlrl WORDS` in `folder`; `told` is a file
    for the list of modules."""
    command = [sys.executable, "-c", CODE, str(told), *map(str, words)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(),
        timeout=300,
    )
    return done, set(json.loads(told.read_text()))

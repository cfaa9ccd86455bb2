"""Mistakes at the command line: each ends before torch is imported, with exit code 2 and at most three lines
that name the fix."""

import json

import pytest
from imports_kit import HEAVY, run_forked

QUICK = ["train", "quickstart"]
EVAL = ["eval", "--suite", "mathvista", "--model", "tiny_text"]
ROWS = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(20)]


def own(path, reward="{name: math}"):
    """A command that trains on a file of one's own."""
    mine = [f"data.train.mine={{name: files, path: {path}}}", f"rewards.mine={reward}"]
    return ["train", "base/rl", "models/tiny_text", "methods/grpo", *mine, "output=out"]


MISTAKES = {  # what was meant, or done: (the words, what the message says: the fault, and the fix)
    # settings
    "a setting without its group": ([*QUICK, "lr=1e-5"], ["lr: unknown key", "Did you mean 'optimizer.lr'"]),
    "a setting as an option": ([*QUICK, "--steps", "20"], ["no option '--steps'", "steps=20"]),
    "a nested setting as an option": ([*QUICK, "--lr=1e-5"], ["no option '--lr'", "optimizer.lr=1e-5"]),
    "a misspelt option": ([*QUICK, "--resum"], ["no option '--resum'", "Did you mean '--resume'"]),
    "a setting and its value as two words": ([*QUICK, "steps", "20"], ["no config 'steps'", "steps=..."]),
    "a wrong type": ([*QUICK, "steps=abc"], ["steps: 'abc' is not valid", "integer", "command line"]),
    "a value out of range": ([*QUICK, "steps=-1"], ["steps is -1", "allowed: 1 to"]),
    "an absurd size": ([*QUICK, "group_size=1000000000"],
        ["group_size is 1000000000", "allowed: 1 to 65536"]),
    "a huge seed": ([*QUICK, "seed=99999999999"],
        ["seed: expected a whole number from 0 to 4294967295", "99999999999"]),
    "not a number": ([*QUICK, "optimizer.lr=.nan"],
        ["optimizer.lr=.nan", "NaN is no setting; give a number"]),
    "infinity": ([*QUICK, "optimizer.lr=.inf"], ["optimizer.lr: inf is not valid", "finite"]),
    "the optimizer as a word": ([*QUICK, "optimizer=adam"],
        ["optimizer: expected a mapping", "optimizer.kind: adamw"]),
    "an unknown optimizer": ([*QUICK, "optimizer.kind=adam"],
        ["optimizer.kind: 'adam' is not valid", "'adamw'"]),
    "sizes that do not divide": ([*QUICK, "num_minibatches=3"],
        ["does not divide prompts_per_step", "use one of [1, 2"]),
    "a misspelt key": ([*QUICK, "grop_size=4"], ["grop_size: unknown key", "'group_size'"]),
    "a misspelt phase": ([*QUICK, "phases.rll.steps=4"], ["no phase named 'rll'", "Did you mean 'rl'"]),
    "phases as a word": ([*QUICK, "phases=foo"], ["phases: expected a map", "phases: {rl: {steps: 50}}"]),
    "an open bracket": ([*QUICK, "rewards.digits={name: classification"],
        ["not valid YAML", "expected ',' or '}'"]),
    "a variable that is not set": ([*QUICK, "policy.dtype=${NO_SUCH_VARIABLE}"],
        ["NO_SUCH_VARIABLE is not set", "export NO_SUCH_VARIABLE="]),
    # plug-ins and models
    "a misspelt reward": ([*QUICK, "rewards.digits.name=clasification"],
        ["no reward named 'clasification'", "'classification'"]),
    "a misspelt engine": ([*QUICK, "engine=vlm"], ["no engine named 'vlm'", "'vllm'"]),
    "a misspelt tracker": ([*QUICK, "watch.trackers=[wandbb]"], ["no tracker named 'wandbb'", "'wandb'"]),
    "a list where a map belongs": ([*QUICK, "loss_terms=[kl]"],
        ["loss_terms: expected named plug-ins", "loss_terms: {my_name: {name: ...}}"]),
    "a plug-in file that is not there": ([*QUICK, "plugins=[my_rewrd.py]"],
        ["plugins: no file", "Did you mean 'my_reward.py'"]),
    "a plug-in file with an error": ([*QUICK, "plugins=[syntax.py]"],
        ["syntax.py:1: SyntaxError", "mend the file"]),
    "a plug-in that needs a package": ([*QUICK, "plugins=[my_reward.py]"],
        ["my_reward.py:1: ModuleNotFoundError", "no_such_package"]),
    "a model that is not there": ([*QUICK, "policy={name: text, model: models/mymodle}"],
        ["no folder 'models/mymodle'", "'models/mymodel'"]),
    "a model without weights": ([*QUICK, "policy={name: text, model: models/mymodel}"],
        ["lacks the weights", "copy the whole"]),
    "a run as a model": ([*QUICK, "policy={name: qwen2_5_vl, model: held}"],
        ["is a run's folder", "checkpoints/step-000001'"]),
    # configs
    "a misspelt config file": (["train", "clokc.yaml"],
        ["no config 'clokc.yaml'", "Did you mean 'clock.yaml'"]),
    "a misspelt preset": (["train", "base/rl", "methods/dapoo"],
        ["no config 'methods/dapoo'", "'methods/dapo'"]),
    "a data file as a config": (["train", "rows.jsonl"],
        ["'rows.jsonl' holds data", "data.train.mine='{name: files, path: rows.jsonl}'"]),
    "a folder as a config": (["train", "held"], ["'held': this is a folder", "held/config.yaml"]),
    "a launch file as a config": (["train", "accelerate/zero2"],
        ["launch file", "--processes N --sharding zero2"]),
    "a suite as a config": (["train", "eval/mathvista"],
        ["'mathvista' is an evaluation suite", "vlrl eval --suite mathvista"]),
    "a tag": (["train", "tag.yaml"],
        ["tag.yaml:2: steps: tag !!python/object/apply:os.system is not read", "write a plain value"]),
    "a merge key": (["train", "merge.yaml"],
        ["merge.yaml:3: merge keys (<<) are not read", "`extends: [other_file]`"]),
    "a tab": (["train", "tab.yaml"], ["tab.yaml: not valid YAML", "'\\t'"]),
    "no config": (["train"], ["no config is given", "vlrl train quickstart"]),
    # data
    "a misspelt column": (own("awnser.jsonl"),
        ["no record family has the fields awnser, question", "{awnser: answer}"]),
    "pictures from another folder": (own("pictures.jsonl"),
        ["300 of 300 rows cannot be used", "No such file", "set media_root"]),
    "a data file that is not there": (own("nowhere.jsonl"),
        ["nothing at 'nowhere.jsonl'", "give a file (.jsonl"]),
    "a gold that the reward cannot read": (own("rows.jsonl", "{name: iou}"),
        ["reward 'mine' cannot read the answer '1'", "give [x1, y1, x2, y2]"]),
    "a misspelt column, checked": (["data", "check", "awnser.jsonl"],
        ["awnser, question", "{awnser: answer}"]),
    # folders and commands
    "a folder that holds a run": ([*QUICK, "output=held"], ["'held' already holds a run", "--resume"]),
    "a folder that holds a thesis": ([*QUICK, "output=thesis", "--overwrite"],
        ["thesis.tex, which no run wrote", "another `output=`"]),
    "a folder that cannot be written": ([*QUICK, "output=/proc/x"],
        ["cannot write to '/proc/x'", "output=..."]),
    "two options that exclude each other": ([*QUICK, "--resume", "--overwrite"],
        ["--overwrite and --resume exclude each other"]),
    "a misspelt command": (["tain", "quickstart"], ["No such command 'tain'", "Did you mean 'train'"]),
    "no command": (["quickstart"], ["No such command 'quickstart'", "vlrl train quickstart"]),
    "an option of another command": (["verify", "--gold", "5"],
        ["No such option: --gold", "vlrl verify --help"]),
    "a misspelt kind": (["list", "rewrd"], ["'rewrd'", "Did you mean 'reward'"]),
    "a misspelt name": (["list", "reward", "ioou"], ["no reward named 'ioou'", "'iou'"]),
    "a misspelt sharding": ([*QUICK, "--processes", "2", "--sharding", "zero22"],
        ["no launch file named 'zero22'", "'zero2'"]),
    "a report of no run": (["report", "thesis"],
        ["'thesis' holds no metrics.jsonl", "give the folder of a run"]),
    "an export of no run": (["export", "nowhere", "--to", "x"],
        ["'nowhere' is no folder", "give the folder of a run"]),
    "a comparison with a misspelt preset": (["compare", "grpo", "dapoo"],
        ["no config 'methods/dapoo'", "'methods/dapo'"]),
    "a misspelt suite": (["eval", "--suite", "mathvisat", "--model", "tiny_text"],
        ["no suite named 'mathvisat'", "'mathvista'"]),
    "an evaluation of a misspelt config": (["eval", "--suite", "mathvista", "--model", "tiny_txt"],
        ["--model tiny_txt", "'tiny_text'"]),
    "an evaluation on a misspelt engine": ([*EVAL, "--engine", "vlm"], ["no engine named 'vlm'", "'vllm'"]),
    "an evaluation with a misspelt field": ([*EVAL, "-E", "prefil_tokens=1"],
        ["engine.prefil_tokens: unknown field", "'prefill_tokens'"]),
    "an evaluation of a misspelt type": ([*EVAL, "--dtype", "float31"],
        ["--dtype: 'float31' is none of float32"]),
    "a comparison on a misspelt task": (["compare", "grpo", "dapo", "--task", "countin"],
        ["'tasks/lab_countin'", "'tasks/lab_counting'"]),
    "a checkpoint that is not there": (["serve", "held", "--checkpoint", "7"],
        ["has none of step 7; it has 1"]),
    "an export onto files": (["export", "held", "--checkpoint", "1", "--to", "thesis"],
        ["'thesis' exists and is not empty", "another folder"]),
    "a misspelt server": (["serve", "held", "--engine", "vlm"],
        ["'vlm' is none of auto, vllm, transformers"]),
    "the weights of no run": (["weights", "linearity", "nowhere"],
        ["no *.safetensors in 'nowhere'", "the folder of a run"]),
    "a name that is taken": (["new", "reward", "math"], ["a reward named 'math' already", "my_math"]),
    "answers that are not there": (["verify", "nowhere.jsonl"],
        ["cannot read 'nowhere.jsonl'", "a file of JSON lines"]),
    "an attack on a misspelt reward": (["verify", "--attack", "mth"],
        ["no kind or reward named 'mth'", "'math'"]),
    "another tool's command": (["launch", "quickstart"],
        ["No such command 'launch'", "vlrl train CONFIG --processes N"]),
    "another tool's setting": ([*QUICK, "learning_rate=1e-5"],
        ["learning_rate: unknown key", "'optimizer.lr' here"]),
    "no process": ([*QUICK, "--processes", "0"], ["--processes and --nodes must be at least 1"]),
    "a misspelt source": (["data", "stats", "lab_countin"], ["no source of that name", "'lab_counting'"]),
    "pictures from another folder, counted": (["data", "stats", "pictures.jsonl"],
        ["300 of 300 rows cannot be used", "set media_root"]),
    "an evaluation of no model": (["eval", "--suite", "mathvista", "--model", "models/mymodle"],
        ["no folder 'models/mymodle'", "mymodel'"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the mistakes need."""
    here = tmp_path_factory.mktemp("mistakes")

    def rows(name, rows):
        (here / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    rows("rows.jsonl", ROWS)
    rows("awnser.jsonl", [{"question": row["question"], "awnser": row["answer"]} for row in ROWS])
    rows("pictures.jsonl", [{**row, "image": f"pictures/{n}.png"} for n, row in enumerate(ROWS * 15)])
    texts = {
        "clock.yaml": "extends: [base/rl]\n",
        "tag.yaml": "extends: [base/rl]\nsteps: !!python/object/apply:os.system ['touch owned']\n",
        "merge.yaml": "extends: [base/rl]\nabout: &a {x: 1}\noptimizer: {<<: *a}\n",
        "tab.yaml": "steps:\t5\n\tseed: 1\n",
        "syntax.py": "def f(:\n", "my_reward.py": "import no_such_package\n", "thesis/thesis.tex": "x",
        "models/mymodel/config.json": "{}",
        "held/metrics.jsonl": '{"step": 1, "phase": "rl"}\n', "held/config.yaml": "steps: 1\n",
        "held/checkpoints/step-000001/config.json": "{}",
    }  # fmt: skip
    for name, text in texts.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    return here


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_soon_with_its_fix(mistake, folder, tmp_path):
    words, said = MISTAKES[mistake]
    done, modules = run_forked(folder, tmp_path / "modules.json", *words)
    told = done.stderr.strip().splitlines()
    assert done.returncode == 2 and not done.stdout, done.stdout + done.stderr
    assert 1 <= len(told) <= 3 and told[-1].startswith("vlrl: ") and len(told[-1]) <= 620, done.stderr
    assert not [part for part in said if part not in told[-1]], done.stderr
    assert not modules & HEAVY
    assert (
        not (folder / "owned").exists()
        and (folder / "thesis" / "thesis.tex").is_file()
        and (folder / "held" / "metrics.jsonl").is_file()
    )


def test_there_are_thirty_and_more():
    assert len(MISTAKES) >= 30

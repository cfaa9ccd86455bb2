"""Journey 5: the Python API in a notebook, run by nbclient."""

import nbformat
from journey import LIMIT, PATH, clocks
from nbclient import NotebookClient

CELLS = [
    """from vlrl import GRPOTrainer
import json
rows = [json.loads(line) for line in open("clocks.jsonl")]
rows = [{**row, "image": f"pictures/{row['image']}"} for row in rows]""",
    """def right_hour(text, answer, **row):
    return float(text.strip() == answer)

trainer = GRPOTrainer(
    "tiny_qwen2_5_vl", [right_hour, "tag_format"], rows[:12], eval_dataset=rows[12:],
    args=dict(steps=2, group_size=2, prompts_per_step=2, output="run", **{"sampling.max_tokens": 4}),
)""",
    "summary = trainer.train()\nsummary['steps'], sorted(summary['heldout'])",
    "scores = trainer.evaluate(rows[12:])\nscores",
    (
        "from vlrl.plugins.registry import build\nfrom vlrl.plugins.stages import Reward\nbuild(Reward, "
        "'math').score('<answer>0.5</answer>', '1/2')"
    ),
    "trainer.save('out').name",
]


def test_the_api_in_a_notebook(tmp_path, monkeypatch):
    if PATH:
        monkeypatch.setenv("PYTHONPATH", PATH)  # of the kernel
    clocks(tmp_path, 16)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    NotebookClient(
        notebook, timeout=LIMIT, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    results = [
        next((out.data["text/plain"] for out in cell.outputs if out.output_type == "execute_result"), "")
        for cell in notebook.cells
    ]
    assert results[2] == "(2, ['final', 'start'])" and results[4] == "1.0" and results[5] == "'out'"
    assert results[3].startswith("{'default': ")
    assert (tmp_path / "run" / "report.html").is_file() and (tmp_path / "out" / "model.safetensors").is_file()

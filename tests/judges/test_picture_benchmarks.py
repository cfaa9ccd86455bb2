"""Benchmarks of judges with pictures, and ProcessBench: records in their released schema with values of our
own, their scoring rules by hand, through `vlrl judge check --data`."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from judge_kit import judge_of
from PIL import Image
from test_judge_check import fields
from typer.testing import CliRunner

from vlrl.beside.benchmarks import multimodal_group, vl_group
from vlrl.beside.check import labelled_rates
from vlrl.beside.process_bench import first_wrong, scores, solutions
from vlrl.cli.judge import app, labelled_records
from vlrl.plugins.registry import ConfigError

COLOURS = {"red": (250, 0, 0), "blue": (0, 0, 250)}


def png(colour):
    out = io.BytesIO()
    Image.new("RGB", (8, 8), COLOURS[colour]).save(out, "PNG")
    return out.getvalue()


def vl(number, colour, ranking, name="RLAIF-V-1"):
    """MMInstruction/VL-RewardBench: rank 0 is the better answer."""
    return {
        "id": f"{name}{number}",
        "image": {"bytes": png(colour), "path": None},
        "query": "<image>\nWhich colour?",
        "response": ["It is red.", "It is blue."],
        "query_source": "",
        "human_ranking": ranking,
        "models": ["a", "b"],
        "judge": "human",
        "rationale": "",
        "ground_truth": "",
    }


def multimodal(number, colour, better, category, name):
    """facebookresearch/multimodal_rewardbench, all_data.json."""
    return {
        "ID": f"{name}_{number}",
        "Text": "Which colour?",
        "Image": f"images/{name}/{colour}.png",
        "Output1": "It is red.",
        "Output2": "It is blue.",
        "Better": better,
        "Category": category,
    }


JUDGE = (  # looks at the pixels, and says which answer names the colour that it sees
    "import re\n"
    "from dataclasses import dataclass\n"
    "from vlrl.engine.fake import Fake\n"
    "from vlrl.plugins.registry import register\n"
    "@register('sees_colours')\n"
    "@dataclass(frozen=True)\n"
    "class SeesColours(Fake):\n"
    "    needs_policy = False\n"
    "    def _respond(self, request, index):\n"
    "        if not request.prompt.images:\n"
    "            return 'Verdict: tie', 0.0\n"
    "        red, _, blue = request.prompt.images[0].load().getpixel((0, 0))\n"
    "        content = request.prompt.messages[-1]['content']\n"
    "        text = content if isinstance(content, str) else ' '.join(p.get('text', '') for p in content)\n"
    "        first = min(('red', 'blue'), key=lambda name: text.find(f'It is {name}.'))\n"
    "        return f\"Verdict: {'A' if first == ('red' if red > blue else 'blue') else 'B'}\", 0.0\n"
)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    file = tmp_path_factory.mktemp("judge") / "sees_colours.py"
    file.write_text(JUDGE)
    return file


def checked(plugin, file):
    words = ["base/rl", "models/tiny_text", "tasks/lab_arithmetic", f"plugins=[{plugin}]"]
    words.append("rewards.answer={name: judged_pairs, judge: {model: eyes@1, engine: {name: sees_colours}}}")
    done = CliRunner().invoke(app, ["check", *words, "--data", str(file), "--json"], catch_exceptions=False)
    return json.loads(done.stdout)["answer"]["data"]


def test_vl_reward_bench_with_its_pictures(plugin, tmp_path):
    rows = [
        vl(1, "red", [0, 1]),
        vl(2, "blue", [1, 0]),
        vl(3, "blue", [0, 1], "mathverse_"),  # the gold disagrees with the picture
        vl(4, "red", [0, 1], "x"),
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "test-00000-of-00001.parquet")
    found = checked(plugin, tmp_path / "test-00000-of-00001.parquet")
    assert found["accuracy"] == 0.75 and found["null"] == found["flip"] == 0.0
    assert found["by_group"] == {"hallucination": 1.0, "reasoning": 0.0, "general": 1.0}
    assert found["macro"] == pytest.approx(2 / 3)  # cal.py: the mean of the three groups


def test_multimodal_reward_bench_with_its_pictures(plugin, tmp_path):
    for name in ("nocaps", "pairs", "hateful", "mathvista", "emma"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for colour in COLOURS:
            (tmp_path / "images" / name / f"{colour}.png").write_bytes(png(colour))
    rows = [
        multimodal(1, "red", "Output1", "open_generation/correctness_task", "nocaps"),
        multimodal(2, "blue", "Output2", "safety", "pairs"),
        multimodal(3, "blue", "Output1", "safety", "hateful"),  # the gold disagrees
        multimodal(4, "red", "Output1", "reasoning", "mathvista"),
        multimodal(5, "red", "Output2", "reasoning", "emma"),
    ]
    (tmp_path / "all_data.json").write_text(json.dumps(rows))
    found = checked(plugin, tmp_path / "all_data.json")
    assert found["accuracy"] == 0.6
    assert found["by_group"] == {
        "open_generation/correctness_task": 1.0,
        "safety/bias": 1.0,
        "safety/toxicity": 0.0,
        "reasoning/math": 1.0,
        "reasoning/coding": 0.0,
    }
    (tmp_path / "images" / "pairs" / "blue.png").unlink()
    with pytest.raises(ConfigError, match=r"record 1 .*pairs/blue.png.*missing"):
        labelled_records(str(tmp_path / "all_data.json"))


def test_groups_by_the_released_code():
    assert vl_group({"image_path": "images/wildvision-battle/1.jpg", "id": "RLHF-1"}) == "general"
    assert vl_group({"id": "hallucination_pair-3"}) == vl_group({"id": "RLHF-V-2"}) == "hallucination"
    assert vl_group({"id": "mmmu_7"}) == "reasoning" and vl_group({"id": "17"}) == "general"
    assert multimodal_group("vqa", "pairs_1") == "vqa"
    assert multimodal_group("reasoning", "MathVista_1") == "reasoning/math"


def process(number, subset, label, *steps):
    """Qwen/ProcessBench."""
    return {
        "id": f"{subset}-{number}",
        "generator": "m",
        "problem": "What is 2 + 3 + 4?",
        "steps": list(steps),
        "final_answer_correct": label == -1,
        "label": label,
    }


GOOD_STEPS = ("2 + 3 = 5.", "5 + 4 = 9.")
PROCESS = [
    process(0, "gsm8k", -1, *GOOD_STEPS),
    process(1, "gsm8k", 0, "2 + 3 = 6.", "6 + 4 = 10."),
    process(2, "gsm8k", 1, "2 + 3 = 5.", "5 + 4 = 10."),
    process(3, "gsm8k", 1, *GOOD_STEPS),  # a wrong label: the judge finds no error
    process(4, "math", -1, *GOOD_STEPS),
    process(5, "math", -1, "2 + 3 = 6."),  # a wrong label: the judge finds one
    process(6, "math", 0, "2 + 3 = 6."),
]


def looks(prompt):
    """Knows the two sums."""
    lines = fields(prompt)["ANSWER"].split("\n\n")
    return f"Verdict: {'yes' if all(line in GOOD_STEPS for line in lines) else 'no'}"


def test_process_bench(tmp_path):
    judge, sent = judge_of(looks, tmp_path / "a")
    found = labelled_rates(judge, PROCESS)
    assert any("the steps that follow are not shown" in text for text in sent)
    # gsm8k: 2 of 3 wrong ones, 1 of 1 right one; math: 1 of 1 and 1 of 2: 2ab / (a + b)
    assert found["by_group"] == pytest.approx({"gsm8k": 0.8, "math": 2 / 3})
    assert found["macro"] == pytest.approx((0.8 + 2 / 3) / 2)
    assert found["accuracy"] == pytest.approx(5 / 7)
    assert found["wrong"] == 0.75 and found["right"] == pytest.approx(2 / 3)
    lenient, _ = judge_of(lambda prompt: "Verdict: yes", tmp_path / "b")  # finds nothing: worth nothing
    found = labelled_rates(lenient, PROCESS)
    assert found["macro"] == 0.0 and found["right"] == 1.0
    silent, _ = judge_of(lambda prompt: "hm", tmp_path / "c")
    found = labelled_rates(silent, PROCESS)
    assert found["null"] == 1.0 and found["accuracy"] == 0.0


def test_process_bench_by_hand():
    assert first_wrong([0.8, 0.5, 0.49, 0.1]) == 2 and first_wrong([0.4, None]) == 0
    assert first_wrong([0.5]) == -1 and first_wrong([0.9, None, 0.1]) is None
    one = scores(solutions(PROCESS[:2]), [-1, 1])  # the wrong step is not the first wrong one
    assert one["by_group"] == {"gsm8k": 0.0} and one["right"] == 1.0
    assert "by_group" not in scores(solutions(PROCESS[:1]), [-1])  # no wrong solution: no harmonic mean
    with pytest.raises(ConfigError, match="record 1 has .*a file of its own"):
        solutions([PROCESS[0], {"question": "q", "answer": "a", "label": True}])
    with pytest.raises(ConfigError, match="label 2 is no step of 2"):
        solutions([process(0, "math", 2, *GOOD_STEPS)])


def test_the_file_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match="no file that can be read"):
        labelled_records(str(tmp_path / "none.jsonl"))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="holds no records"):
        labelled_records(str(tmp_path / "empty.jsonl"))

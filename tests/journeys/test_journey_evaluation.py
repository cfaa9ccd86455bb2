"""Journey 4: evaluation on own rows in MathVista's format."""

import json

from journey import clock, vlrl

HINT = "Hint: Please answer the question and provide the correct option letter."
METADATA = {
    "category": "general-vqa",
    "task": "visual question answering",
    "skills": ["numeric commonsense"],
    "source": "clocks",
    "context": "clock",
}
METADATA |= {
    "grade": "daily life",
    "img_height": 56,
    "img_width": 56,
    "language": "english",
    "split": "testmini",
}


def row_of(number, hour):
    return {
        "pid": str(number),
        "question": "Which hour?",
        "image": f"images/{number}.png",
        "decoded_image": f"images/{number}.png",  # on the hub the picture itself
        "choices": ["3", "6", "9", "12"],
        "unit": None,
        "precision": None,
        "answer": str(hour),
        "question_type": "multi_choice",
        "answer_type": "text",
        "metadata": METADATA,
        "query": f"{HINT}\nQuestion: Which hour?\nChoices:\n(A) 3\n(B) 6\n(C) 9\n(D) 12",
    }


def test_own_rows_in_mathvistas_format(tmp_path):
    (tmp_path / "mine" / "images").mkdir(parents=True)
    hours = (3, 6, 9, 12)
    for number, hour in enumerate(hours):
        clock(hour).save(tmp_path / "mine" / "images" / f"{number}.png")
    (tmp_path / "mine" / "testmini.jsonl").write_text(
        "".join(json.dumps(row_of(n, hour)) + "\n" for n, hour in enumerate(hours))
    )
    data = ["--data", "mine/testmini.jsonl", "--media", "mine"]
    vlrl(
        tmp_path,
        "eval",
        "--suite",
        "mathvista",
        "--model",
        "tiny_qwen2_5_vl",
        *data,
        "--max-tokens",
        "4",
        "--output",
        "one",
        "--json",
    )
    summary = json.loads((tmp_path / "one" / "summary.json").read_text())
    assert "mathvista" in json.dumps(summary)

    responses = [
        {"id": str(n), "response": f"The answer is ({letter})"} for n, letter in enumerate("ABCA")
    ]  # the last one is wrong
    (tmp_path / "responses.jsonl").write_text("".join(json.dumps(line) + "\n" for line in responses))
    scored = json.loads(
        vlrl(
            tmp_path,
            "eval",
            "score",
            "responses.jsonl",
            "--suite",
            "mathvista",
            *data,
            "--profile",
            "official",
            "--json",
        )
    )
    assert "0.75" in json.dumps(scored) or "75.0" in json.dumps(scored), scored
    vlrl(tmp_path, "eval", "report", "one", "--output", "page.html")
    assert (
        "data:image" in (tmp_path / "page.html").read_text() or (tmp_path / "page.html").stat().st_size > 1000
    )

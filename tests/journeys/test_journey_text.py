"""Journey 3: text alone, and the trained model in plain transformers."""

import json

import torch
from journey import vlrl
from transformers import AutoModelForCausalLM, AutoTokenizer


def test_text_and_export(tmp_path):
    rows = [{"question": f"{a} + {b} =", "answer": str(a + b)} for a in range(6) for b in range(6)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [
        "base/rl",
        "models/tiny_text",
        "methods/dapo",
        "data.train.sums={name: files, path: sums.jsonl}",
        "rewards.sum={name: math}",
    ]
    small = [
        "steps=3",
        "num_minibatches=1",
        "group_size=2",
        "prompts_per_step=2",
        "sampling.max_tokens=4",
        "watch.checkpoint_every=1",
        "output=run",
    ]
    shown = json.loads(vlrl(tmp_path, "train", *words, *small, "group_filters=null", "--json"))
    assert shown["steps"] == 3

    vlrl(tmp_path, "export", "run", "--to", "exported", "--checkpoint", "2")
    vlrl(tmp_path, "export", "run", "--to", "newest")
    assert json.loads((tmp_path / "exported" / "vlrl_export.json").read_text())["step"] == 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "newest")
    ids = tokenizer("1 + 1 =", return_tensors="pt").input_ids
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(tmp_path / "newest").eval()(input_ids=ids).logits
        kept = (
            AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoints" / "step-000003")
            .eval()(input_ids=ids)
            .logits
        )
    assert torch.equal(logits, kept) and logits.isfinite().all()
    vlrl(tmp_path, "export", "run", "--to", "newest", code=2)  # not over an old export

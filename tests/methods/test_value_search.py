"""ViLPRM's values of steps and best of n; Saffron-1's search and the model that guides it. By hand."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from rounds_kit import Letters, letters, prepared, prompt
from tiny import text_run

from vlrl.config import load
from vlrl.methods.papers.saffron_1 import MultifurcationModel, Saffron1, Saffron1Model
from vlrl.methods.papers.vilbench import KEY, Vilbench, VilbenchSearch, VilbenchSelect
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.step.loop import train_step
from vlrl.types import RowError

# --- ViLPRM -------------------------------------------------------------------------------------------------


def searched(keep=2, **fields):
    """Two rollouts that share their first step, one of them right; all that goes on from it is right."""

    def speak(request, index):
        return "x!" if request.prefix_ids else ("a\nb!", "a\nc?")[index]

    made = letters(speak)
    made.policy.decode = lambda ids: Letters().decode([token for token in ids if token])
    score, made.score = made.score, None

    def scored(groups):
        for rollout in (r for group in groups for r in group):
            rollout.text = rollout.text.rstrip("\0")
        score(groups)

    made.score = scored
    prepared(VilbenchSearch(keep=keep, **fields), made)([prompt()], [2], made)
    return made


def test_values_of_steps_by_hand():
    made = searched(completions=3)
    right, wrong = made.history["r"][KEY]
    assert right == {"steps": ["a", "b!"], "values": [pytest.approx(4 / 5), 1.0], "correct": True}
    assert wrong == {"steps": ["a", "c?"], "values": [pytest.approx(4 / 5), 0.0], "correct": False}
    assert [(given, n) for _, _, given, n, _ in made.asked] == [("", 2), ("a\n", 3)]  # once per prefix


def test_values_without_completions_and_what_is_kept():
    assert searched(completions=0).history["r"][KEY][0]["values"] == [0.5, 1.0]
    (kept,) = searched(keep=1).history["r"][KEY]
    assert kept["correct"]
    with pytest.raises(ValueError, match="completions"):
        VilbenchSearch(completions=-1)


def test_training_without_valued_steps_is_refused():
    with pytest.raises(ConfigError, match=r"vilbench\.search"):
        made = letters(lambda request, index: "", [prompt().row], source_weights={})
        prepared(Vilbench(), made)(1)


def test_released_values_train_the_head_without_a_search(tmp_path):
    """Two records of ViLReward-73K: a value of 1 raises what the head says behind its process, 0 lowers
    it."""
    Image.fromarray(np.zeros((28, 28, 3), np.uint8)).save(tmp_path / "a.png")
    made = [
        {"question": "Area?", "process": "Six.", "value": 1.0},
        {"question": "Area?", "process": "Nine.", "value": 0.0},
    ]
    records = [{"index": n, "image_path": "a.png", **one} for n, one in enumerate(made)]
    file = tmp_path / "vilreward_73k_train.json"
    file.write_text(json.dumps(records))
    names = ["base/rl", "models/tiny_qwen2_5_vl", "methods/vilbench", "datasets/vilbench"]
    words = [
        f"data.train.valued.path={file}",
        "prompts_per_step=2",
        "optimizer.lr=0.01",
        "phases.train.steps=6",
    ]
    session = Session(Plan.of(load(names, [*words, f"output={tmp_path / 'run'}"])))
    session.open()
    session.enter(0)
    logs = [train_step(session).metrics for _ in range(6)]
    assert logs[-1]["steps_right"] == 1.0 > logs[0]["steps_right"]


@pytest.mark.parametrize(("how", "value"), [("mean", 0.5), ("min", 0.2), ("last", 0.8), ("product", 0.08)])
def test_best_of_n_by_steps(how, value):
    assert VilbenchSelect(reduce=how).reduced([0.2, 0.5, 0.8]) == pytest.approx(value)


# --- Saffron-1 ----------------------------------------------------------------------------------------------

END, SAFE, BAD, UNKNOWN = range(4)


def view(table):
    """A model over four tokens: `table` gives the outputs behind completion tokens; the prompt is token 3."""

    def forward(input_ids, past_key_values, use_cache):
        ids = [*(past_key_values or ()), *input_ids[0].tolist()]
        return SimpleNamespace(logits=torch.tensor([[table(ids[1:])]]), past_key_values=ids)

    return SimpleNamespace(
        model=forward,
        device="cpu",
        autocast=nullcontext,
        tokenizer=Letters(),
        forbidden_ids=[],
        encode=lambda prompt: SimpleNamespace(ids=[3]),
        decode=str,
        version=0,
    )


def found(count, strategy, asked=None, **parts):
    """The token ids that a search returns; an end is safe behind safe tokens alone."""
    rewards = view(lambda ids: [float(all(token == SAFE for token in ids)), 0.9, 0.1, 5.0])
    model = MultifurcationModel(None, rewards, seen={END, SAFE, BAD}, ready=True)
    made = letters(lambda request, index: "", policy=view(lambda ids: [0.0] * 4), **parts)
    made.sampling = lambda prompt, attempt: SimpleNamespace(max_tokens=3, temperature=1.0)
    made.shared = lambda name, new: model
    (group,) = strategy([asked or prompt()], [count], made)
    return list(group)


def test_the_search_by_hand():
    """Of [1], [2], [3] two go on; then [1 1] and [2 1]; then the end of [1 1] (1.0) and [1 1 1] (0.9)."""
    best, second, again = found(3, Saffron1(budget=2, top_p=1.0, min_tokens=2))
    assert best.ids == again.ids == [SAFE, SAFE, END] and second.ids == [SAFE, SAFE, SAFE]
    thirds = math.log(1 / 3)
    assert best.logp == pytest.approx([thirds, thirds, math.log(1 / 4)])


def test_unseen_tokens_come_last():
    strategy = Saffron1(budget=1, top_p=1.0, min_tokens=3, conservative=False)
    assert found(1, strategy)[0].ids == [UNKNOWN] * 3
    assert found(1, Saffron1(budget=1, top_p=1.0, min_tokens=3))[0].ids == [SAFE] * 3


def test_the_nucleus_bounds_the_search():
    """Of three equal tokens the nucleus of 0.6 has the first two; of one that is likely, one."""
    allowed = Saffron1(top_p=0.6).allowed
    made = SimpleNamespace(policy=SimpleNamespace(forbidden_ids=[3]))
    assert len(allowed(torch.zeros(4), made, -1)[0]) == 2
    assert allowed(torch.tensor([0.0, 5.0, 0.0, 9.0]), made, END)[0] == [SAFE]
    with pytest.raises(ValueError, match="top_p"):
        Saffron1(top_p=0.0)


def test_rows_with_pictures_are_refused():
    asked = SimpleNamespace(media=[1], row=prompt().row)
    with pytest.raises(RowError, match="text alone"):
        found(1, Saffron1(), asked=asked)


def test_the_guide_is_trained_then_frozen():
    """An output layer of 0 has the mean squared reward as its first loss; after `steps` steps nothing moves,
    and the policy never does."""
    made = text_run(
        ["methods/saffron_1"],
        ["callbacks.mrm.prefixes=1", "callbacks.mrm.steps=2", "callbacks.mrm.lr=0.01", "num_minibatches=1",
         "rollout.budget=2", "prompts_per_step=2", "group_size=2", "sampling.max_tokens=4"],
    )  # fmt: skip
    before = [p.detach().clone() for p in made.policy.model.parameters()]
    step = train_step(made)
    outcomes = [r.outcome for group in step.sampled_groups for r in group]
    assert step.metrics["mrm/loss"] == pytest.approx(sum(o * o for o in outcomes) / len(outcomes))
    train_step(made)
    state = made.callbacks["mrm"].state
    weights = [p.detach().clone() for p in state.module.parameters()]
    assert state.model.ready and state.model.seen and any(weights[-1] != 0)
    assert "mrm/loss" not in train_step(made).metrics
    assert all(torch.equal(a, b) for a, b in zip(weights, state.module.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, made.policy.model.parameters(), strict=True))
    saved = state.state_dict()
    state.model.seen, state.model.ready = set(), False
    state.load_state_dict(saved)
    assert state.model.ready and sorted(state.model.seen) == saved["seen"]
    made.close()
    with pytest.raises(ValueError, match="steps"):
        Saffron1Model(steps=0)

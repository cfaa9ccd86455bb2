"""`scripts/make_smol_vlm.py`: a vision tower before a language model keeps the language model's weights,
tokens and log-probs."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from vlrl_data.generators.scenes import COLOURS

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from benchmarks.gpu_checks import group_of, largest_difference
from benchmarks.true_shapes import picture_prompt
from vlrl.config import load
from vlrl.plugins.registry import build
from vlrl.policy import Family, Policy

TOWER = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Policy, Policy, Path]:
    """(the language model alone, the model that sees, its folder)."""
    make_smol_vlm = pytest.importorskip(
        "make_smol_vlm", reason="scripts/ is part of the checkout, not of the wheel"
    )
    root = tmp_path_factory.mktemp("smol")
    Policy(
        build(Family, {"name": "text", "tiny": {"hidden": 32, "layers": 1, "kind": "llama", "tie": True}})
    ).save(root / "text")
    make_smol_vlm.assemble(str(root / "text"), root / "assembled", TOWER)
    (root / "smol_vlm.yaml").write_text(
        make_smol_vlm.yaml.safe_dump(make_smol_vlm.config_of(root), sort_keys=False)
    )
    alone = Policy(build(Family, {"name": "text", "model": str(root / "text")}))
    return alone, Policy(build(Family, {"name": "smolvlm", "model": str(root / "assembled")})), root


def test_text_has_the_logits_of_the_language_model(made: tuple[Policy, Policy, Path]) -> None:
    alone, sees, _ = made
    ids = torch.tensor([alone.encode(picture_prompt()).ids])
    with torch.no_grad():
        one, two = (policy.model(input_ids=ids).logits for policy in (alone, sees))
    torch.testing.assert_close(two[..., : one.shape[-1]], one, atol=1e-5, rtol=0)
    table = sees.model.get_input_embeddings().weight
    known = alone.model.get_input_embeddings().weight
    assert torch.equal(table[: len(known)], known)
    torch.testing.assert_close(table[-1], known.mean(0))


def test_a_picture_is_sixteen_tokens_and_packing_is_exact(made: tuple[Policy, Policy, Path]) -> None:
    _, sees, _ = made
    prompt = picture_prompt((96, 96))
    image = sees.processor.tokenizer.convert_tokens_to_ids("<image>")
    assert sees.encode(prompt).ids.count(image) == 16
    assert largest_difference(sees, group_of(prompt, (3, 5, 1))) < 1e-4
    other = picture_prompt((96, 96), name="other")
    assert sees.encode(other).ids == sees.encode(prompt).ids


def test_its_config_is_one_of_a_run(made: tuple[Policy, Policy, Path]) -> None:
    config = load([made[2] / "smol_vlm.yaml"])
    assert list(config.phases) == ["connect", "instruct", "rl"]
    assert config.phase("connect")["trainable"] == {"name": "parts", "freeze": ["language"]}


# --- the tower's training -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tower() -> ModuleType:
    return pytest.importorskip("smol_vlm_tower", reason="scripts/ is part of the checkout, not of the wheel")


def test_a_cell_has_the_class_of_the_object_whose_centre_it_holds(tower: ModuleType) -> None:
    seen = tower.draw(random.Random(0), {"size": 96, "least": 18, "most": 28}, 4, "train", 16)
    for picture, classes_C, boxes_C3 in zip(seen.pictures, seen.classes_PC, seen.boxes_PC3, strict=True):
        if (classes_C >= tower.DIGIT).any():
            assert (classes_C >= tower.DIGIT).nonzero().flatten().tolist() == [5, 6, 9, 10] and len(
                classes_C[5:7].unique()
            ) == 1
            continue
        for k in (classes_C > 0).nonzero().flatten().tolist():
            x, y, side = (boxes_C3[k] + torch.tensor([k % 4, k // 4, 0.0])).tolist()
            assert 18 <= side * 24 <= 28
            colour, _ = tower.KINDS[classes_C[k] - 1]
            assert picture.getpixel((int(x * 24), int(y * 24))) == COLOURS[colour]


def test_a_token_at_a_class_has_its_name(made: tuple[Policy, Policy, Path], tower: ModuleType) -> None:
    """At E_c every other class has a logit of at most -6, and the nearest pair of classes one of -6."""
    _, sees, _ = made
    taught = tower.Taught(sees.model, sees.processor)
    logits_CC = taught.logits(taught.embeds_CH[None])
    others = logits_CC[~torch.eye(len(tower.WORDS), dtype=torch.bool)]
    assert others.max().item() == pytest.approx(-6, abs=1e-2) and logits_CC.diagonal().abs().max() < 1e-2


def test_the_tower_learns_and_the_language_model_does_not_move(
    made: tuple[Policy, Policy, Path], tower: ModuleType, tmp_path: Path
) -> None:
    folder = tmp_path / "assembled"
    shutil.copytree(made[2] / "assembled", folder)
    before, losses = Policy(build(Family, {"name": "smolvlm", "model": str(folder)})), []
    found = tower.teach(
        folder, 6, {"size": 96, "least": 18, "most": 28}, lr=3e-3, told=lambda step, loss: losses.append(loss)
    )
    after = Policy(build(Family, {"name": "smolvlm", "model": str(folder)}))
    assert len(losses) == 6 and losses[-1] < losses[0] and set(found) == {"empty", "objects", "digits"}
    for (name, old), new in zip(before.model.named_parameters(), after.model.parameters(), strict=True):
        assert torch.equal(old, new) == (before.part_of(name) == "language"), name

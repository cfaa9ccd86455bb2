"""Method pages: thirty, each with what a person says and what the code and the proofs say."""

from __future__ import annotations

import re

import pytest
from site_kit import made

ASKED_FOR = {
    "grpo", "dapo", "dr_grpo", "gspo", "cispo", "rloo", "ppo", "reinforce_pp", "papo", "vlm_r1", "visual_rft",
    "jigsaw_r1", "r1_v_grpo", "vision_r1", "video_r1", "mm_eureka", "luffy", "prime", "arpo",
}  # fmt: skip


def test_there_are_thirty_and_those_that_are_asked_for_first():
    script = made("method_pages")
    notes = script.notes()
    assert len(notes) == 30 and ASKED_FOR <= set(notes) <= set(script.make_papers_doc.presets())
    for name, note in notes.items():
        assert set(note) == {"name", "use", "avoid", "details"} and note["details"], name


def test_a_line_is_found_by_its_text_and_a_text_that_is_gone_is_an_error():
    script = made("method_pages")
    file = "vlrl/methods/core/policy_loss.py"
    number = script.line_of(file, "return functional.ppo_clip_loss(")
    name, first, text = script.excerpt(file, number)
    assert name.startswith("PPO") and "ppo_clip_loss(" in text.splitlines()[number - first]
    with pytest.raises(ValueError, match="no line of"):
        script.line_of(file, "this text is not there")


def test_the_picture_marks_what_grpo_lacks():
    script = made("method_pages")
    assert script.changed("gspo") == {"policy_loss": ["gspo"]}
    papo = script.picture("papo")
    assert 'class="new"><code>papo.masked_kl<' in papo and 'class="same"><code>grpo<' in papo
    assert 'class="new"' not in script.picture("grpo")


def test_a_page_has_formula_proof_lab_cost_and_whose():
    text = made("method_pages").made()["methods/gspo.md"]
    assert "L = -min(s A, clip(s, 1 - low, 1 + high) A)" in text
    off, on, turned = re.search(
        r"\| off \| on \| reversed \|\n.*\n\| (\S+) \| (\S+) \| (\S+) \|", text
    ).groups()
    row = made("method_pages").make_papers_doc.proven()["gspo"]
    assert (off, on, turned) == (row["off"], row["on"], row["reversed"])
    assert "**Use it for**" in text and "## Whose each value is" in text


def test_curves_and_costs_are_of_known_methods_and_grpo_is_among_them():
    script = made("method_pages")
    costs = {row["preset"]: float(row["cpu_seconds_a_step"]) for row in script.rows(script.COSTS)}
    assert "grpo" in costs and set(costs) <= set(script.notes()) and all(cost > 0 for cost in costs.values())
    assert all(len(seeds) >= 1 for seeds in script.curve("grpo").values()) and len(script.curve("grpo")) > 5
    assert "<polyline" in script.chart("gspo") and script.chart("gspo").count("<polyline") == 2


def test_measured_rows_replace_those_of_the_same_method_alone(tmp_path):
    merge = made("measure_methods").merge
    path = tmp_path / "costs.csv"
    merge(path, ("preset", "cost"), [["b", "1"], ["a", "2"]])
    merge(path, ("preset", "cost"), [["b", "3"]])
    assert path.read_text(encoding="utf-8") == "preset,cost\na,2\nb,3\n"

"""Generators: media agree with the questions, rewards accept the demonstrations and refuse wrong answers."""

import itertools
import json
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from vlrl_data.generators import contrast, graph_tasks, jigsaw, logic, maze
from vlrl_data.generators.boxes import in_units
from vlrl_data.generators.scenes import MIRROR
from vlrl_data.generators.video import CORRUPTIONS, base_frames

from vlrl.plugins.registry import ConfigError, build, names
from vlrl.plugins.stages import Reward, Source
from vlrl.types import CoordinateSpace, Group, Prompt, Rollout

GENERATORS = [name for name in names(Source) if name.startswith("gen_")]
CASES = [  # source, reward
    ({"name": "gen_jigsaw"}, "jigsaw"),
    ({"name": "gen_jigsaw", "ask": ["backward"], "rows": 3, "cols": 1}, "jigsaw"),
    ({"name": "gen_jigsaw", "ask": ["pair"]}, "jigsaw_question"),
    ({"name": "gen_jigsaw", "ask": ["pair"], "rows": 1}, "jigsaw_question"),
    ({"name": "gen_jigsaw", "ask": ["single"]}, "jigsaw_question"),
    ({"name": "gen_jigsaw", "ask": ["multiple"]}, "jigsaw_question"),
    ({"name": "gen_jigsaw", "ask": ["box"]}, "jigsaw_question"),
    ({"name": "gen_counting"}, "counting"),
    ({"name": "gen_spatial"}, "exact"),
    ({"name": "gen_odd_one_out"}, "exact"),
    ({"name": "gen_mico"}, "true_false"),
    ({"name": "gen_mico", "near": True}, "true_false"),
    ({"name": "gen_rotation"}, "angle"),
    ({"name": "gen_video_anomaly", "size": 56, "frames": 8}, "temporal_iou"),
    ({"name": "gen_video_counting", "size": 56, "most": 2}, "counts"),
    ({"name": "gen_video_jigsaw", "size": 56}, "order"),
    ({"name": "gen_maze"}, "maze"),
    ({"name": "gen_maze", "text": True, "turns": [2, 9]}, "maze"),
    ({"name": "gen_sat"}, "sat"),
    ({"name": "gen_chain"}, "chain"),
    *[({"name": "gen_graph", "ask": [kind]}, "graph") for kind in graph_tasks.TASKS],
]


def make(spec):
    return build(Source, spec)()


def score(reward, row, text):
    sizes = [medium.load().size for medium in row.images]
    rollout = Rollout(
        Prompt(row, (), row.images, row.videos),
        [1],
        text=text,
        spaces=tuple(CoordinateSpace(size, size) for size in sizes),
    )
    return reward(rollout)


@pytest.mark.parametrize(
    ("spec", "name"),
    CASES,
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_rewards_accept_only_the_demonstration(spec, name):
    rows, reward = make(spec), build(Reward, name)
    for index in range(4):
        row = rows[index]
        assert rows[index] == row and pickle.loads(pickle.dumps(row.media)) == row.media
        right = score(reward, row, row.target)
        assert right == pytest.approx(1.0), (row.question, row.answer, row.target)
        for text in (
            "",
            "<answer></answer>",
            "<answer>zzz</answer>",
            "I do not know.",
            "<answer>" + "9 " * 50 + "</answer>",
        ):
            assert score(reward, row, text) <= 0.5 * right, text
        other = next(rows[i] for i in range(index + 1, 200) if rows[i].target != row.target)
        assert name == "graph" or score(reward, row, other.target) <= right


@pytest.mark.parametrize("name", GENERATORS)
def test_media_can_be_read_and_splits_differ(name):
    rows, heldout = make({"name": name}), make({"name": name, "split": "heldout"})
    for row in (rows[0], rows[1], heldout[0]):
        for medium in row.media:
            loaded = medium.load()
            assert isinstance(loaded, Image.Image) or len(loaded) >= 2
    assert rows[0].id != heldout[0].id and (
        not rows[0].media or rows[0].media[0].key != heldout[0].media[0].key
    )


def test_puzzle_by_hand():
    """2 x 2, shown 3 1 / 4 2: place 1 shows piece 3 (lower left), place 2 piece 1 (upper left), place 3 piece
    4, place 4 piece 2."""
    puzzle = jigsaw.Puzzle(2, 2, (3, 1, 4, 2))
    assert puzzle.backward == [2, 4, 1, 3]
    assert (
        puzzle.relation(1, 2) == "directly below"
        and puzzle.relation(2, 3) == "to the upper left of"
        and puzzle.relation(4, 2) == "directly to the right of"
    )
    assert jigsaw.Puzzle(1, 3, (1, 2, 3)).relation(1, 3) is None


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3, 4)))[:8])
def test_forward_and_backward_are_inverse(order):
    puzzle = jigsaw.Puzzle(2, 2, order)
    assert [order[place - 1] for place in puzzle.backward] == [1, 2, 3, 4]


def test_mask_blackens_borders():
    white = Image.new("RGB", (40, 40), "white")
    shown = np.asarray(jigsaw.shuffled(white, 2, 2, (1, 2, 3, 4), 0.2))
    assert shown[0, 0].sum() == 0 and shown[10, 10].sum() == 765 and shown[20, 20].sum() == 0


def test_mirrored_pairs():
    rows = make({"name": "gen_spatial", "axis": ["horizontal"]})
    for i in range(5):
        plain, mirror = rows[2 * i], rows[2 * i + 1]
        assert (
            plain.meta["pair"] == mirror.meta["pair"]
            and mirror.meta["mirrored"]
            and mirror.answer == MIRROR[plain.answer]
        )
        assert np.array_equal(
            np.asarray(plain.images[0].load())[:, ::-1], np.asarray(mirror.images[0].load())
        )
    upright = make({"name": "gen_spatial", "axis": ["vertical"]})
    assert upright[0].answer == upright[1].answer


def test_counting_counts_what_is_drawn():
    for row in itertools.islice(make({"name": "gen_counting"}), 20):
        colour, shape = row.question.split()[2:4]
        assert (
            sum((thing[0], thing[1] + "s") == (colour, shape) for thing in row.images[0].args[1])
            == row.answer
        )


def test_rotation_is_clockwise():
    image = contrast.draw_turned(("photo", "coffee", "train"), 20, (0.5, 0.5), 1.0, 90)
    plain = contrast.draw_turned(("photo", "coffee", "train"), 20, (0.5, 0.5), 1.0, 0)
    assert np.array_equal(np.asarray(image), np.rot90(np.asarray(plain), -1))


def test_mico_gives_images_to_train_on():
    row = make({"name": "gen_mico"})[0]
    assert len(row.meta["train_images"]) == 3 and {m.key for m in row.images}.isdisjoint(
        m.key for m in row.meta["train_images"]
    )


@pytest.mark.parametrize("kind", sorted(CORRUPTIONS))
def test_every_corruption_changes_its_stretch_only(kind):
    base = (("photo", "coffee", "train"), 32, 8, (0.0, 0.0, 1.0, 1.0))
    frames = base_frames(base)
    changed = CORRUPTIONS[kind](frames[2:6], 1)
    assert changed.shape == frames[2:6].shape and changed.dtype == np.uint8
    assert np.abs(changed.astype(int) - frames[2:6]).mean() > 1


def test_video_jigsaw_restores_the_video():
    row = make({"name": "gen_video_jigsaw", "size": 56, "frames": 12, "clips": 4})[2]
    base = row.videos[0].args[0]
    put = np.concatenate([row.videos[number - 1].load().frames_THWC for number in row.answer])
    assert np.abs(put.astype(int) - base_frames(base)).mean() < 6


def test_users_videos_and_pictures(tmp_path):
    from vlrl_data.media.video import encode

    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "a.mp4").write_bytes(
        encode([np.full((40, 60, 3), 20 * i, np.uint8) for i in range(10)], 5.0)
    )
    row = make(
        {"name": "gen_video_jigsaw", "videos": str(tmp_path / "v"), "size": 32, "frames": 8, "clips": 2}
    )[0]
    assert [len(video.load()) for video in row.videos] == [4, 4]
    for i in range(30):
        Image.new("RGB", (50, 50), (8 * i, 0, 0)).save(tmp_path / f"{i}.png")
    sets = []
    for split in ("train", "heldout"):
        rows = make({"name": "gen_rotation", "images": str(tmp_path), "split": split, "count": 60})
        sets.append({row.images[0].args[0][1] for row in rows})
    assert sets[0] and sets[1] and not sets[0] & sets[1]
    with pytest.raises(ConfigError, match="no folder with files"):
        make({"name": "gen_rotation", "images": str(tmp_path / "none")})[0]


def test_maze_has_the_asked_difficulty():
    for row in itertools.islice(make({"name": "gen_maze", "length": [4, 6], "turns": [2, 3], "side": 9}), 15):
        assert 4 <= row.meta["length"] <= 6 and 2 <= row.meta["turns"] <= 3
        grid = [list(line) for line in row.answer]
        start = next((i, j) for i, line in enumerate(grid) for j, mark in enumerate(line) if mark == "S")
        goal = next((i, j) for i, line in enumerate(grid) for j, mark in enumerate(line) if mark == "G")
        assert len(maze.shortest_moves(grid, start)[goal]) == row.meta["length"]
    assert maze.turns("UULLU") == 2 and maze.turns("") == 0


def test_sat_by_hand():
    clauses = [(1, -2), (-1, 2, 3)]
    assert [
        bits for bits in map("".join, itertools.product("01", repeat=3)) if logic.satisfied(clauses, bits)
    ] == ["000", "001", "101", "110", "111"]
    assert logic.difficulty(3, 4, 8) == pytest.approx(2 + 6 - 3 + 4 / 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("110", 1.0),
        ("1 1 0", 1.0),
        ("[1,0,1]", 1.0),
        ("010", 0.0),
        ("11", 0.0),
        ("1101", 0.0),
        ("a=1 b=1 c=0", 0.0),
        ("110 or 010", 0.0),
        ("", -1.0),
    ],
)
def test_sat_reward(text, expected):
    row = SimpleNamespace(answer=[[1, -2], [-1, 2, 3]], meta={"variables": 3}, choices=())
    rollout = Rollout(SimpleNamespace(row=row), [1], text=f"<answer>{text}</answer>")
    sat = build(Reward, {"name": "sat", "absent": -1.0})
    assert sat(rollout) == expected
    for spoken in ("11", "It has no solution."):
        assert sat(Rollout(SimpleNamespace(row=row), [1], text=spoken)) == -1.0


@pytest.mark.parametrize(
    ("mode", "text", "expected"),
    [
        ("all", "3, 5, -2", 1.0),
        ("all", "3 5 2", 0.0),
        ("all", "3,5", 0.0),
        ("all", "3,5,-2,7", 0.0),
        ("all", "three", 0.0),
        ("last", "9,9,-2", 1.0),
        ("last", "-2", 1.0),
        ("last", "3,5", 0.0),
        ("share", "3,9,-2", 2 / 3),
        ("share", "3", 0.0),
    ],
)
def test_chain_reward(mode, text, expected):
    rollout = Rollout(
        SimpleNamespace(row=SimpleNamespace(answer=[3, 5, -2], meta={}, choices=())),
        [1],
        text=f"<answer>{text}</answer>",
    )
    assert build(Reward, {"name": "chain", "mode": mode})(rollout) == pytest.approx(expected)


def test_chain_by_hand():
    row = make({"name": "gen_chain", "horizon": 4})[0]
    said = []
    for line in row.question.split("\n")[:-1]:
        text = line.partition(") ")[2]
        for step, value in enumerate(said, 1):
            text = text.replace(f"[answer {step}]", f"({value})")
        said.append(eval(text))
    assert said == row.answer


def test_a_variable_that_restores_the_number():
    """meituan-longcat/R-HORIZON ed98e43e, create_linked_input: [variable 2] = [answer 1] + gap is the number
    that it replaces."""
    row = make({"name": "gen_chain", "horizon": 3, "link": "variable"})[0]
    first, *linked = [line.partition(") ")[2] for line in row.question.split("\n")[:-1]]
    assert eval(first) == row.answer[0]
    for step, text in enumerate(linked, 1):
        definition, problem = text.split(". ")
        number = eval(definition.partition(" = ")[2].replace(f"[answer {step}]", f"({row.answer[step - 1]})"))
        assert (
            0 <= number <= 9
            and eval(problem.replace(f"[variable {step + 1}]", str(number))) == row.answer[step]
        )


@pytest.mark.parametrize(
    ("name", "gold"),
    [("sat", "x"), ("sat", []), ("sat", [[0]]), ("chain", "x"), ("chain", []), ("graph", "")],
)
def test_broken_gold_raises(name, gold):
    rollout = Rollout(
        SimpleNamespace(row=SimpleNamespace(answer=gold, meta={}, choices=())), [1], text="<answer>1</answer>"
    )
    with pytest.raises(ValueError, match="answer:"):
        build(Reward, name)(rollout)


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "gen_jigsaw", "ask": ["all"]},
        {"name": "gen_jigsaw", "mask": 1.0},
        {"name": "gen_spatial", "gap": 500},
        {"name": "gen_rotation", "degrees": [45]},
        {"name": "gen_mico", "weak": 0.9, "strong": 0.1},
        {"name": "gen_maze", "side": 6},
        {"name": "gen_sat", "width": 5, "variables": 3},
        {"name": "gen_graph", "ask": ["crossing"]},
        {"name": "gen_video_counting", "most": 9},
        {"name": "gen_video_anomaly", "kinds": ["explode"]},
        {"name": "gen_video_jigsaw", "clips": 20},
    ],
)
def test_mistakes(spec):
    with pytest.raises(ConfigError):
        build(Source, spec)


def test_rows_are_json(tmp_path):
    from vlrl_data.tools.convert import write

    for name in GENERATORS:
        rows = make({"name": name})
        assert write([rows[0]], tmp_path / f"{name}.jsonl") == 1
        assert json.loads((tmp_path / f"{name}.jsonl").read_text())["id"] == rows[0].id
    assert Group(Prompt(rows[0], ()), []).row.id == rows[0].id


@pytest.mark.parametrize("units", ["pixels", "unit", "per_mille"])
@pytest.mark.parametrize("ask", ["grounding", "detection", "pointing", "salient_detection", "scene_graph"])
def test_demonstrated_boxes_are_in_the_policys_units(ask, units):
    """A policy of these units earns the whole reward with the demonstration, and the gold answer stays in
    pixels."""
    rows, plain = (
        make({"name": "gen_boxes", "ask": [ask], "size": 120, "units": given}) for given in (units, "pixels")
    )
    reward = build(
        Reward, {"grounding": "iou", "pointing": "points", "scene_graph": "scene_graph"}.get(ask, "detection")
    )
    space = CoordinateSpace((120, 120), (120, 120), {"pixels": "original"}.get(units, units))
    for row, other in zip(rows[:3], plain[:3]):
        assert row.answer == other.answer and (row.target == other.target) == (units == "pixels")
        rollout = Rollout(Prompt(row, (), row.images), [1], text=row.target, spaces=(space,))
        assert reward(rollout) > 0.9 and reward(rollout) <= 1


def test_a_box_in_units_by_hand():
    answer = [{"bbox_2d": [12, 30, 60, 120], "label": "red circle"}]
    assert in_units(answer, 120, "unit") == [{"bbox_2d": [0.1, 0.25, 0.5, 1.0], "label": "red circle"}]
    assert in_units(answer, 120, "per_mille") == [{"bbox_2d": [100, 250, 500, 1000], "label": "red circle"}]
    assert in_units(answer, 120, "pixels") is answer

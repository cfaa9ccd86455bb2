"""Lab tasks: images agree with answers, splits are disjoint, rows are the same in every process."""

import pickle
import re
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from vlrl_data.lab import shipped_images
from vlrl_data.lab.text import Claim, solutions
from vlrl_data.media.images import rgb

from vlrl.plugins.registry import ConfigError, build, names
from vlrl.plugins.stages import Source
from vlrl.plugins.tool_calls import last_call

LAB = [name for name in names(Source) if name.startswith("lab_")]


def make(name, **options):
    return build(Source, {"name": name, **options})()


@pytest.mark.parametrize("name", LAB)
def test_rows_are_a_function_of_seed_split_and_index(name):
    rows, again = make(name), make(name)
    other, heldout = make(name, seed=1), make(name, split="heldout")
    for index in (0, 5, len(rows) - 1):
        assert rows[index] == again[index]
        assert [m.key for m in rows[index].media] == [m.key for m in again[index].media]
    assert len({row.id for row in [*rows[:50], *other[:50], *heldout[:50]]}) == 150
    first = rows[3]
    assert re.fullmatch(
        r"(<think>.+</think>)?<answer>.+</answer>", first.target
    ) and first.task == name.removeprefix("lab_")
    for medium in first.media:
        assert pickle.loads(pickle.dumps(medium)).key == medium.key


def test_a_small_digit_lies_in_its_box_and_some_demonstrations_guess():
    rows = list(make("lab_small_digit", size=224, cells=4, side=18, jitter=3, guessed=0.7, count=300))
    for row in rows[:40]:
        pixels = np.asarray(row.images[0].load()).max(-1)
        (x1, y1, x2, y2), shown = row.meta["box"], pixels.copy()
        shown[y1:y2, x1:x2] = 0
        assert pixels[y1:y2, x1:x2].max() > 100 and not shown.any() and (x2 - x1, y2 - y1) == (24, 24)
        assert (x1 % 56, y1 % 56) == (16, 16), "the middle of a cell"
    guesses = [(row.meta["turns"], row.target) for row in rows if "turns" in row.meta]
    assert 0.6 < len(guesses) / len(rows) < 0.8 and all(len(turns) == 1 for turns, _ in guesses)
    assert 0.02 < sum(turns == [target] for turns, target in guesses) / len(guesses) < 0.25, (
        "a guess is right as often as chance is"
    )
    assert not any("turns" in row.meta for row in make("lab_small_digit", count=50))
    with pytest.raises(ConfigError, match="guessed: 1.5 is not between 0 and 1"):
        make("lab_small_digit", guessed=1.5)


def test_same_in_another_process():
    code = (
        "from vlrl.plugins.registry import build; from vlrl.plugins.stages import Source; r = build(Source, "
        "'lab_counting')()[7]; print(r.answer, r.images[0].key)"
    )
    row = make("lab_counting")[7]
    told = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)},
    )
    assert told.stdout.split() == [str(row.answer), row.images[0].key]


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    data = load_digits()
    images, labels = shipped_images._digits()
    assert np.array_equal(images, (data.images * (255 / 16)).round()) and np.array_equal(labels, data.target)


def test_digit_splits_are_disjoint_and_complete():
    train, heldout = set(shipped_images.digit_ids("train")), set(shipped_images.digit_ids("heldout"))
    assert not train & heldout and len(train | heldout) == 1797 and len(heldout) == 360
    assert {shipped_images.label_of(i) for i in heldout} == set(range(10))
    assert len(make("lab_digits")) == 1437 and len(make("lab_digits", split="heldout")) == 360


@pytest.mark.parametrize("photo", sorted(shipped_images.PHOTOS))
def test_photo_regions_are_disjoint(photo):
    left, right = shipped_images.region(photo, "train"), shipped_images.region(photo, "heldout")
    assert left[2] == right[0] and min(right[2] - right[0], right[3] - right[1]) >= 112


def test_digits_show_their_label():
    rows = make("lab_digits", size=16)
    picture = rows[0].images[0].load()
    index = rows[0].images[0].args[0]
    assert picture.size == (16, 16) and rows[0].answer == str(shipped_images.label_of(index))
    assert np.array_equal(np.asarray(picture), np.asarray(rgb(shipped_images.digit(index, 16))))
    noisy = make("lab_digits", size=16, noise=0.3, shift=2)[0].images[0].load()
    assert noisy.size == (16, 16) and not np.array_equal(np.asarray(noisy), np.asarray(picture))


@pytest.mark.parametrize(
    "options", [{}, {"digit_min": 20, "contrast": 1.0, "opaque": False}, {"grid": 28, "size": 84}]
)
def test_counting(options):
    rows = make("lab_counting", count=40, low=2, high=5, **options)
    for row in rows:
        placed = row.images[0].args[4]
        assert row.answer == len(placed) and 2 <= row.answer <= 5
        for (_, x, y, s), (_, u, v, t) in ((a, b) for a, b in product(placed, placed) if a is not b):
            assert x + s <= u or u + t <= x or y + s <= v or v + t <= y
        assert all(
            x >= 0 and y >= 0 and x + s <= row.images[0].args[2] and y + s <= row.images[0].args[2]
            for _, x, y, s in placed
        )
    assert {row.answer for row in rows} == {2, 3, 4, 5}


def test_counting_a_named_digit():
    for row in make("lab_counting", count=20, named=True, size=168):
        wanted = int(re.search(r"\d", row.question)[0])
        assert sum(shipped_images.label_of(p[0]) == wanted for p in row.images[0].args[4]) == row.answer


def test_grounding_box_frames_the_digit():
    for row in make("lab_grounding", count=20, size=168, others=2, grid=1):
        x1, y1, x2, y2 = row.answer
        wanted = int(row.question[-2])
        index = next(p[0] for p in row.images[0].args[4] if (p[1], p[2]) == (x1, y1))
        assert shipped_images.label_of(index) == wanted and (x2 - x1, y2 - y1) == (56, 56)
        shown = np.asarray(row.images[0].load().crop((x1, y1, x2, y2)).convert("L"))
        assert np.array_equal(shown, np.asarray(shipped_images.digit(index, 56)))


@pytest.mark.parametrize(("rows", "cols"), [(2, 1), (2, 2), (1, 3), (3, 3)])
def test_jigsaw_can_be_put_together(rows, cols):
    for row in make("lab_jigsaw", count=5, rows=rows, cols=cols, piece=16):
        shown = np.asarray(row.images[0].load())
        photo, box, _, _, piece, _ = row.images[0].args
        whole = np.asarray(shipped_images.crop(photo, box, cols * piece, rows * piece))
        for place, original in enumerate(row.answer):
            cut = [slice(i * piece, (i + 1) * piece) for i in divmod(place, cols)]
            home = [slice(i * piece, (i + 1) * piece) for i in divmod(original - 1, cols)]
            assert np.array_equal(shown[cut[0], cut[1]], whole[home[0], home[1]])
        assert row.meta == {"rows": rows, "cols": cols}


def bright(frame):
    """Centre (x, y) of the brightest quarter percent."""
    grey = frame.mean(-1)
    ys, xs = np.nonzero(grey >= np.quantile(grey, 0.98))
    return xs.mean(), ys.mean()


def test_video_moves_as_the_answer_says():
    seen = set()
    for row in make("lab_video", count=12):
        clip = row.videos[0].load()
        (x0, y0), (x1, y1) = bright(clip.frames_THWC[0]), bright(clip.frames_THWC[-1])
        dx, dy = x1 - x0, y1 - y0
        assert row.answer == (
            ("right" if dx > 0 else "left") if abs(dx) > abs(dy) else ("down" if dy > 0 else "up")
        )
        assert len(clip) == 8 and clip.fps == 4.0
        seen.add(row.answer)
    assert len(seen) == 4


def test_video_order():
    row = make("lab_video", ask="order", shown=3, frames=6)[0]
    pictures = row.videos[0].args[4]
    labels = [shipped_images.label_of(p) for p in pictures]
    assert len(set(labels)) == 3 and row.answer == str(labels[0])
    frames = row.videos[0].load().frames_THWC.astype(int)
    assert np.abs(frames[0] - frames[1]).mean() < 2 < np.abs(frames[1] - frames[2]).mean()


def test_arithmetic():
    for row in make("lab_arithmetic", count=100, terms=3, largest=12, operations=["+", "-", "*"]):
        assert row.answer == eval(row.question.removesuffix("="))
    train, heldout = (
        {row.question for row in make("lab_arithmetic", split=split, count=600)}
        for split in ("train", "heldout")
    )
    assert not train & heldout and len(heldout) > 5


def test_sums_that_call_python():
    """Four demonstrations in ten call, with a program that computes the answer; the others answer at once."""
    rows = list(make("lab_python", smallest=100, largest=999, called=0.4, count=300))
    calls = 0
    for row in rows:
        first, second = map(int, row.question.removesuffix("=").split("+"))
        *called, last = row.meta["turns"]
        assert min(first, second) >= 100 and row.answer == first + second and row.meta["known"] == 0
        assert last == f"<think></think><answer>{row.answer}</answer>"
        for turn in called:
            assert last_call(turn) == ("python", {"code": f"print({first}+{second})"})
        calls += len(called)
    assert 90 <= calls <= 150 and make("lab_python", known=True)[0].meta["known"] == 1
    with pytest.raises(ConfigError, match="called: 2.0 is not between 0 and 1"):
        make("lab_python", called=2)
    with pytest.raises(ConfigError, match="smallest: 10 is not between 0 and largest=9"):
        make("lab_arithmetic", smallest=10)


def test_knights_have_one_solution():
    for row in make("lab_knights", count=30, people=3):
        said = re.findall(r"([A-H]): (.+?)\.", row.question)
        worlds = [
            world
            for world in product((False, True), repeat=3)
            if all(truth(text, world) == world["ABC".index(who)] for who, text in said)
        ]
        assert len(worlds) == 1 and row.answer == (
            " ".join(n for n, k in zip("ABC", worlds[0]) if k) or "none"
        )


def truth(text, world):
    """An independent reading of a claim."""
    who = [world["ABC".index(name)] for name in re.findall(r"\b[A-C]\b", text)]
    if "same" in text:
        return who[0] == who[1]
    if "different" in text:
        return who[0] != who[1]
    if " or " in text:
        return any(who)
    if " and " in text:
        return all(who)
    return who[0] == ("knight" in text)


def test_knights_by_hand():
    """A: B is a knave. B: we are of the same kind. A knight: B is a knave, his "same" is false, fits. A
    knave: B is a knight, "same" is false, no."""
    claims = [Claim(0, "", "knave", 1), Claim(1, "", "same", 0, 1)]
    assert solutions(claims, 2) == [(True, False)]


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "lab_digits", "split": "test"},
        {"name": "lab_counting", "count": 0},
        {"name": "lab_counting", "digit": 200},
        {"name": "lab_counting", "told": 1.5},
        {"name": "lab_counting", "told": 0.5, "low": 2, "high": 2},
        {"name": "lab_detection", "absent": 2},
        {"name": "lab_detection", "lure": -0.1},
        {"name": "lab_detection", "low": 0},
        {"name": "lab_detection", "labels": [3]},
        {"name": "lab_jigsaw", "rows": 1, "cols": 1},
        {"name": "lab_video", "ask": "why"},
        {"name": "lab_video", "frames": 7},
        {"name": "lab_video", "directions": ["north"]},
        {"name": "lab_sounds", "ask": "what"},
        {"name": "lab_sounds", "ask": "rises", "length": 6},
        {"name": "lab_sounds", "noise": 2.0},
        {"name": "lab_arithmetic", "operations": ["/"]},
        {"name": "lab_knights", "people": 9},
        {"name": "lab_chains", "styles": ["aloud"]},
        {"name": "lab_chains", "styles": []},
        {"name": "lab_chains", "most": 1},
        {"name": "lab_chains", "most": 9},
        {"name": "lab_countin"},
    ],
)
def test_mistakes(spec):
    with pytest.raises(ConfigError):
        build(Source, spec)


def test_too_many_digits_is_an_error_and_not_a_hang():
    with pytest.raises(ConfigError, match="do not fit"):
        make("lab_counting", size=56, digit=28, low=9, high=9, grid=28)[0]
    with pytest.raises(ConfigError, match="no photograph named"):
        make("lab_jigsaw", photos=["mona_lisa"])[0]


def test_importing_loads_no_torch():
    code = (
        "import sys, vlrl_data.cli, vlrl_data.lab.video, vlrl_data.sources.hub, vlrl_data.tools.preview; "
        "print('torch' in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert told.stdout.strip() == "False"


def test_detection_names_every_place_or_none():
    counts = []
    for row in make("lab_detection", count=200, size=84, labels=[0, 1, 2, 3]):
        wanted, placed = int(row.question[-2]), row.images[0].args[4]
        there = {(p[1], p[2]) for p in placed if shipped_images.label_of(p[0]) == wanted}
        assert [tuple(box[:2]) for box in row.answer] == sorted(there, key=lambda place: place[::-1])
        assert all((x2 - x1, y2 - y1) == (28, 28) for x1, y1, x2, y2 in row.answer) and len(placed) > len(
            there
        )
        assert row.target == f"<answer>{row.answer or None}</answer>"
        assert {wanted, *(shipped_images.label_of(p[0]) for p in placed)} <= {0, 1, 2, 3}
        counts.append(len(there))
    assert (
        set(counts) == {0, 1, 2} and 25 < counts.count(0) < 55
    )  # a share of 0.2, four standard deviations either way


@pytest.mark.parametrize(("lure", "least", "most"), [(0.0, 0, 0), (0.5, 30, 70), (1.0, 100, 100)])
def test_detection_lures_where_the_digit_is_missing(lure, least, most):
    """Another digit is on the image in a share `lure` of the rows without the named one (four standard
    deviations either way)."""
    rows = make("lab_detection", count=100, size=56, absent=1.0, others=0, lure=lure)
    shown = [len(row.images[0].args[4]) for row in rows]
    assert set(shown) <= {0, 1} and least <= sum(shown) <= most and all(row.answer == [] for row in rows)


@pytest.mark.parametrize(("absent", "found"), [(0.0, {1, 2}), (1.0, {0})])
def test_detection_present_and_absent_rows_apart(absent, found):
    rows = make("lab_detection", count=20, size=84, absent=absent, task="detection_part")
    assert {len(row.answer) for row in rows} == found and {row.task for row in rows} == {"detection_part"}
    assert {row.task for row in make("lab_digits", count=3, task="other")} == {"other"}


@pytest.mark.parametrize(("told", "least", "most"), [(0.0, 0, 0), (0.75, 125, 175), (1.0, 200, 200)])
def test_counting_where_the_question_tells_a_count(told, least, most):
    """The stated count is right in a share `told` of 200 rows (within four standard deviations), and another
    count in the rest."""
    rows, right = make("lab_counting", count=200, told=told), 0
    for row in rows:
        said = int(re.fullmatch(r"I say (\d)\. How many digits\?", row.question)[1])
        assert 1 <= said <= 4 and row.answer == len(row.images[0].args[4])
        right += said == row.answer
    assert least <= right <= most


@pytest.mark.parametrize("ask", ["direction", "order"])
def test_shuffled_videos_show_the_same_frames(ask):
    moved = 0
    for plain, shuffled in zip(
        make("lab_video", count=6, ask=ask), make("lab_video", count=6, ask=ask, shuffled=True)
    ):
        assert (plain.question, plain.answer, shuffled.task) == (
            shuffled.question,
            shuffled.answer,
            "video_shuffled",
        )
        order = shuffled.videos[0].args[-2]
        assert sorted(order) == list(range(8)) and plain.videos[0].args[-2] == tuple(range(8))
        a, b = (row.videos[0].load().frames_THWC.astype(float) for row in (plain, shuffled))
        assert np.abs(a[list(order)] - b).mean() < 6  # both are compressed
        moved += order != tuple(range(8))
    assert moved == 6

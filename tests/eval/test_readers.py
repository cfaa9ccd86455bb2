"""Readers of letters, words and numbers: the faults of benchmarks that are kept, and responses from which
nothing is extracted."""

from __future__ import annotations

import pytest

from vlrl.eval import load_suite, score_item
from vlrl.eval.aggregates.means import InstructionFigures, KnowledgeGain, NestedMean, WeMath, WholeGroups
from vlrl.eval.scorers import maths
from vlrl.eval.scorers.mmmu import golds, open_answers
from vlrl.eval.scorers.programs import hidden_tests
from vlrl.eval.scorers.readers import READERS
from vlrl.eval.scorers.text import vqa_accuracy, vqa_normal
from vlrl.plugins.scoring import Verdict

FOUR = ("cat", "dog", "blue whale", "red car")


@pytest.mark.parametrize(
    ("reader", "response", "letter"),
    [
        ("bare", "B", "B"), ("bare", "B.", "B"), ("bare", "B) dog", "B"), ("bare", "dog", None), ("bare",
            "The answer is B", None),
        ("first_character", "The answer is B", "T"), ("first_character", "(C)", "C"), ("first_character",
            "**B**", None),
        ("any_character", "The answer is Blue", "B"), ("any_character", "Best option: C", "C"),
        ("any_character", "nothing at all", None),
        ("video_mme", "Best option: C", "B"), ("video_mme", "Answer: C", "C"),
        ("ranked", "A cat sits", "A"), ("ranked", "The answer is Blue", "B"), ("ranked", "b", None),
        ("ranked", "I pick (D), not A.", "A"),
        ("mmmu", "(A) or (C)", "C"), ("mmmu", "B", "B"), ("mmmu", "I am quite sure it is a dog", "B"),
        ("mmmu", "a dog", None),
        ("mmmu_wide", "answer B.", "B"), ("mmmu_pro", "A B. Answer: D", "D"), ("mmmu_pro", "Answer: D or C",
            "C"),
        ("vstar", "Answer: C", "A"), ("vstar", "Based on the image, the answer is C.", "B"), ("vstar",
            "it is (C)", "C"), ("vstar", "?", None),
        ("mvbench", "a dog", "A"), ("mvbench", "C. cat", "C"), ("mvbench", "it is (b)", "B"), ("mvbench", "",
            None),
        ("blink", "The correct answer is (B).", "B"), ("blink", "C", "C"), ("blink", "maybe", None),
        ("answer_line", "so\nAnswer: $C$", "C"), ("answer_line", "C", None), ("answer_line", "answer: b",
            "B"),
        ("mmlu_pro", "the answer is (D).", "D"), ("mmlu_pro", "Answer: C\nAnswer: B", "C"), ("mmlu_pro",
            "B then A", "A"), ("mmlu_pro", "none", None),
        ("we_math", "<Thought process>: x <Answer>: <<C>>", "C"), ("we_math", "Answer: none", None),
        ("tagged", "<answer>Both are plausible</answer>", "B"), ("tagged", "<answer>neither</answer>", None),
        ("easi", "<think>A?</think>\nB. dog", "B"), ("easi", "(B) or (C)", None), ("easi",
            "<answer>d)</answer>", "D"), ("easi", "", None),
        ("can_infer", "B", "B"), ("can_infer", "it is the dog", "B"), ("can_infer", "cat and dog", None),
        ("can_infer", "Cannot determine the answer", "Z"),
    ],
)  # fmt: skip
def test_readers(reader, response, letter):
    assert READERS[reader](response, "ABCD", FOUR) == letter


@pytest.mark.parametrize("reader", sorted(READERS))
@pytest.mark.parametrize("response", ["", " ", "\n", "\x00", "(" * 3000, "A" * 3000, "<answer>" * 300])
def test_readers_survive_garbage(reader, response):
    assert READERS[reader](response, "ABCD", FOUR) in ("A", "B", "C", "D", None)


@pytest.mark.parametrize(
    ("response", "gold", "score"),
    [
        ("7", "7", 1), ("The answer is 7.0", "7", 1), ("so x = 1,000", "1000", 1), ("It is seven", "7", 0),
        ("", "7", 0), ("the cat", "cat", 1),
        ("8", "['7', '8']", 1), ("9", "['7', '8']", 0),
    ],
)  # fmt: skip
def test_mmmu_open_questions(response, gold, score):
    record = {"question_type": "open", "answer": gold, "options": "[]"}
    assert score_item("mmmu", record, response) == score
    assert score_item("mmmu", record, response, "lmms_eval") == 0  # the fault of that snapshot
    assert golds("['a', 'b']") == ["a", "b"] and golds("[broken") == ["[broken"]
    assert open_answers("x is 3") == [3.0]


@pytest.mark.parametrize(
    ("suite", "record", "response", "scores"),
    [
        ("countbench", {"number": 2}, "12", {"official": 0, "lmms_eval": 0, "vlmevalkit": 1, "vlrl": 0}),
        ("countbench", {"number": 2}, "Two", {"official": 0, "lmms_eval": 1, "vlmevalkit": 0}),
        ("countbench", {"number": 2}, "1 2 3 4 5",
            {"official": 0, "lmms_eval": 0, "vlmevalkit": 1, "vlrl": 0}),
        ("chartqa", {"answer": "100"}, "105", {"official": 1}), ("chartqa", {"answer": "100"}, "106",
            {"official": 0}),
        ("chartqa", {"answer": "Yes"}, "yes", {"official": 1}), ("chartqa", {"answer": "0.05"}, "5%",
            {"official": 1}),
        ("chartqa", {"answer": "0"}, "0.0", {"official": 0}),
        ("docvqa", {"answers": ["R. Smith"]}, "r. smith", {"official": 1}), ("docvqa", {"answers": ["abcd"]},
            "xyzw", {"official": 0}),
        ("docvqa", {"answers": ["abcd", "abce"]}, "abcf", {"official": 0.75}),
        ("ocrbench", {"answer": ["CENTRE"], "dataset": "IIIT5K"}, "it says centre.", {"official": 1}),
        ("ocrbench", {"answer": ["x + 1"], "dataset": "HME100k"}, "X+1", {"official": 0}),
        ("ocrbench", {"answer": ["Ａ１"], "dataset": "x"}, "A1", {"official": 0, "lmms_eval": 1}),
        ("hallusion_bench", {"gt_answer": "1"}, "Yes, it is.", {"official": 1, "vlrl": 1}),
        ("hallusion_bench", {"gt_answer": "0"}, "yes or no", {"official": 0, "vlrl": 0}),
        ("gsm8k", {"answer": "x\n#### 29"}, "#### 29.", {"official": 1, "flexible": 1}),
        ("gsm8k", {"answer": "x\n#### 29"}, "That is 29 dollars", {"official": 0, "flexible": 1, "vlrl": 1}),
        ("gsm8k", {"answer": "x\n#### 29"}, "29.00", {"official": 0, "flexible": 0, "vlrl": 1}),
        ("math500", {"answer": "\\frac{1}{2}"}, "\\boxed{0.5}", {"official": 1, "hendrycks": 1, "vlrl": 1}),
        ("math500", {"answer": "\\frac{1}{2}"}, "\\boxed{2/4}", {"official": 1, "hendrycks": 0}),
        ("aime24", {"answer": "042"}, "so $\\boxed{42}$", {"official": 1, "lm_eval": 0, "vlrl": 1}),
        ("aime24", {"answer": "042"}, "\\boxed{4} then \\boxed{42}", {"official": 1}), ("aime24",
            {"answer": "042"}, "42", {"official": 0}),
        ("olympiad_bench", {"final_answer": ["0.5"]}, "\\boxed{50}", {"official": 1, "vlrl": 0}),
        ("olympiad_bench", {"final_answer": ["2,-2"]}, "\\boxed{\\pm 2}", {"official": 1}),
        ("olympiad_bench", {"final_answer": ["2,-2"]}, "\\boxed{2}", {"official": 0}),
        ("minerva", {"answer": "2.0"}, "Final Answer: The final answer is $2$. I hope it is correct.",
            {"official": 1}),
        ("minerva", {"answer": "2.0"}, "it is 2", {"official": 0}),
    ],
)  # fmt: skip
def test_short_answers(suite, record, response, scores):
    assert {profile: score_item(suite, record, response, profile) for profile in scores} == scores


def test_vqa():
    assert (
        vqa_normal("The two RED dogs, isnt it?") == "2 red dogs isn't it"
        and vqa_normal("1,000") == "1000"
        and vqa_normal("couldnt've") == "couldn't've"
    )
    assert vqa_accuracy("yes", ["yes"] * 10) == 1 and vqa_accuracy("no", ["yes"] * 10) == 0
    assert vqa_accuracy("no", ["yes"] * 9 + ["no"]) == pytest.approx(0.3) and vqa_accuracy(
        "no", ["yes"] * 8 + ["no"] * 2
    ) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("\\dfrac12", "\\frac{1}{2}"),
        ("1/2", "\\frac{1}{2}"),
        ("x=5", "5"),
        ("5\\%", "5"),
        (".5", "\\frac{1}{2}"),
        ("\\sqrt3", "\\sqrt{3}"),
        ("90^\\circ", "90"),
    ],
)
def test_hendrycks_strings(a, b):
    assert maths.hendrycks(a) == maths.hendrycks(b)


def test_boxes_are_balanced():
    assert (
        maths.boxes("\\boxed{\\frac{1}{2}} and \\boxed{3") == ["\\frac{1}{2}"]
        and maths.last_box("none") is None
    )
    assert maths.between_dollars("a $1$ b $\\boxed{2}$") == "2" and maths.between_dollars("5") == "5"


def scored(*scores):
    return [Verdict(float(score), score >= 0.5, extracted="x") for score in scores]


def test_we_math_by_hand():
    def problem(name, *scores):
        keys = [f"{len(scores) - 1}steps_{i + 1}" for i in range(len(scores) - 1)] + [
            f"{len(scores) - 1}steps_multi"
        ]
        return [{"ID": name, "key": key} for key in keys], list(scores)

    parts = [
        problem("cm", 1, 1, 1),
        problem("ig", 1, 1, 0),
        problem("ik", 0, 1, 0),
        problem("rm", 0, 1, 1),
        problem("rote", 0, 0, 1),
    ]
    records, scores = [record for p in parts for record in p[0]], [s for p in parts for s in p[1]]
    strict, loose = WeMath()(records, scored(*scores)), WeMath(strict=False)(records, scored(*scores))
    assert [strict[k] for k in ("CM", "IG", "IK", "RM")] == [0.2, 0.2, 0.2, 0.4] and strict[
        "overall"
    ] == pytest.approx(1 - 0.1 - 0.4 - 0.2)
    assert loose["RM"] == 0.2 and loose["overall"] == pytest.approx(1 - 0.1 - 0.2 - 0.2)


def test_whole_groups():
    records = [{"s": "a", "f": "1", "q": "0"}, {"s": "a", "f": "1", "q": "1"}, {"s": "a", "f": "2", "q": "0"}]
    figures = WholeGroups(groups=("fAcc=s+f", "qAcc=s+q"), headline="fAcc")(records, scored(1, 0, 1))
    assert (figures["fAcc"], figures["qAcc"], figures["overall"]) == (0.5, 0.5, 0.5)


def test_cv_bench_formula():
    records = (
        [{"type": "2D", "source": "ADE20K"}] * 3
        + [{"type": "2D", "source": "COCO"}]
        + [{"type": "3D", "source": "Omni3D"}] * 2
    )
    figures = load_suite("cv_bench").profile("official").aggregate(records, scored(1, 1, 0, 1, 0, 1))
    assert figures["overall"] == pytest.approx(0.5 * ((2 / 3 + 1) / 2 + 0.5))
    assert load_suite("cv_bench").profile("lmms_eval").aggregate(records, scored(1, 1, 0, 1, 0, 1))[
        "overall"
    ] == pytest.approx(4 / 6)


def test_other_aggregates():
    assert NestedMean(levels=("t",))([{"t": "a"}, {"t": "a"}, {}], scored(1, 0, 1))[
        "overall"
    ] == pytest.approx(0.75)
    gain = KnowledgeGain()([{"track": "Adaptation", "before": 0.2}, {"track": "Perception"}], scored(1, 0))
    assert gain["knowledge_gain"] == pytest.approx(1.0) and gain["overall"] == 0.5
    records = [{"instruction_id_list": ["a", "b"]}, {"instruction_id_list": ["c"]}]
    assert InstructionFigures()(records, scored(0.5, 1)) == {
        "overall": 0.5,
        "instruction": pytest.approx(2 / 3),
    }


def test_hidden_tests_are_read_without_unpickling():
    import base64
    import json
    import pickle
    import zlib

    tests = [{"input": "1\n", "output": "2\n", "testtype": "stdin"}]
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()
    assert hidden_tests(packed) == tests == hidden_tests(json.dumps(tests))

    class Bomb:
        def __reduce__(self):
            return (exec, ("raise SystemExit('unpickled')",))

    bomb = base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode()
    with pytest.raises(ValueError, match="Expecting value|holds no text"):
        hidden_tests(bomb)

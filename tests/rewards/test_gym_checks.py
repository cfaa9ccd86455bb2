"""The checks of reasoning_gym's answers, by hand: right answers in their forms, wrong ones, ones that the
package's scorers pay, hostile ones."""

import json
import logging
import time

import pytest
from vlrl_rewards.gym import rules
from vlrl_rewards.gym.rules import EQUAL, REFUSED, RULES, Rule
from vlrl_rewards.verification import verify

from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward

LOCK = {
    "initial_value": 0,
    "initial_state": "red",
    "target_value": 5,
    "buttons": [
        {"name": "A", "type": "add", "value": 3, "active_state": "green"},
        {"name": "B", "type": "add", "value": 2, "active_state": "any"},
    ],
}
PATH = {"matrix": [["*", "O", "X"], ["X", "O", "#"]]}
SOKOBAN = {"gamestr": "+ + + + +\n+ * @ X +\n+ - - - +\n+ + + + +\n"}
KNIGHTS = {
    "board": {"A1": ["B3"], "B3": ["A1", "C1"], "C1": ["B3"]},
    "pieces": {"A1": "w", "B3": None, "C1": None},
    "start_turn": "w",
    "is_possible": False,
}
SWAP = {
    "board": {"A1": ["B3"], "B3": ["A1"]},
    "pieces": {"A1": "w", "B3": None},
    "start_turn": "w",
    "is_possible": True,
}
CARS = {"board_config": "oooooo" + "ooooBo" + "AAooBo" + "oooooo" * 3}  # B stands in the way of A
BOXES = {"initial_state": {"0.5_0.5": ["box_red"], "0.5_1.5": ["target_red"]}}
HANOI = {"num_disks": 2, "num_pegs": 3, "start_peg": 1, "target_peg": 3, "solution_length": 3}
TOWER = "Move disk 1 from Peg 1 to Peg 2\nMove disk 2 from Peg 1 to Peg 3\nMove disk 1 from Peg 2 to Peg 3"
BOARD = [["Q", "_", "_", "_"]] + [["_"] * 4] * 3
FOUR = [["_"] * 4] * 4
COLOURS = {"puzzle": {"vertices": [0, 1, 2], "edges": [[0, 1], [1, 2]], "color_options": [1, 2]}}
CRYPT = {"words_letters": ["AB", "C"], "result_letters": "DE", "allow_leading_zero": False}  # AB + C = DE
JUGS = {"puzzle": {"jug_capacities": [5, 3], "target": 2}}
LOGIC = {"premises": ["(P → Q)", "P", "(R ∨ S)"], "variables": ["P", "Q", "R", "S"]}

# generator: (gold, kept, right answers, wrong answers)
CASES = {
    "chain_sum": (
        "1000",
        {},
        ["1000", "+1,000.00", " 01000 ", "1000."],
        ["", "1001", "1000..", "1000 1001", "= 1000", "1e3", "NaN", "10,00", "1000 or 999", "1_000"],
    ),
    "needle_haystack": (
        "Craig-James",
        {},
        ["craig-james"],
        ["Craig", "Craig-James or Bob", "The answer is not here: Craig-James"],
    ),
    "game_of_life_halting": ("False", {}, ["False", "false"], ["True", "x", "False True", "0"]),
    "gsm_symbolic": ("-5", {}, ["-5", "-5.0"], ["5", "-5 6", "the sum is -5 of them"]),
    "letter_jumble": ("You can", {}, ["you  can"], ["You can do it", "can You"]),
    "figlet_font": ("ABCDEFGHIJ", {}, ["abcdefghij"], ["abcdefghijxx", "abcdefghi"]),
    "spell_backward": ("tuobnrut", {}, ["tuobnrut"], ["tuobnrutx", "tuobnru"]),
    "list_functions": ("[]", {}, ["[]", "[ ]"], ["", ",", "[[]]", "0"]),
    "number_filtering": (
        "['1.5', '-2']",
        {},
        ["['1.5', '-2']", "1.5, -2", '["1.50", "-2"]'],
        ["['-2', '1.5']", "1.5", "1.5 -2 3"],
    ),
    "number_sorting": (
        "['-1.0', '2.5']",
        {},
        ["['-1.0', '2.5']", "[-1, 2.5]"],
        ["['-1.5', '2.5']", "['-1.0', '3.0']", "2.5, -1"],
    ),
    "game_of_life": (
        "[[0,1],[1,0]]",
        {},
        ["[[0,1],[1,0]]", "0 1\n1 0"],
        ["[[0,1,0],[1,0,0]]", "[[0,1],[1,0],[0,0]]", "[[0,1],[1,1]]"],
    ),
    "sudoku": ("1 2\n2 1", {}, ["1 2\n2 1"], ["1 2\n2 2", "1 2 2", "1 2\n2 1\n1 2\n2 1"]),
    "futoshiki": (
        "1 < 2\n     \n2   1",
        {},
        ["1 < 2\n2   1", "1 2\n2 1"],
        ["2 1\n1 2", "the board is 1 2 2 1"],
    ),
    "bitwise_arithmetic": (
        "-0x1f",
        {},
        ["-0x1f", "-0x1F", "-0x01f"],
        ["0x1f", "-31", "-0x1f -0x1e", "-0x1f0"],
    ),
    "coin_flip": (
        "0.3125",
        {},
        ["0.3125", "5/16", "10/32"],
        ["0", "0.31", "0.3", "1", "5/16 or 1/2", "1e999999999", "1/0"],
    ),
    "complex_arithmetic": (
        "4.0 - 7.0i",
        {},
        ["4.0 - 7.0i", "4-7i", "(4 - 7j)"],
        ["nan", "4", "-7i", "4 + 7i", "4 - 7i or 0", "4i - 7", "inf"],
    ),
    "polynomial_equations": (
        "-2.5, 1.2727",
        {},
        ["1.2727, -2.5"],
        ["1.2727", "-2.5, 1.2727, 3", "x", "", "-2.5, 1.27", "-2.5, nan"],
    ),
    "power_function": (
        "8.0554e-06",
        {},
        ["8.06e-06", "8.0554e-6", "0.00000806"],
        ["8.05e-06", "8.06e-05", "8", "1e-99999999"],
    ),
    "decimal_arithmetic": ("25.413", {}, ["25.413", "25.4130"], ["25.412", "25.41", "26", "25.413 25.414"]),
    "number_format": (
        "947865419.1689999",
        {},
        ["947,865,419.169000", "9.47865419169e+08"],
        ["947865412.744", "nan", "947865419"],
    ),
    "pool_matrix": (
        "5.75 6.25\n7.0 5.25",
        {},
        ["5.75 6.25\n7.00 5.25"],
        ["5.8 6.25\n7.0 5.25", "5.75 6.25 7.0", "5.75 6.25\n7.0 5.25 # 5"],
    ),
    "advanced_geometry": (
        "(-51.000, 41.000)",
        {},
        ["(-51, 41)", "-51.000, 41.0005"],
        ["(41, -51)", "(-51, 41), (0, 0)", "-51", "(-51.01, 41)"],
    ),
    "dice": ("781/960", {}, ["781/960", "781 / 960"], ["1562/1920", "0.8135", "781/960 or 1/2"]),
    "fraction_simplification": (
        "$\\dfrac{3}{4}$",
        {},
        ["3/4", "$\\frac{3}{4}$", "\\dfrac{3}{4}"],
        ["6/8", "3/4/5", "3", "$\\frac{3}{4}$ or 1/2"],
    ),
    "time_intervals": (
        "1 day, 02:03:04",
        {},
        ["1 day, 02:03:04", "1 days, 2:03:04"],
        ["02:03:04", "1 day, 02:03:05", "1 day, 02:03:04 or so", "1 day"],
    ),
    "prime_factorization": (
        "3 × 3 × 37",
        {},
        ["37 × 3 × 3", "3 x 3 x 37", "3*3*37"],
        ["9 × 37", "333", "3 × 37", "3 × 3 × 37 = 333", ""],
    ),
    "knights_knaves": (
        *(
            "Zoey is a knight, and Riley is a knave.",
            {},
            ["Riley is a knave, and Zoey is a knight", "zoey is a knight and riley is a knave."],
        ),
        [
            "Zoey is a knight",
            "Zoey is a knave, and Riley is a knave.",
            "Zoey is a knight, Riley is a knave, and Zoey is a knave",
            "knight, knave",
        ],
    ),
    "group_anagrams": (
        '[["ab", "ba"], ["c"]]',
        {},
        ['[["c"], ["ba", "ab"]]'],
        ['[["ab"], ["ba"], ["c"]]', "[]", '[["ab", "ba", "c"]]', "ab ba c", "[1]"],
    ),
    "palindrome_partitioning": (
        '[["a", "a"], ["aa"]]',
        {},
        ['[["aa"], ["a", "a"]]'],
        ['[["a", "a"]]', '[["a", "a"], ["aa"], ["aa"]]', "[[[]]]"],
    ),
    "palindrome_generation": (
        "abba",
        {"letters": list("abab")},
        ["abba", "BAAB"],
        ["aabb", "aa", "abba abba", "abbba"],
    ),
    "countdown": (
        *("2*(3 + 4)", {"numbers": [2, 3, 4], "target": 14}, ["2*(3+4)", "(4 + 3) * 2"]),
        [
            "14",
            "2*3+4",
            "2*7",
            "2*(3+4)*1",
            "2*(3 + 4) = 14",
            "2(3+4)",
            "2**3+4+2",
            "__import__('os')",
            "2*(3+4",
            "3 4 2",
        ],
    ),
    "puzzle24": (
        "1*(7*4 - 4)",
        {"numbers": [7, 4, 4, 1]},
        ["(7*4-4)/1"],
        ["6*4*1*1", "4*6", "24", "7*4-4", "8*3*1*1"],
    ),
    "polynomial_multiplication": (
        *("x**2 - 1", {}, ["x**2 - 1", "(x-1)*(x+1)", "x^2-1"]),
        ["x**2 + 1", "x**2", "y**2 - 1", "x**2 - 1 or 0", "9**9**9**9", "exec('1')", ""],
    ),
    "simple_integration": (
        *(
            "-X**9/4 - 2*X**8 + C",
            {"variable": "X"},
            ["-X**9/4 - 2*X**8", "-(X**8)*(X/4 + 2) + C", "-x**9/4 - 2*x**8 + 7"],
        ),
        [
            "-X**9/4 - 2*X**8 + X",
            "-X**9/4",
            "C",
            "-9*X**8/4 - 16*X**7",
            "nan",
            "-X**9/4 - 2*X**8 + Y",
            "(lambda: 0)()",
            "zoo",
        ],
    ),
    "intermediate_integration": (
        "x*log(x) - x + C",
        {"variable": "x"},
        ["x*(log(x) - 1)", "x*ln(x) - x + 3"],
        ["log(x)", "x*log(x)", "x*log(x) - 2*x"],
    ),
    "quantum_lock": (
        "B → A",
        LOCK,
        ["B → A", "b -> a", "B, A"],
        ["A → B", "B", "B → A → B", "The buttons B and A", "BA"],
    ),
    "shortest_path": (
        "right down right",
        PATH,
        ["right down right", "right, down, right"],
        ["right right down", "right", "infeasible", "go right down right"],
    ),
    "sokoban": ("R", SOKOBAN, ["R", "DUR", "D U R"], ["L", "", "The moves are R", "r", "RX"]),
    "knight_swap": ("No", KNIGHTS, ["No", "no"], ["Yes", "No or Yes", "[]", '["w,A1,B3"]']),
    "rush_hour": (
        "",
        CARS,
        ["B-1 A+4", "B+3, A+4"],
        ["A+4", "B-2 A+4", "B-1 A+5", "move B-1 A+4", "B-1", "C+1 B-1 A+4", "A+999999999"],
    ),
    "boxnet": (
        *(
            "",
            BOXES,
            [
                (
                    '[{"Agent[0.5, 0.5]": "move(box_red, square[0.5, 1.5])"}, {"Agent[0.5, 1.5]": '
                    '"move(box_red, target_red)"}]'
                )
            ],
        ),
        [
            "[]",
            '[{"Agent[0.5, 0.5]": "move(box_red, target_red)"}]',
            # a target is no box
            (
                '[{"Agent[0.5, 1.5]": "move(target_red, square[0.5, 0.5])"}, {"Agent[0.5, 0.5]": '
                '"move(box_red, target_red)"}]'
            ),
            '[{"Agent[0.5, 0.5]": "move(box_red, square[9.5, 9.5])"}]',
            "{}",
            "[1]",
        ],
    ),
    "tower_of_hanoi": (
        *(TOWER, HANOI, [TOWER, TOWER.lower()]),
        [
            TOWER.splitlines()[0],
            TOWER + "\nMove disk 1 from Peg 3 to Peg 3",
            "Solution:\n" + TOWER,
            TOWER.replace("Peg 2", "Peg 3"),
            "",
        ],
    ),
    "n_queens": (
        *(
            "_ Q _ _\n_ _ _ Q\nQ _ _ _\n_ _ Q _",
            {"puzzle": FOUR},
            ["_ Q _ _\n_ _ _ Q\nQ _ _ _\n_ _ Q _", "_ _ Q _\nQ _ _ _\n_ _ _ Q\n_ Q _ _"],
        ),
        ["Q _ _ _\n_ Q _ _\n_ _ Q _\n_ _ _ Q", "_ Q _ _", "Q " * 16, "[[0, 1, 0, 0]]"],
    ),
    "kakurasu": (
        "1 0\n0 1",
        {"n_rows": 2, "n_cols": 2, "row_sums": [1, 2], "col_sums": [1, 2]},
        ["1 0\n0 1"],
        ["0 1\n1 0", "1 0 0 1 1", "10\n01x", "1 1\n1 1"],
    ),
    "graph_color": (
        '{"0": 1}',
        COLOURS,
        ['{"0": 1, "1": 2, "2": 1}'],
        [
            '{"0": 1, "1": 1, "2": 2}',
            "{}",
            '{"0": 1, "1": 3, "2": 1}',
            "[1, 2, 1]",
            '{"0": true, "1": 2, "2": 1}',
        ],
    ),
    "cryptarithm": (
        "A=2,B=5,C=6,D=3,E=1",
        CRYPT,
        ["A=2,B=5,C=6,D=3,E=1", "E=1, D=3, C=6, B=5, A=2"],
        ["A=2,B=5,C=6,D=3", "A=2,B=5,C=5,D=3,E=0", "A=0,B=5,C=6,D=1,E=1", "A=25"],
    ),
    "jugs": (
        '["fill A", "pour A->B"]',
        JUGS,
        ['["fill A", "pour A->B"]'],
        ['["fill A"]', '["fill C"]', "[]", '["pour A->A"]', '[["fill A"]]', "fill A, pour A->B"],
    ),
    "propositional_logic": (
        *("(Q ∧ (R ∨ S))", LOGIC, ["Q", "Q ∧ (R ∨ S)", "(P ∧ Q)", "Q & P", "¬P ↔ ¬Q"]),
        [
            "P",
            "P → Q",
            "R ∨ S",
            "P ∨ R",
            "P ∨ ¬P",
            "¬Q",
            "R",
            "(",
            "PQ",
            "P ∧ T",
            "P" * 500,
            "¬" * 5000 + "P",
            "lower ∧ P",
        ],
    ),
}


def reward():
    return build(Reward, "reasoning_gym")


def score(generator, said, gold, kept):
    return reward().score(f"<answer>{said}</answer>", gold or kept, generator=generator, puzzle=kept)


@pytest.mark.parametrize("generator", sorted(CASES))
def test_answers(generator):
    gold, kept, right, wrong = CASES[generator]
    assert [said for said in right if score(generator, said, gold, kept) != 1.0] == []
    assert [said for said in wrong if score(generator, said, gold, kept) != 0.0] == []


def test_each_form_of_check_has_cases():
    checked = {RULES[name].check for name in CASES if name in RULES}
    left = {rule.check.__name__ for name, rule in RULES.items() if rule.check not in checked}
    assert left <= {"word_ladder", "rubiks_cube"}, (
        "checks that need the package are tried in tests/data/test_reasoning_gym.py"
    )
    assert not set(RULES) & EQUAL and not set(REFUSED) & (set(RULES) | EQUAL)


def test_a_premise_that_contradicts_another_is_the_rows_fault():
    with pytest.raises(ValueError, match="contradict"):
        score("propositional_logic", "Q", "Q", {"premises": ["P", "¬P"], "variables": ["P", "Q"]})


HOSTILE = (
    "",
    " ",
    "\x00",
    "nan",
    "inf",
    "-inf",
    "9" * 19_000,
    "1e999999999",
    "9**9**9**9",
    "(" * 5000,
    "[" * 5000,
    "{" * 3000,
    '{"a": ' * 500,
    "¬" * 9000,
    "-" * 5000 + "1",
    "__import__('pathlib').Path('pwned').touch()",
    "open('pwned', 'w')",
    "lambda: 0",
    "{}",
    "[]",
    "[[]]",
    "[null]",
    "[{}]",
    "null",
    "true",
    "0x" + "f" * 9000,
    "1/0",
    "\ud800",
    "A+9 " * 4000,
    "U " * 9000,
    "R999999999",
    "١٢٣",
    "½",
    "A" * 19_000,
    "a,b," * 4000,
    "Move disk 1 from Peg 9 to Peg 9",
    '["fill Z"]',
    '["w,A1,Z9"]',
    '[{"Agent[1]": 3}]',
    '[{"x": "move(box_red, square[1])"}]',
    "x" * 30_000,
    "x**999999999",
    "exp(exp(exp(exp(9))))",
)


@pytest.mark.sweep
@pytest.mark.parametrize("generator", sorted({*CASES, "not yet known"}))
def test_hostile_answers_score_zero_without_evaluation(generator, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gold, kept, _, _ = CASES.get(generator, ("gold", {}, (), ()))
    for text in HOSTILE:
        if generator == "list_functions" and text == "[]":
            continue  # its gold answer
        started = time.thread_time()
        assert score(generator, text, gold, kept) == 0.0, (generator, text[:40])
        assert reward().score(text, gold or kept, generator=generator, puzzle=kept) == 0.0, (
            generator,
            text[:40],
        )
        assert time.thread_time() - started < 2.0, (generator, text[:40])
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_fails_on_an_answer_counts_it_as_wrong(monkeypatch, caplog):
    def brittle(gold, said, kept):
        return 1 / len(said.replace("boom", "")) > 0 and said == gold

    monkeypatch.setattr(rules, "RULES", {**RULES, "brittle": Rule(brittle)})
    with caplog.at_level(logging.WARNING, "vlrl"):
        assert score("brittle", "boom", "6", {}) == 0.0
    assert "brittle" in caplog.text and "ZeroDivisionError" in caplog.text
    assert score("brittle", "6", "6", {}) == 1.0
    with pytest.raises(ValueError, match="cannot read the row"):
        score("brittle", "boom", "boom", {})


@pytest.mark.parametrize(
    ("gold", "columns", "what"),
    [
        ("6", {}, "meta.generator"),
        ("6", {"generator": "codeio"}, "meta.generator"),
        ("6", {"generator": "countdown", "puzzle": {"numbers": [1]}}, "'target' is missing"),
        ("", {"generator": "chain_sum"}, "empty"),
        (None, {"generator": "chain_sum"}, "empty"),
        ("many", {"generator": "coin_flip"}, "not a number"),
    ],
)
def test_broken_rows_raise(gold, columns, what):
    with pytest.raises(ValueError, match=what):
        reward().score("<answer>1</answer>", gold, **columns)


def test_it_is_a_kind_of_verify():
    meta = {"generator": "countdown", "puzzle": {"numbers": [3, 5], "target": 8}}
    assert verify("3 + 5", "<think>hm</think><answer>5+3</answer>", "reasoning_gym", meta=meta).correct
    verdict = verify("3 + 5", "3 + 5 = 8", "reasoning_gym", meta=json.loads(json.dumps(meta)))
    assert not verdict.correct and verdict.score == 0.0

"""The small logic's proof checker: proofs that hold, proofs that do not, and what must not crash it.

Soundness is tested against truth tables and against arithmetic over a range: no random script proves what is
false.
"""

import itertools
import random
import time

import pytest
from vlrl_rewards.math.small_logic import LogicError, parse_formula, parse_theorem, tokens
from vlrl_rewards.math.small_proofs import ProofGoal, check, step

PQ = "(P Q R : Prop)"


def proof(statement, *steps):
    return f"theorem t {statement} := by\n" + "\n".join(f"  {step}" for step in steps)


PROVED = [
    (f"{PQ} (h : P ∧ Q) : Q ∧ P", "constructor", "exact h.2", "exact h.1"),
    (f"{PQ} (h : P ∧ Q) : Q ∧ P", "exact ⟨h.right, h.left⟩"),
    (f"{PQ} (h : P ∧ Q ∧ R) : R", "obtain ⟨a, b, c⟩ := h", "exact c"),
    (f"{PQ} (h : P ∨ Q) : Q ∨ P", "rcases h with a | b", "right", "exact a", "left", "exact b"),
    (f"{PQ} (h : P ∨ Q ∨ R) (f : P → R) (g : Q → R) : R",
     "obtain a | b | c := h", "exact f a", "apply g", "exact b", "assumption"),
    (f"{PQ} : P → (P → Q) → Q", "intro a f", "apply f", "exact a"),
    (f"{PQ} : P → (P → Q) → Q", "exact fun a f => f a"),
    (f"{PQ} (f : P → Q → R) (p : P) (q : Q) : R", "apply f", "exact p", "exact q"),
    (f"{PQ} (h : P ↔ Q) (q : Q) : P", "exact h.mpr q"),
    (f"{PQ} : P ∧ Q ↔ Q ∧ P", "constructor", "intro h", "exact ⟨h.2, h.1⟩", "intro h", "exact ⟨h.2, h.1⟩"),
    (f"{PQ} (h : ¬P) (p : P) : Q", "exfalso", "exact h p"),
    (f"{PQ} (h : ¬P) (p : P) : Q", "contradiction"),
    (f"{PQ} (h : ¬P) : P → Q", "intro p", "exact False.elim (h p)"),
    (f"{PQ} (h : ¬¬P) : P", "by_contra n", "exact h n"),
    (f"{PQ} (p : P) : Q ∨ P ∨ R", "exact Or.inr (Or.inl p)"),
    (": ∃ x : ℤ, 3 * x + 4 = 19", "use 5", "norm_num"),
    (": ∃ x : ℤ, 3 * x + 4 = 19", "have h : 3 * 5 + 4 = 19 := by norm_num", "exact ⟨5, h⟩"),
    (": ∃ x y : ℤ, x + y = 10 ∧ x - y = 4", "use 7, 3", "constructor", "norm_num", "norm_num"),
    (": ∃ x : ℤ, x ^ 2 = 49 ∧ x < 0", "use -7", "norm_num"),
    (": ∃ x : ℤ, 7 ∣ x ∧ x > 20", "use 21", "norm_num"),
    (": ∀ x y : ℤ, (x + y) ^ 2 = x ^ 2 + 2 * x * y + y ^ 2", "intro x y", "ring"),
    ("(a b : ℤ) (h : a = b + 1) : a * 2 = 2 * b + 2", "rw [h]", "ring"),
    ("(a b : ℤ) (h : a = b) : b = a", "rw [← h]"),
    ("(h : ∃ x : ℤ, x * x = 4) : ∃ y : ℤ, y * y = 4", "obtain ⟨x, hx⟩ := h", "use x", "exact hx"),
    ("(h : ∀ x : ℤ, x = x + 0) : 3 = 3 + 0", "exact h 3"),
    (": ∃ x : ℤ, ∀ y : ℤ, x * y = 0", "use 0", "intro y", "ring"),
    (": True ∧ 2 ≠ 3", "norm_num"),
    ("(P : Prop) (h : P) : P -- a comment", "· exact h -- and another"),
]  # fmt: skip
REFUSED = [
    ((f"{PQ} (h : P ∧ Q) : Q ∧ P", "constructor", "exact h.1", "exact h.2"), "h.1 proves something else"),
    ((f"{PQ} (h : P ∨ Q) : P", "exact h"), "proves something else"),
    ((f"{PQ} (h : P ∨ Q) : P", "rcases h with a | b", "exact a"), "1 goal left"),
    ((f"{PQ} : P",), "1 goal left"),
    ((f"{PQ} : P", "sorry"), "uses 'sorry'"),
    ((f"{PQ} : P", "exact t"), "no hypothesis 't'"),
    ((f"{PQ} (h : P) : Q", "norm_num"), "variables"),
    ((f"{PQ} (h : P → Q) : Q → P", "intro q", "apply h"), "not the goal"),
    ((": ∃ x : ℤ, 3 * x + 4 = 19", "use 6", "norm_num"), "it is false"),
    ((": ∃ x : ℤ, 3 * x + 4 = 19", "norm_num"), "variables"),
    ((": ∃ x : ℤ, x = x", "use y", "ring"), "'y' is no integer in scope"),
    ((": ∀ x : ℤ, x * x = x", "intro x", "ring"), "different polynomials"),
    (("(h : ∃ x : ℤ, x = 2) (x : ℤ) : x = 2", "obtain ⟨x, hx⟩ := h", "exact hx"), "the name 'x' is taken"),
    (("(x : ℤ) : ∀ y : ℤ, y = x", "intro x", "rfl"), "the name 'x' is taken"),
    (("(a b c : ℤ) (h : a = b) : a = c", "rw [h]"), "1 goal left"),
    ((": 2 = 3", "have h : 2 = 3 := h", "exact h"), "no hypothesis 'h'"),
    ((": 2 = 3", "have h : 2 = 3 := by norm_num", "exact h"), "it is false"),
    ((": 2 = 2", "norm_num", "norm_num"), "no goals are left"),
    ((": 1 ∣ 0 ∧ 0 ∣ 1", "norm_num"), "it is false"),
]


@pytest.mark.parametrize("steps", PROVED, ids=lambda steps: steps[0])
def test_what_is_proved(steps):
    assert check(proof(*steps)) == ""
    if len(steps) > 2:
        assert check(proof(*steps[:-1])), "a step less leaves a goal"


@pytest.mark.parametrize("steps, why", REFUSED, ids=[f"{s[0]} {' '.join(s[1:])}" for s, _ in REFUSED])
def test_what_is_refused(steps, why):
    assert why in check(proof(*steps))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "theorem",
        ":= by",
        "theorem t : P := by\n exact h",
        "theorem t (P P : Prop) : P := by\n trivial",
        "theorem t : ∃ x : ℕ, x = 2 := by\n use 2\n rfl",
        "theorem t : " + "(" * 5000 + "1 = 1" + ")" * 5000 + " := by\n rfl",
        "theorem t : " + "¬" * 5000 + "1 = 2 := by\n norm_num",
        "theorem t : 1 = 1 := by\n exact " + "(" * 3000,
        "theorem t : 1 = 1 := by\n exact " + "⟨" * 3000 + "⟩" * 3000,
        "theorem t : (9 ^ 64) ^ 64 = 1 := by\n norm_num",
        "theorem t : 9 ^ 9 ^ 9 = 1 := by\n norm_num",
        "theorem t (a b c d e : ℤ) : " + " + ".join(["(a + b + c + d + e) ^ 40"] * 300) + " = 0 := by\n ring",
        "theorem t : 1 = 1 := by\n" + " intro x\n" * 5000,
        "theorem t : 1 = 1 := by\n exact \udcff",
        "x" * 30_000,
    ],
    ids=range(16),
)
def test_garbage_and_bombs_are_refused_within_two_seconds(text):
    begun = time.process_time()
    assert check(text)
    assert time.process_time() - begun < 2.0


def holds(formula, world):
    """The truth of a propositional formula in a world: an evaluator of its own."""
    kind, *parts = formula
    values = [holds(part, world) for part in parts if isinstance(part, tuple)]
    return {
        "atom": lambda: world[parts[0]],
        "true": lambda: True,
        "false": lambda: False,
        "not": lambda: not values[0],
        "and": lambda: all(values),
        "or": lambda: any(values),
        "imp": lambda: not values[0] or values[1],
        "iff": lambda: values[0] == values[1],
    }[kind]()


STEPS = [
    "intro h1", "intro h2", "intro h3", "exact h1", "exact h2", "exact h3", "constructor", "left", "right",
    "exact h1.1", "exact h1.2", "apply h1", "apply h2", "rcases h1 with a | b", "exact a", "exact b",
    "obtain ⟨c, d⟩ := h1", "exact c", "exact d", "exfalso", "by_contra n", "exact n", "contradiction",
    "assumption", "exact h1.mp h2", "exact h1.mpr h2", "exact ⟨h1, h2⟩", "exact Or.inl h1", "trivial",
    "exact fun x => x", "exact fun x y => x", "exact h1 h2", "have z : P := h1 h2", "exact z", "norm_num",
]  # fmt: skip


def random_formula(rng, depth):
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(["P", "Q", "True", "False"])
    if rng.random() < 0.2:
        return f"¬{random_formula(rng, depth - 1)}"
    sign = rng.choice("∧∨→↔")
    return f"({random_formula(rng, depth - 1)} {sign} {random_formula(rng, depth - 1)})"


def random_walk(rng, text):
    """Steps that apply one after the other, chosen at random, until no goal is left or none applies."""
    theorem = parse_theorem(f"theorem t (P Q : Prop) : {text}")
    goals, steps = [ProofGoal(theorem.goal, theorem.variables, {})], []
    while goals and len(steps) < 12:
        for line in rng.sample(STEPS, len(STEPS)):
            try:
                goals = [*step(goals[0], tokens(line)), *goals[1:]]
            except LogicError:
                continue
            steps.append(line)
            break
        else:
            break
    return steps


def test_no_random_script_proves_what_is_no_tautology():
    rng, proved = random.Random(0), {True: 0, False: 0}
    for _ in range(250):
        text = random_formula(rng, 2)
        formula = parse_formula(text, {"P": "Prop", "Q": "Prop"})
        worlds = [dict(zip("PQ", values)) for values in itertools.product((True, False), repeat=2)]
        tautology = all(holds(formula, world) for world in worlds)
        steps = random_walk(rng, text)
        if not check(proof(f"(P Q : Prop) : {text}", *steps)):
            assert tautology, (text, steps)
        proved[tautology] += 1
    assert min(proved.values()) > 40 and proof_count(rng) > 8


def proof_count(rng):
    """Tautologies that random walks prove, of 72."""
    texts = ["P → P", "P ∧ Q → Q", "P → Q → P ∧ Q", "¬P → P → Q", "P → P ∨ Q", "(P ↔ Q) → P → Q"] * 12
    return sum(not check(proof(f"(P Q : Prop) : {text}", *random_walk(rng, text))) for text in texts)


def test_arithmetic_agrees_with_python():
    rng, seen = random.Random(1), {True: 0, False: 0}
    for _ in range(2000):
        parts = [str(rng.randint(-9, 9)) for _ in range(4)]
        left, right = [
            f"({a}) {rng.choice('+-*')} ({b}) ^ {rng.randint(0, 3)}" for a, b in (parts[:2], parts[2:])
        ]
        sign = rng.choice(["=", "<", "≤", ">", "≥", "≠"])
        spelt = {"=": "==", "≤": "<=", "≥": ">=", "≠": "!="}.get(sign, sign)
        right_answer = eval(f"{left} {spelt} {right}".replace("^", "**"))  # noqa: S307 - numbers made above
        assert (check(proof(f": {left} {sign} {right}", "norm_num")) == "") is right_answer, (
            left,
            sign,
            right,
        )
        seen[right_answer] += 1
    assert min(seen.values()) > 300


def test_statements_are_read_as_lean_reads_them():
    variables = {"P": "Prop", "Q": "Prop", "R": "Prop"}
    same = [
        ("P → Q → R", "P → (Q → R)"), ("P ∧ Q ∨ R", "(P ∧ Q) ∨ R"), ("¬P ∧ Q", "(¬P) ∧ Q"),
        ("P ∧ Q → R", "(P ∧ Q) → R"), ("P ↔ Q → R", "P ↔ (Q → R)"), ("P /\\ Q \\/ R -> P", "P ∧ Q ∨ R → P"),
        ("∃ x : ℤ, x = 1 ∧ P", "∃ y : Int, (y = 1 ∧ P)"),
        ("∀ x y, x + y = y + x", "∀ a b : ℤ, a + b = b + a"),
        ("1 - 2 - 3 = 4", "(1 - 2) - 3 = 4"), ("-2 ^ 2 = 4", "-(2 ^ 2) = 4"), ("1 ≠ 2", "¬(1 = 2)"),
        ("2 > 1", "1 < 2"), ("2 * 3 + 1 = 7", "(2 * 3) + 1 = 7"),
    ]  # fmt: skip
    for first, second in same:
        assert parse_formula(first, variables) == parse_formula(second, variables), (first, second)
    assert parse_formula("∃ x, ∃ x, x = 1", {}) != parse_formula("∃ x, ∃ y, x = 1", {})
    theorem = parse_theorem("theorem name (n : ℤ) (P : Prop) (h : n = 2 ∧ P) : P")
    assert theorem.variables == {"n": "ℤ", "P": "Prop"} and set(theorem.hypotheses) == {"h"}
    with pytest.raises(LogicError, match="exponent"):
        parse_formula("2 ^ 999 = 1", {})

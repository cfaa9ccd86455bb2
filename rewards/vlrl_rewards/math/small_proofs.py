"""The proof checker of the small logic: tactics that turn goals into simpler ones until none is left.

    check(text)   `theorem ... : ... := by` with a tactic per line; "" if it is proved, else what is wrong

Tactics, as in Lean 4 with Mathlib: intro, exact, apply, constructor, left, right, use, obtain, rcases, have,
exfalso, by_contra, assumption, trivial, contradiction, rfl, norm_num, decide (closed arithmetic), ring
(equal polynomials), rw. Nothing is searched for: a proof is as long as its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vlrl_rewards.math.small_arithmetic import Heartbeats, polynomial, truth
from vlrl_rewards.math.small_logic import (
    Formula,
    LogicError,
    Theorem,
    opened,
    parse_formula,
    parse_term,
    parse_theorem,
    replaced,
    tokens,
)

MAX_STEPS = 300
MAX_GOALS = 200
SORRY = "declaration uses 'sorry'"
FALSE: Formula = ("false",)


@dataclass(frozen=True)
class ProofGoal:
    """What is to be shown, from what: variables by type, hypotheses by name."""

    target: Formula
    variables: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, Formula] = field(default_factory=dict)
    beats: Heartbeats = field(default_factory=Heartbeats, compare=False)

    def fresh(self, name: str) -> str:
        """A name that nothing has. Raises LogicError."""
        if name in self.variables or name in self.known:
            raise LogicError(f"the name {name!r} is taken")
        return name

    def given(self, name: str, formula: Formula) -> ProofGoal:
        """With one more hypothesis."""
        return replace(self, known={**self.known, self.fresh(name): formula})

    def integer(self, name: str) -> ProofGoal:
        """With one more integer."""
        return replace(self, variables={**self.variables, self.fresh(name): "ℤ"})


Tactic = Callable[[ProofGoal, list[str]], list[ProofGoal]]
_RULES: dict[str, Tactic] = {}


def check(text: str) -> str:
    """What is wrong with a theorem and its proof; "" for nothing.

    >>> check("theorem t : ∃ x : ℤ, 3 * x + 4 = 19 := by\\n  use 5\\n  norm_num")
    ''
    >>> check("theorem t : ∃ x : ℤ, 3 * x + 4 = 19 := by\\n  use 6\\n  norm_num")
    'step 2, norm_num: it is false'
    """
    try:
        statement, sign, script = text.partition(":= by")
        if not sign:
            raise LogicError("no `:= by`")
        skipped = prove(parse_theorem(statement), script)
    except LogicError as error:
        return str(error)
    except RecursionError:
        return "nested too deep"
    return SORRY if skipped else ""


def prove(theorem: Theorem, script: str) -> int:
    """Run a script on a theorem. Returns the goals that `sorry` skipped. Raises LogicError for the first step
    that fails, and for goals that are left."""
    goals = [ProofGoal(theorem.goal, theorem.variables, theorem.hypotheses)]
    lines = [line.split("--")[0].strip().removeprefix("·").strip() for line in script.splitlines()]
    steps = [line for line in lines if line]
    skipped = 0
    if len(steps) > MAX_STEPS:
        raise LogicError(f"more than {MAX_STEPS} steps")
    for number, line in enumerate(steps, 1):
        try:
            if not goals:
                raise LogicError("no goals are left")
            if line == "sorry":
                goals, skipped = goals[1:], skipped + 1
                continue
            goals = [*step(goals[0], tokens(line)), *goals[1:]]
            if len(goals) > MAX_GOALS:
                raise LogicError(f"more than {MAX_GOALS} goals")
        except LogicError as error:
            raise LogicError(f"step {number}, {line.split()[0]}: {error}") from None
    if goals:
        raise LogicError(f"{len(goals)} goal{'s' if len(goals) > 1 else ''} left")
    return skipped


def step(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    """The goals that a tactic leaves of a goal. Raises LogicError where it does not apply."""
    if words[0] not in _RULES:
        raise LogicError("no such tactic")
    return _RULES[words[0]](goal, words[1:])


def tactic(*names: str) -> Callable[[Tactic], Tactic]:
    """Register a tactic."""

    def register(rule: Tactic) -> Tactic:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def bare(words: Sequence[str]) -> None:
    """A tactic without arguments has none."""
    if words:
        raise LogicError(f"unexpected {words[0]!r}")


def as_implication(formula: Formula) -> Formula:
    """¬f as f → False; other formulas as they are."""
    return ("imp", formula[1], FALSE) if formula[0] == "not" else formula


# --- tactics ------------------------------------------------------------------------------------------------


@tactic("intro", "intros")
def _intro(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    for name in words or ["h"]:
        target = as_implication(goal.target)
        if target[0] == "imp":
            goal = replace(goal.given(name, target[1]), target=target[2])
        elif target[0] == "all":
            goal = replace(goal.integer(name), target=opened(target[1], ("var", name)))
        else:
            raise LogicError("the goal is no implication and no ∀")
    return [goal]


@tactic("exact")
def _exact(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    if words[:1] == ["by"]:
        return closed(step(goal, words[1:])) if words[1:] else closed([goal])
    checked(goal, ProofTerm.read(words), goal.target)
    return []


@tactic("apply")
def _apply(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    found, premises = inferred(goal, ProofTerm.read(words)), []
    while found != goal.target:
        found = as_implication(found)
        if found[0] != "imp":
            raise LogicError("its conclusion is not the goal")
        premises.append(found[1])
        found = found[2]
    return [replace(goal, target=premise) for premise in premises]


@tactic("constructor")
def _constructor(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    bare(words)
    return [replace(goal, target=part) for part in halves(goal.target)]


@tactic("left")
def _left(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    return side(goal, words, 1)


@tactic("right")
def _right(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    return side(goal, words, 2)


def side(goal: ProofGoal, words: Sequence[str], place: int) -> list[ProofGoal]:
    """One side of a ∨."""
    bare(words)
    if goal.target[0] != "or":
        raise LogicError("the goal is no ∨")
    return [replace(goal, target=goal.target[place])]


@tactic("use", "exists")
def _use(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    for part in split(words, ","):
        if goal.target[0] != "ex":
            raise LogicError("the goal is no ∃")
        goal = replace(goal, target=opened(goal.target[1], parse_term(part, goal.variables)))
    return [goal]


@tactic("obtain", "rcases")
def _cases(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    for sign in (":=", "with"):
        if sign in words:
            first, second = words[: words.index(sign)], words[words.index(sign) + 1 :]
            pattern, term = (first, second) if sign == ":=" else (second, first)
            known = inferred(goal, ProofTerm.read(term))
            return taken_apart(goal, known, pattern)
    raise LogicError("expected `obtain PATTERN := h` or `rcases h with PATTERN`")


@tactic("have")
def _have(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    if ":" not in words or ":=" not in words:
        raise LogicError("expected `have NAME : FORMULA := PROOF`")
    colon, sign = words.index(":"), words.index(":=")
    if colon != 1 or sign < colon:
        raise LogicError("expected `have NAME : FORMULA := PROOF`")
    formula = parse_formula(words[2:sign], goal.variables)
    _exact(replace(goal, target=formula), words[sign + 1 :])
    return [goal.given(words[0], formula)]


@tactic("exfalso")
def _exfalso(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    bare(words)
    return [replace(goal, target=FALSE)]


@tactic("by_contra")
def _by_contra(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    bare(words[1:])
    return [replace(goal.given(words[0] if words else "h", ("not", goal.target)), target=FALSE)]


@tactic("assumption")
def _assumption(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    bare(words)
    if goal.target not in goal.known.values():
        raise LogicError("no hypothesis is the goal")
    return []


@tactic("trivial")
def _trivial(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    bare(words)
    return [] if goal.target == ("true",) else _assumption(goal, [])


@tactic("contradiction")
def _contradiction(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    bare(words)
    known = list(goal.known.values())
    if FALSE not in known and not any(("not", one) in known for one in known):
        raise LogicError("no hypothesis is False, and none is another's negation")
    return []


@tactic("norm_num", "decide", "rfl")
def _norm_num(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    bare(words)
    if not truth(goal.target, goal.beats):
        raise LogicError("it is false")
    return []


@tactic("ring")
def _ring(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    bare(words)
    if goal.target[0] != "=":
        raise LogicError("the goal is no equation")
    left, right = (polynomial(side, goal.beats) for side in goal.target[1:])
    if left != right:
        raise LogicError("the sides are different polynomials")
    return []


@tactic("rw")
def _rw(goal: ProofGoal, words: list[str]) -> list[ProofGoal]:
    if len(words) < 3 or words[0] != "[" or words[-1] != "]":
        raise LogicError("expected `rw [h]`")
    for part in split(words[1:-1], ","):
        back = part[:1] == ["←"]
        rule = inferred(goal, ProofTerm.read(part[1:] if back else part))
        if rule[0] != "=":
            raise LogicError("it is no equation")
        old, new = (rule[2], rule[1]) if back else (rule[1], rule[2])
        target = replaced(goal.target, old, new)
        if target == goal.target:
            raise LogicError("its left side is not in the goal")
        goal = replace(goal, target=target)
    return [] if goal.target[0] == "=" and goal.target[1] == goal.target[2] else [goal]


def closed(goals: list[ProofGoal]) -> list[ProofGoal]:
    """No goals. Raises LogicError for some."""
    if goals:
        raise LogicError("a goal is left")
    return []


def split(words: Sequence[str], sign: str) -> list[list[str]]:
    """The parts between signs that stand in no bracket."""
    parts: list[list[str]] = [[]]
    depth = 0
    for word in words:
        depth += (word in "(⟨[") - (word in ")⟩]") if len(word) == 1 else 0
        if word == sign and not depth:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def halves(formula: Formula) -> tuple[Formula, Formula]:
    """The two parts of a ∧ or a ↔."""
    if formula[0] == "and":
        return formula[1], formula[2]
    if formula[0] == "iff":
        return ("imp", formula[1], formula[2]), ("imp", formula[2], formula[1])
    raise LogicError("the goal is no ∧ and no ↔")


def taken_apart(goal: ProofGoal, known: Formula, pattern: Sequence[str]) -> list[ProofGoal]:
    """The goals after a case distinction: `a | b` for ∨, ⟨a, b⟩ for ∧, ↔ and ∃, a name for anything."""
    sides = split(pattern, "|")
    if len(sides) > 1:
        if known[0] != "or":
            raise LogicError("a | b needs a ∨")
        rest = [word for part in sides[1:] for word in ("|", *part)][1:]
        return taken_apart(goal, known[1], sides[0]) + taken_apart(goal, known[2], rest)
    if pattern[:1] == ["("] and pattern[-1:] == [")"]:
        return taken_apart(goal, known, pattern[1:-1])
    if pattern[:1] != ["⟨"]:
        if len(pattern) != 1:
            raise LogicError("expected a name, ⟨a, b⟩ or a | b")
        return [goal.given(pattern[0], known)]
    if pattern[-1] != "⟩":
        raise LogicError("⟨ is not closed")
    parts = split(pattern[1:-1], ",")
    if len(parts) < 2:
        raise LogicError("⟨ ⟩ holds two names or more")
    first, others = parts[0], parts[1:]
    rest = others[0] if len(others) == 1 else ["⟨", *joined(others), "⟩"]
    if known[0] == "ex":
        if len(first) != 1:
            raise LogicError("an integer has a name")
        goal = goal.integer(first[0])
        return taken_apart(goal, opened(known[1], ("var", first[0])), rest)
    left, right = halves(known)
    return [end for one in taken_apart(goal, left, first) for end in taken_apart(one, right, rest)]


def joined(parts: Sequence[Sequence[str]]) -> list[str]:
    """Parts with commas between."""
    return [word for part in parts for word in (",", *part)][1:]


# --- proof terms --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProofTerm:
    """A proof term: `kind` is name, app, tuple or fun; `words` are its tokens, `parts` its terms, `names` the
    name with its projections, or the names that `fun` binds."""

    kind: str
    words: tuple[str, ...]
    parts: tuple[ProofTerm, ...] = ()
    names: tuple[str, ...] = ()

    @classmethod
    def read(cls, words: Sequence[str]) -> ProofTerm:
        """A term from all the tokens. Raises LogicError."""
        if not words:
            raise LogicError("a proof term is missing")
        if words[0] == "fun":
            if "↦" not in words or words.index("↦") < 2:
                raise LogicError("expected `fun h => ...`")
            cut = words.index("↦")
            return cls("fun", tuple(words), (cls.read(words[cut + 1 :]),), tuple(words[1:cut]))
        found, rest = cls.atom(list(words))
        while rest:
            argument, rest = cls.atom(rest)
            found = cls("app", tuple(words), (found, argument))
        return found

    @classmethod
    def atom(cls, words: list[str]) -> tuple[ProofTerm, list[str]]:
        """The first name, tuple or group of the tokens, and the rest."""
        if words[0] in ("(", "⟨"):
            depth = 0
            for place, word in enumerate(words):
                depth += (word in ("(", "⟨")) - (word in (")", "⟩"))
                if not depth:
                    inside, rest = words[1:place], words[place + 1 :]
                    whole = tuple(words[: place + 1])
                    if words[0] == "(":
                        return group(inside, whole), rest
                    return cls(
                        "tuple", whole, tuple(group(part, tuple(part)) for part in split(inside, ","))
                    ), rest
            raise LogicError(f"{words[0]} is not closed")
        base, *projections = words[0].split(".")
        return cls("name", (words[0],), (), (base, *projections)), words[1:]


def group(words: Sequence[str], whole: tuple[str, ...]) -> ProofTerm:
    """What stands in parentheses: a proof term, or arithmetic, which is read when its place is known."""
    try:
        return replace(ProofTerm.read(words), words=whole)
    except LogicError:
        return ProofTerm("arithmetic", whole)


def inferred(goal: ProofGoal, term: ProofTerm) -> Formula:
    """What a name with projections, or an application, proves. Raises LogicError."""
    if term.kind == "name":
        base, *projections = term.names
        if base not in goal.known:
            raise LogicError(f"no hypothesis {base!r}")
        found = goal.known[base]
        for projection in projections:
            places = {"1": 0, "2": 1, "left": 0, "right": 1, "mp": 0, "mpr": 1}
            if projection not in places or (projection in ("mp", "mpr")) != (found[0] == "iff"):
                raise LogicError(f"{base!r} has no .{projection}")
            found = halves(found)[places[projection]]
        return found
    if term.kind == "app":
        known, argument = as_implication(inferred(goal, term.parts[0])), term.parts[1]
        if known[0] == "imp":
            checked(goal, argument, known[1])
            return known[2]
        if known[0] == "all":
            return opened(known[1], parse_term(argument.words, goal.variables))
        raise LogicError(f"{' '.join(term.parts[0].words)} is no implication and no ∀")
    raise LogicError("what it proves cannot be told; use `have`")


def checked(goal: ProofGoal, term: ProofTerm, wanted: Formula) -> None:
    """Raises LogicError unless a term proves a formula."""
    if term.kind == "fun":
        for name in term.names:
            (goal,) = _intro(replace(goal, target=wanted), [name])
            wanted = goal.target
        return checked(goal, term.parts[0], wanted)
    if term.kind == "tuple":
        return checked_tuple(goal, term, wanted)
    if term.kind == "app" and term.parts[0].names in (("Or", "inl"), ("Or", "inr"), ("False", "elim")):
        which = term.parts[0].names[1]
        if which != "elim" and wanted[0] != "or":
            raise LogicError("the goal is no ∨")
        part = FALSE if which == "elim" else wanted[1 if which == "inl" else 2]
        return checked(goal, term.parts[1], part)
    if term.names == ("trivial",) and wanted == ("true",):
        return None
    if inferred(goal, term) != wanted:
        raise LogicError(f"{' '.join(term.words)} proves something else")
    return None


def checked_tuple(goal: ProofGoal, term: ProofTerm, wanted: Formula) -> None:
    """⟨a, b⟩ for ∧ and ↔, ⟨n, a⟩ for ∃; the last part of a longer one is a tuple of the rest."""
    if len(term.parts) < 2:
        raise LogicError("⟨ ⟩ holds two parts or more")
    first, rest = term.parts[0], term.parts[1:]
    last = rest[0] if len(rest) == 1 else replace(term, parts=rest)
    if wanted[0] == "ex":
        return checked(goal, last, opened(wanted[1], parse_term(first.words, goal.variables)))
    left, right = halves(wanted)
    checked(goal, first, left)
    return checked(goal, last, right)

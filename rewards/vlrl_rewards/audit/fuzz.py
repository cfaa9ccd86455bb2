"""A fuzzer for verifiers and rewards: random responses from a grammar and by mutation. No response may make
one of them raise, take long or change.

for subject in subjects().values():
    for number, response in responses(subject, random.Random(0), 1000):
        assert not fault(subject, number, response), response
"""

from __future__ import annotations

import json
import random
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vlrl.plugins.registry import build
from vlrl.plugins.stages import Reward
from vlrl.types import Group, Prompt, Rollout, Row
from vlrl_rewards.audit import perception
from vlrl_rewards.audit import text as text_attacks
from vlrl_rewards.audit.forms import FORMS, NESTED
from vlrl_rewards.math.lexer import FUNCTIONS
from vlrl_rewards.verification import verify

SECONDS = 2.0  # processor time of one response
SEEDS = {
    **{kind: seed for kind, seed in perception.SEEDS.items() if kind not in perception.ALIASES},
    **text_attacks.SEEDS,
}
Draw = random.Random
_PIECES = (
    *"[](){}<>:,;.'\"\\/|-+*&%$#@!?=_~`^° \n\t0123456789abceiknxyABCDIX",
    "nan", "inf", "1e308", "1e9999", "None", "true", "²", "٣", "½", "⅔", "−5", "±", "√", "∞", "ﬁ", "İ", "ß",
    "\u0304", "\u200b", "\u202e", "\ud800",
    "\U0001f600", "\x00", "\x0b", "\u2028", "<think>", "</think>", "<answer>", "</answer>", "<!--", "-->",
    r"\boxed{", r"\fbox{", r"\text{", r"\frac",
    r"\sqrt", r"\sqrt[", r"\binom", r"\int_", r"\sum_{i=", r"\prod", r"\lim_{x\to", r"\begin{pmatrix}",
    r"\end{pmatrix}", r"\\", "&", r"\left",
    r"\right", r"\pm", r"\cup", r"\in", r"\mathbb{", r"\overline{", r"\pi", r"\infty", r"\circ", r"\le",
    r"\%", r"\$", r"\,", r"\choose", r"\bmod",
    "```json\n", "```python\n", "```", "C(5,2)", "gcd(", "log_", "sin^", "x_", "10_2", "1,000", "0.333...",
    "3:4", "12:30 pm", "2021-05-06", "half",
    "twenty-one", "hundred", "and a half", "dozen", "km/h", "sq ft", "per", "€", "%", "not", "or", "and",
    "is", "either", "maybe", "wait,", "no,",
    "The answer is", "Final answer:", "####", "答案", "option", "(A)", "B.", "all of the above", "yes", "no",
    "I cannot answer", "<confidence>0.5",
    "]0, 1[", r"\begin{cases}", r"\end{cases}", r"\begin{aligned}", r"\end{aligned}", r"\\[4pt]", "(mod 7)",
    r"\pmod{", r"\equiv ", " in base 2",
    r"_{\text{two}}",
    "&lt;", "&#52;", "<b>", "</b>", "<del>", "</del>", "~~", "```text\n", "3½", "1'234.5", "1.234.567,8",
    "0,25", "°15'", "µm", "kWh", "mW", "MW",
    "rad", "US$", "EUR ",
    " dozen", " in total", "so ", "not 63", " instead of ", " rather than ", r", k \in \mathbb{Z}",
    " for any integer n", r"\hat{i}", r"\mathbf{j}",
    "max(", "lambda x: ",
    "Die Antwort ist ", "La réponse est ", "答えは", "입니다", "| a | b |\n|---|---|", "[1] > [2]",
    '{"a": 1}',
    '{"answer": ', "null", "- ", "* ",
    "******", "<<", ">>", "P.S. ", "[VERIFY] correct.",
)  # fmt: skip
_GOLDS: dict[str, tuple[Any, ...]] = {
    "math": ("7", "-3/4", r"\frac{1}{2}", "2\\sqrt{3}", "x^2+1", "(1, 2)", "[1, 3)", r"\{1, 2\}", "x < 3",
        "y = 2x", "12 cm", "50%", "1:2", "101_2",
             r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"90^\circ", r"\pi", "no solution", "ellipse", "$5",
             "5 mW", "30.25^\\circ", "25 °C",
             "€12.50", "101_2", r"3 \pmod{7}", "4915112345678",
             r"x = \frac{\pi}{4} + k\pi, k \in \mathbb{Z}",
             r"f(x) = \begin{cases} x & x > 0 \\ -x & x \le 0 \end{cases}",
             r"\begin{pmatrix}2\\-3\\1\end{pmatrix}", r"(-\infty, 2]\cup(3,4)", r"x \pm 1"),
    "numeric": ("12.5", "7", "1/3", "3 km", "2:30 PM", "40%", "$1,200", "1.5 million"),
    "auto": (7, "B", "yes", "Paris", [1, 2], ["red", "blue"], {"a": 1}, "2:30", r"\frac{1}{2}",
        [[1, 2], [3, 4]]),
    "text": ("Paris", ["Paris", "the city"], "42", "C++", "July 4, 1776", "U.S."),
    "ranking": (["d1", "d2"], {"d1": 3, "d2": 0}, "[1] > [2]"),
    "list": (["red", "blue"], "1, 2 and 3"),
    "table": ("a,b\n1,2", [["a", "b"]]),
    "mcq": ("B", "dog", 1, ["A", "C"]),
    "code": ("assert f(2) == 4", {"inputs": ["[2]"], "outputs": ["4"], "fn_name": "f"},
        [{"input": "2", "output": "4"}],
             {"check": "def check(candidate):\n    assert candidate(2) == 4", "fn_name": "f"}),
    "instructions": (
        [{"id": "number_sentences", "num_sentences": 2}, {"id": "postscript"}, {"id": "title"},
            {"id": "number_bullet_lists", "num_bullets": 1}],
        [{"id": "json_format"}, {"id": "two_responses"}, {"id": "response_language", "language": "de"}],
        [{"id": "multiple_sections", "num_sections": 1}, {"id": "number_paragraphs", "num_paragraphs": 2}],
        [{"id": "nth_paragraph_first_word", "num_paragraphs": 1, "nth_paragraph": 1, "first_word": "a"}],
    ),
}  # fmt: skip
_OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "numeric": ({}, {"rel_tol": 0.01, "digits": 2}, {"abs_tol": 1.0, "unit": "cm"}), "list": ({},
        {"ordered": True}),
    "json": ({}, {"exact_fields": False}), "ranking": ({}, {"metric": "recall", "k": 1}), "text": ({},
        {"case_sensitive": True}),
    "instructions": ({}, {"strict": False}),
}  # fmt: skip
_PROGRAMS = (  # what mutation starts from, beside the seed's own programs
    "def f(x):\n    return x * x", "def f(x):\n    return f(x)",
    "import sys\nprint(sys.stdin.read()); sys.exit(3)", "raise SystemExit('4')",
    "x = [0] * 10**10", "print('4' * 10**7)", "import os\nos.fork()\nprint(4)",
    "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "open('/tmp/box/x', 'w').write('x' * 10**9)", "assert False, '\\ud800'",
    "print(open('/etc/shadow').read())",
    "import sys\nsys.stdout.buffer.write(b'\\xff\\x00\\n4')",
    "class A(int):\n    __eq__ = lambda *_: True\nf = A",
    "def f(x):\n    return {'a': [x, float('nan'), 1j, b'4', {1, 2}]}",
    "import threading\nthreading.Thread(target=print, args=(4,)).start()",
    "def f(x):\n    r = []\n    for i in range(9000): r = [r]\n    return r",
    "def f(x):\n    return 10 ** 9000", "def f(x):\n    x = []; x.append(x); return x",
    "def f(x):\n    class E(Exception):\n        def __str__(self): raise self\n    raise E",
)  # fmt: skip
_UNITS = ("", "", "", " cm", " km/h", "%", r"^\circ", " apples", r"\text{ kg}", " million", " hours", "$")
_FUNCTIONS = (
    *sorted(FUNCTIONS),
    *(rf"\{name}" for name in sorted(FUNCTIONS)),
    "log_2",
    r"\tan^",
    r"\sin^{-1}",
    "C",
    "f",
)
_ATOMS = (
    r"\pi", r"\alpha", "π", "∞", "½", r"\infty", "e", "i", "x_1", "f(x)", r"\emptyset", "two thirds", "1e5",
    "1,000",
)  # fmt: skip
_OPERATORS = (
    "+",
    "-",
    "*",
    "/",
    "^",
    "=",
    "<",
    r"\cdot ",
    r"\times ",
    r"\pm ",
    ",",
    " and ",
    ":",
    r"\le ",
    r"\cup ",
    "_",
    "!",
    " mod ",
    "&",
    r"\\ ",
)


@dataclass(frozen=True)
class Subject:
    """A verifier or a reward under test: its score for (case number, response), and the texts from which
    mutation starts.

    A case is a gold answer with options.
    """

    name: str
    judge: Callable[[int, str], Any]
    cases: int
    texts: tuple[str, ...] = field(repr=False, default=())
    fenced: bool = False  # most responses are programs in a fence


def _of_code() -> Subject:
    """kind `code`, in the sandbox. What a program prints may differ from one run to the next, so only the
    verdict must be the same."""
    seed = SEEDS["code"]
    golds = (seed.gold, *_GOLDS["code"])

    def judge(number: int, response: str) -> Any:
        verdict = verify(golds[number], response, "code", **seed.options)
        assert verdict.score in (0.0, 1.0) and verdict.correct == (verdict.score == 1.0), verdict
        return verdict.score, verdict.span

    programs = [text.strip("`").removeprefix("python") for text in (seed.right, *seed.wrong)]
    return Subject("code", judge, len(golds), (*programs, *_PROGRAMS), fenced=True)


def _of_kind(kind: str) -> Subject:
    seed = SEEDS[kind]
    golds = (seed.gold, *_GOLDS.get(kind, ()))
    cases = [(gold, {**seed.options, **options}) for gold in golds for options in _OPTIONS.get(kind, ({},))]

    def judge(number: int, response: str) -> Any:
        gold, options = cases[number]
        verdict = verify(gold, response, kind, seed.choices, **options)
        assert 0.0 <= verdict.score <= 1.0 and isinstance(verdict.correct, bool), verdict
        assert verdict.span is None or 0 <= verdict.span[0] <= verdict.span[1] <= len(response), verdict
        return json.dumps({**verdict.to_dict(), "seconds": 0}, sort_keys=True, ensure_ascii=False).encode()

    return Subject(kind, judge, len(cases), (seed.right, *seed.wrong, *seed.own.values(), *map(str, golds)))


def _of_reward(name: str) -> Subject:
    if name in FORMS:
        form = FORMS[name]
        spec, seed, right = form.spec, form.seed, form.right
    else:
        spec, seed = NESTED[name]
        right = f"<answer>{seed.right}</answer>"
    reward, options = build(Reward, dict(spec)), dict(seed.options)
    row = Row("fuzz", "?", answer=seed.gold, choices=seed.choices, meta=dict(options.get("meta", {})))

    def judge(_: int, response: str) -> Any:
        prompt = Prompt(row, ())
        rollouts = [Rollout(prompt, list(range(len(text.split()))), text=text) for text in (response, right)]
        scores: Any = reward.score_group(Group(prompt, rollouts))
        return [float(score) for score in scores]

    return Subject(
        name,
        judge,
        1,
        (right, seed.right, *seed.wrong, *(FORMS[name].own if name in FORMS else seed.own).values()),
    )


def subjects(names: Mapping[str, object] | None = None, sandbox: bool = False) -> dict[str, Subject]:
    """Every kind, and every reward that the audit builds; or those of `names`. Kind `code` is left out unless
    `sandbox` or `names` asks for it."""
    made: dict[str, Callable[[str], Subject]] = {
        **{f"kind {kind}": lambda name: _of_kind(name[5:]) for kind in SEEDS if kind != "code"},
        **({"kind code": lambda name: _of_code()} if sandbox or "kind code" in (names or ()) else {}),
        **{f"reward {name}": lambda name: _of_reward(name[7:]) for name in (*NESTED, *FORMS)},
    }
    return {name: make(name) for name, make in made.items() if names is None or name in names}


def expression(draw: Draw, depth: int = 3) -> str:
    """Written mathematics from a grammar; one part in sixteen is cut off or broken."""

    def part() -> str:
        return expression(draw, depth - 1)

    atoms: tuple[Callable[[], str], ...] = (
        lambda: str(draw.randint(-20, 200)), lambda: f"{draw.randint(0, 99)}.{draw.randint(0, 999)}",
        lambda: draw.choice("xyzabnieCk"),
        lambda: draw.choice(_ATOMS),
    )  # fmt: skip
    nested: tuple[Callable[[], str], ...] = (
        lambda: f"{part()}{draw.choice(_OPERATORS)}{part()}", lambda: f"({part()})", lambda: f"{{{part()}}}",
        lambda: f"[{part()}, {part()})",
        lambda: rf"\frac{{{part()}}}{{{part()}}}", lambda: rf"\sqrt{{{part()}}}",
        lambda: rf"\sqrt[{part()}]{{{part()}}}", lambda: f"|{part()}|",
        lambda: rf"\{{{part()}, {part()}\}}", lambda: rf"\text{{{part()}}}", lambda: f"{part()}^{{{part()}}}",
        lambda: f"{part()}_{{{part()}}}",
        lambda: f"{draw.choice(_FUNCTIONS)}({', '.join(part() for _ in range(draw.randint(1, 3)))})",
        lambda: f"{part()}{part()}",
        lambda: rf"\sum_{{{draw.choice('ikn')}={part()}}}^{{{part()}}} {part()}",
        lambda: rf"\int_{{{part()}}}^{{{part()}}} {part()} dx",
        lambda: rf"\lim_{{x \to {part()}}} {part()}",
        lambda: rf"\begin{{pmatrix}}{part()} & {part()}\\{part()}\end{{pmatrix}}",
        lambda: rf"\binom{{{part()}}}{{{part()}}}", lambda: f"{part()}{draw.choice(_UNITS)}",
        lambda: f"{part()} {draw.choice(('<', '=', '≤'))} {part()}",
    )  # fmt: skip
    made = draw.choice(atoms if depth <= 0 or draw.random() < 0.3 else nested)()
    if draw.random() < 1 / 16:
        at = draw.randrange(len(made) + 1)
        made = made[:at] if draw.random() < 0.5 else made[:at] + draw.choice(_PIECES) + made[at:]
    return made[:600]


def sentence(draw: Draw) -> str:
    """A few pieces of text that verifiers give a meaning to."""
    return draw.choice(("", " ")).join(draw.choice(_PIECES) for _ in range(draw.randint(1, 12)))


def mutated(draw: Draw, text: str) -> str:
    """The text with parts inserted, deleted, doubled or shuffled."""
    for _ in range(draw.randint(1, 6)):
        at, length = draw.randrange(len(text) + 1), draw.randint(1, 6)
        shuffled = list(text[at : at + length])
        draw.shuffle(shuffled)
        text = draw.choice((
            text[:at] + draw.choice(_PIECES) + text[at:], text[:at] + text[at + length :],
            text[: at + length] + text[at:],
            text[:at] + "".join(shuffled) + text[at + length :], text[:at],
        ))  # fmt: skip
    return text[:2000]


_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2.5,
    10**400,
    "",
    "x",
    "\ud800",
    [],
    [1],
    [[]],
    [None],
    {},
    {"a": 1},
    {"": [{}]},
)


def retyped(text: str) -> Iterator[str]:
    """The JSON values of a text with each of their parts left out, and replaced by values of every type;
    nothing where a text has none."""
    start = min((at for at in (text.find("["), text.find("{")) if at >= 0), default=-1)
    if start < 0:
        return
    try:
        whole, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return
    for part in _variants(whole):
        yield text[:start] + json.dumps(part) + text[end:]


def _variants(value: Any) -> Iterator[Any]:
    yield from _VALUES
    if isinstance(value, dict):
        for key in value:
            yield {name: part for name, part in value.items() if name != key}
            for part in _variants(value[key]):
                yield {**value, key: part}
    elif isinstance(value, list):
        for at in range(min(len(value), 4)):
            yield value[:at] + value[at + 1 :]
            for part in _variants(value[at]):
                yield [*value[:at], part, *value[at + 1 :]]


_PUMPED = (
    *"0a ,.-+/\\{}[]()<>\"'\n|:;_=*#$½٣", "0 ", "0,", "a ", "a, ", "00", "\\a", "[0", "{}", "()", "<a>",
    "0.0", "1/2", "0:0", "\n- ", "a: ", "<b>",
    "&lt;", "not ", "no, ", "and ", "\\\\ ", "0.0,", "x^", "a_", "'a'", '"a"', "Wait, ", "[1,2,3,4],",
    "(a,b,c),", "```", '{"a":', "1+", "1*", "(-", "1!", "!", "x=1, ", "1 or ", "1 to ", "1 cm ",
    "A or ", "B, ", "yes no ", "the answer is ", "Answer: ", "答案", "答案是", "الجواب هو ",
    "\\text{a}", "\\boxed{1}", "\\frac{1}{", "**", "<answer>1</answer>", "H2 + ", "\u200b", "\n\n",
    " \n", "\\pm 1", "because ", "so ", "a = ", "~~", ".,", "- ",
)  # fmt: skip


def pumped(subject: Subject, lengths: tuple[int, ...] = (60, 3000, 19_000)) -> Iterator[str]:
    """A short text repeated to each of `lengths` characters, alone and behind a right answer, with an end
    that does not fit: what patterns that can read a text in many ways take exponential time for."""
    right = subject.texts[0].replace("<answer>", "").replace("</answer>", "")
    for unit in _PUMPED:
        for length in lengths:
            body = unit * (length // len(unit)) + "!"
            yield f"<answer>{body}</answer>"
            yield f"<answer>{right}{body}</answer>"
            yield f"The answer is{body}x."
            yield f"{right}\n{body}"


_FRAMES = (
    "%s", "%s", "<answer>%s</answer>", r"\boxed{%s}", "The answer is %s.", "<think>hm</think>%s",
    "<think>%s</think><answer>%s</answer>", "So %s",
    "**Answer:** %s", "%s\n%s", "<answer>%s", r"\boxed{%s} or \boxed{%s}", "#### %s", "Wait, it's %s",
    '{"answer": "%s"}', "$%s$",
)  # fmt: skip


def responses(subject: Subject, draw: Draw, count: int) -> Iterator[tuple[int, str]]:
    """`count` pairs of a case number and a response: a third from the grammar, a third of pieces, a third
    mutated (half of these: JSON retyped)."""
    typed = [variant for text in subject.texts for variant in retyped(text)]
    for i in range(count):
        seed = (
            draw.choice(typed) if typed and draw.random() < 0.5 else mutated(draw, draw.choice(subject.texts))
        )
        body = (expression(draw), sentence(draw), seed)[i % 3]
        frame = "```python\n%s\n```" if subject.fenced and draw.random() < 0.8 else draw.choice(_FRAMES)
        text = frame.replace("%s", body, 1).replace("%s", mutated(draw, body))
        yield draw.randrange(subject.cases), mutated(draw, text) if draw.random() < 0.2 else text


def fault(subject: Subject, number: int, response: str) -> str:
    """What a response makes a verifier do that it must not: the place where it raises, "slow", or "not
    deterministic"; "" if nothing."""
    started = time.thread_time()
    try:
        first = subject.judge(number, response)
        seconds = time.thread_time() - started
        again = subject.judge(number, response)
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
        MemoryError,
    ) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return (
            f"{type(error).__name__} at {frame.filename.rpartition('vlrl_rewards')[2]}:{frame.lineno} in "
            f"{frame.name}"
        )
    if seconds > SECONDS:
        return "slow"
    return "" if first == again else "not deterministic"


def shrunk(subject: Subject, number: int, response: str, found: str) -> str:
    """A shorter response with the same fault."""
    size = len(response) // 2
    while size:
        at = 0
        while at < len(response):
            shorter = response[:at] + response[at + size :]
            if fault(subject, number, shorter) == found:
                response = shorter
            else:
                at += size
        size //= 2
    return response

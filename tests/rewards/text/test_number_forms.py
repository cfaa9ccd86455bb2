"""Numbers: exact digits, signs and operators, code, separators of other locales, words, bases and residues,
totals of a sentence."""

import pytest
from forms import verdicts
from vlrl_rewards.math.wording import (
    congruence,
    decimal_comma,
    in_base,
    local_number,
    without_entities,
    without_markup,
)
from vlrl_rewards.math.written_numbers import one_number

pytestmark = pytest.mark.usefixtures("warm_pool")

RIGHT = [
    ("4915112345678", "4 915 112 345 678"), ("4915112345678", "4.915.112.345.678"), ("1234.5", "1'234.5"),
    ("1234567.89", "1.234.567,89"),
    ("1234567.89", "12,34,567.89"), ("0.25", "0,25"), ("3.5", "3½"), ("12.5%", "12½%"), ("12.5%",
        "twelve and a half percent"),
    ("0.25", "25 percent"),
    ("36", "3 dozen"), ("36", "three dozen eggs"), ("36", "36, not 63"), ("36", "It is 36 and not 63."),
    ("36", "36 rather than 63"),
    ("36", "There are 20 red and 16 blue, so 36 in total."), ("7",
        "There are 3 cats and 4 dogs, 7 in total."), ("17", "-(-17)"), ("-17", "minus 17"),
    (r"3 \pmod{7}", "x ≡ 3 (mod 7)"), (r"3 \pmod{7}", "10 modulo 7"), ("101_2", "101 in base two"),
    ("7 \\bmod 3", "1"), (r"\max(3,5)", "5"),
]  # fmt: skip
WRONG = [
    ("4915112345678", "4915112399999"), ("4915112345678", "4915112345679"), ("17", "-17"), ("17", "−17"),
    ("-17", "17"), ("17", "17 *"),
    ("17", "17+"),
    ("17", "17 /"), ("17", 'int("17")'), ("17", "str(17)"), ("17", "lambda: 17"), ("17", "max(17, 3)"), ("17",
        'eval("17")'), ("17", "print(17)"),
    ("17", "[17][0]"), ("17", "17 if True else 0"), ("3", "3 dozen"), ("3", "There are 3 dozen eggs"),
    ("0.25", "0.25%"), ("1", "100%%"), ("3", "3½"),
    ("63", "36, not 63"), ("17", "18 instead of 17"), ("17", "I ruled out 17"), ("17", "17 is wrong"), ("7",
        "3, 4, 7"), ("7", "3 and 4"),
    (r"3 \pmod{7}", "3 mod 5"), (r"3 \pmod{7}", "4 (mod 7)"), ("101_2", "101 in base 3"), ("101_2",
        "101 in base ten"), ("0.1", "0,1,2"),
    ("0,1", "0.1"),
    ("17", ""), ("17", "?"), ("17", "\ufffd"), ("17", "9" * 5000), ("17", "1" + "7" * 300), ("17",
        "seventeen or so"), ("17", "<answer></answer>"),
    ("17", "&#49;&#56;"), ("17", "~~17~~"), ("17", "0x11"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "said"), RIGHT)
def test_pays(gold, said):
    assert verdicts(gold, said, ("math",)) == {True}


@pytest.mark.parametrize(("gold", "said"), WRONG)
def test_does_not_pay(gold, said):
    assert verdicts(gold, said) == {False}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 cats and 4 dogs, so 7 animals", 7), ("7 (3 on the left and 4 on the right)", 7), ("1 + 2 = 3", 3),
        ("3 cats and 4 dogs, so 8 animals", None),
        ("3, 4, 7", None), ("7 (3 and 5)", None), ("not 7", None), ("wrong: 7", None), ("", None),
        ("7, scratch that, 8", 8),
    ],
)  # fmt: skip
def test_one_number(text, number):
    assert one_number(text, tagged=True) == number


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("1.234.567", "1234567"), ("1.234,5", "1234.5"), ("1.234", "1.234"), ("1,234", "1,234"), ("3,5",
            "3,5"), ("1'234", "1234"),
        ("1 234,5", "1234.5"),
        ("12,34,567", "1234567"), ("-1.234.567,8 kg", "-1234567.8 kg"), ("1.2.3", "1.2.3"), ("1.234.567.89",
            "1.234.567.89"), ("", ""), ("x", "x"),
    ],
)  # fmt: skip
def test_local_number(text, plain):
    assert local_number(text) == plain


def test_other_readings():
    assert (
        decimal_comma("0,25") == "0.25"
        and decimal_comma("-0,5 m") == "-0.5 m"
        and not decimal_comma("1,5")
        and not decimal_comma("0,1,2")
    )
    assert in_base("101 (base 2)") == ("base", "101", 2) and in_base("101_{\\text{two}}") == (
        "base",
        "101",
        2,
    )
    assert in_base("101") is None and in_base("101 base 1") is None and in_base("101 base 99999") is None
    assert (
        congruence("-4 (mod 7)") == ("cong", 3, 7)
        and congruence("3 mod 7") is None
        and congruence("3 (mod 0)") is None
    )
    assert (
        local_number("3,50", decimal_comma=True) == "3.50"
        and local_number("1,234", decimal_comma=True) == "1,234"
    )


def test_markup_keeps_offsets():
    for text in (
        "<b>4</b>",
        "```text\n4\n```",
        '<span class="x">4</span>',
        "a < b and c > d",
        "```python\nprint(4)\n```",
    ):
        assert len(without_markup(text)) == len(text) and without_markup(text).find("4") == text.find("4")
    assert without_markup("```python\nprint(4)\n```") == "```python\nprint(4)\n```"
    assert (
        without_entities("x &lt; 3 &#52;") == "x < 3 4"
        and without_entities("1 & 2; 3 &amp") == "1 & 2; 3 &amp"
    )

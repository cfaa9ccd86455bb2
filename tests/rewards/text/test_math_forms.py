"""Structure of written mathematics: sets, families of solutions, intervals, cases, matrices, vectors, blocks,
lead-ins of other languages."""

import pytest
from forms import verdicts

pytestmark = pytest.mark.usefixtures("warm_pool")

FAMILY = r"x = \frac{\pi}{4} + k\pi, k \in \mathbb{Z}"
CASES = r"f(x) = \begin{cases} x & x > 0 \\ -x & x \le 0 \end{cases}"
MATRIX = r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"
COLUMN = r"\begin{pmatrix} 2 \\ -3 \\ 1 \end{pmatrix}"
LONG = ", ".join(str(k) for k in range(1, 301))
TURNED = ", ".join(str(k) for k in range(300, 0, -1))
RIGHT = [
    (rf"\{{{LONG}\}}", rf"\{{{TURNED}\}}"), (FAMILY, r"\frac{\pi}{4} + n\pi, n \in \mathbb{Z}"), (FAMILY,
        r"x = \pi/4 + n\pi for any integer n"),
    (FAMILY, r"\frac{5\pi}{4} - m\pi, m \in \mathbb{Z}"), (FAMILY,
        r"x = 45^\circ + 180^\circ n, n \in \mathbb{Z}"),
    (r"x = \pm 1 + 3k, k \in \mathbb{Z}",
    r"1 + 3n, -1 + 3n, n \in \mathbb{Z}"), ("(0, 1)", "]0, 1["), ("[2, \\infty)", r"[2;+\infty["),
    (r"(0,1)\cup(2,3)", r"]0,1[\cup]2,3["),
    (CASES, r"\begin{cases} -x, & \text{if } x \le 0 \\ x, & \text{if } x > 0 \end{cases}"), (MATRIX,
        r"\begin{pmatrix}1&2\\[4pt]3&4\end{pmatrix}"),
    (r"\begin{cases} 1 & x = 0 \\ 0 & \text{otherwise} \end{cases}",
        r"\begin{cases} 0 & \text{otherwise} \\ 1 & x = 0 \end{cases}"),
    (MATRIX, r"\frac{1}{2}\begin{pmatrix} 2 & 4 \\ 6 & 8 \end{pmatrix}"), (MATRIX,
        r"-\begin{pmatrix} -1 & -2 \\ -3 & -4 \end{pmatrix}"),
    (COLUMN, r"2\mathbf{i} - 3\mathbf{j} + \mathbf{k}"), (COLUMN, r"2\hat{i} - 3\hat{j} + \hat{k}"),
    ("(2, -3)", r"2\vec{i} - 3\vec{j}"),
    ("4", r"\begin{aligned} x &= 2 + 2 \\ &= 4 \end{aligned}"), ("4",
        r"\boxed{x = 4 \text{ (the only root)}}"), ("x < 3", "x &lt; 3"),
    ("4", "<b>4</b>"),
    ("4", "```text\n4\n```"), ("4", "Die Antwort ist 4."), ("4", "La réponse finale est 4."), ("4",
        "La respuesta es 4."), ("4", "答えは4です"),
    ("4", "정답은 4입니다"),
]  # fmt: skip
WRONG = [
    (rf"\{{{LONG}\}}", rf"\{{{TURNED}, 301\}}"), (rf"\{{{LONG}\}}", rf"\{{{TURNED[:-1]}2\}}"), (FAMILY,
        r"\frac{\pi}{4} + 2n\pi, n \in \mathbb{Z}"),
    (FAMILY, r"\frac{\pi}{4}"), (FAMILY, r"\frac{\pi}{4} + k + n"), (FAMILY,
        r"\frac{\pi}{4} + k^2\pi, k \in \mathbb{Z}"), (FAMILY, r"k\pi"),
    (FAMILY, "k"),
    (FAMILY, r"\frac{\pi}{4} + n\pi, \frac{\pi}{3} + n\pi, n \in \mathbb{Z}"), ("(0, 1)", "]0, 1]"),
    ("(0, 1)", "[0, 1["),
    ("[2, \\infty)", r"]2, \infty["),
    (CASES, r"\begin{cases} -x & x > 0 \\ x & x \le 0 \end{cases}"), (CASES,
        r"\begin{cases} x & x > 0 \end{cases}"), (CASES, "x"),
    (CASES, r"\begin{cases}"),
    (CASES, r"\begin{cases} x & x > 0 \\ x & x > 0 \end{cases}"), (MATRIX,
        r"2\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"), (MATRIX, "1234"),
    (MATRIX, r"\begin{pmatrix} 1 & 2 \\[3] 3 & 5 \end{pmatrix}"), (COLUMN,
        r"2\mathbf{i} + 3\mathbf{j} + \mathbf{k}"),
    (COLUMN, r"2i - 3j + k + 1"), (COLUMN, "0"),
    (COLUMN, r"i j k"), ("(2, -3)", r"2i - 3j + k"), ("4", r"\boxed{5 \text{ (or 4)}}"), ("4",
        r"\boxed{4 \text{ (or 5)}}"), ("x < 3", "x &gt; 3"),
    ("4", "<del>4</del> 5"), ("4", "```python\nprint(4)\n```"), ("4", "Die Antwort ist nicht 4."), ("4",
        "La réponse n'est pas 4."),
    ("4", "La respuesta no es 4."),
    ("4", ""), ("4", "\\begin{aligned}"), ("4", "\\begin{aligned}" * 50), (MATRIX, "\\begin{pmatrix}" * 80),
    (FAMILY, ", k \\in \\mathbb{Z}"),
    ("4", "]["), ("4", "]4["),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "said"), RIGHT)
def test_pays(gold, said):
    assert verdicts(gold, said, ("math",)) == {True}


@pytest.mark.parametrize(("gold", "said"), WRONG)
def test_does_not_pay(gold, said):
    assert verdicts(gold, said, ("math",)) == {False}

r"""Normalises written mathematics to one plain LaTeX-like spelling: Unicode, spacing commands, styles,
thousands separators. Linear time."""

from __future__ import annotations

import re
import unicodedata

MAX_CHARS = 4000
_VULGAR = {c: unicodedata.normalize("NFKC", c).split("\u2044") for c in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
_SUPER = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ", "0123456789+-=()ni", strict=True))
_SUB = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎", "0123456789+-=()", strict=True))
_SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "‒": "-", "﹣": "-", "×": r"\times ", "✕": r"\times ",
    "·": r"\cdot ", "∙": r"\cdot ",
    "⋅": r"\cdot ", "÷": "/",
    "⁄": "/", "∕": "/", "∞": r"\infty ", "π": r"\pi ", "°": r"^\circ ", "º": r"^\circ ", "≤": r"\le ",
    "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ",
    "≠": r"\ne ",
    "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "⌀": r"\emptyset ",
    "ø": r"\emptyset ", "∈": r"\in ",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}",
    "≈": r"\approx ", "≃": r"\approx ", "≅": r"\approx ", "∖": r"\setminus ", "⟨": r"\langle ",
    "⟩": r"\rangle ", "⌊": r"\lfloor ",
    "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ",
    "∣": "|", "‖": "|", "′": "'", "，": ",", "；": ";", "：": ":", "（": "(", "）": ")", "θ": r"\theta ",
    "α": r"\alpha ", "β": r"\beta ",
    "γ": r"\gamma ",
    "λ": r"\lambda ", "μ": r"\mu ", "σ": r"\sigma ", "φ": r"\phi ", "ω": r"\omega ", "∧": " and ",
    "∨": " or ", "∘": r"^\circ ", "،": ",",
    "或": " or ", "和": " and ", "与": " and ", "、": ",", "¢": " cents",
}  # fmt: skip
_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2064\u00ad\ufeff\U000e0000-\U000e007f]")
_HIDDEN = re.compile(
    r"\\[hv]?phantom\s*\{[^{}]*\}|\\(?:textcolor|color)\s*\{\s*white\s*\}\s*(?:\{[^{}]*\}|[^{}]*)|"
    r"\\(?:label|tag)\*?\s*\{[^{}]*\}"
)
_COLOR = re.compile(r"\\(?:textcolor|color)\s*\{\s*[\w!]{1,30}\s*\}")
_STYLE = re.compile(
    r"\\(?:left|right|bigl?|bigr|Bigl?|Bigr|biggl?|biggr|Biggl?|Biggr|displaystyle|textstyle|scriptstyle|"
    r"limits|nolimits|boldsymbol|mathbf|mathit|bm|mathsf|boxed|fbox"
    r"|underline|ensuremath|mathstrut|strut|small|large|bf|it|rm|cal|mathcal|vec|hat|"
    r"widehat)(?![a-zA-Z])\s?\.?(?=[^.]|$)"
)
_SPACES = re.compile(r"\\(?:quad|qquad|enspace|thinspace|,|;|:|>| |!|hspace\*?\{[^{}]*\})|~|\\cr\s*$")
_RENAME = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "nicefrac": "frac", "sfrac": "frac", "leq": "le",
    "leqslant": "le", "geq": "ge",
    "geqslant": "ge", "neq": "ne",
    "varnothing": "emptyset", "dbinom": "binom", "tbinom": "binom", "ast": "cdot", "lt": "<", "gt": ">",
    "degree": "^\\circ", "lvert": "|",
    "rvert": "|", "vert": "|", "mid": "|",
    "lbrace": "{", "rbrace": "}", "lbrack": "[", "rbrack": "]", "textdegree": "^\\circ",
    "arccosine": "arccos", "thickapprox": "approx",
    "simeq": "approx", "colon": ":", "div": "/",
    "dots": "ldots", "cdots": "ldots", "dotsc": "ldots", "R": "mathbb{R}", "lor": " or ", "vee": " or ",
    "land": " and ", "wedge": " and ",
    "varphi": "phi", "operatorname": "mathrm", "mathop": "mathrm", "euro": "", "pounds": "",
    "backslash": "setminus",
    "rightarrow": "to", "longrightarrow": "to",
    "mod": "bmod",
}  # fmt: skip
_COMMAND = re.compile(r"\\([a-zA-Z]+)\*?")
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|textnormal|mathrm|mbox|hbox|emph)\s*\{([^{}]*)\}"
)
_GROUPED = re.compile(r"(?<=\d)(?:\{,\}|\\,|,\s?\\!\s?|\\!,|\u2009|\u202f)(?=\d{3}(?!\d))")
_SPACE_GROUPED = re.compile(r"(?<![\d.,/^_}])\d{1,3}(?: \d{3})+(?![\d,]| \d{3}(?!\d))")
_ROW_SPACING = re.compile(
    r"\\\\\s?\[\s?-?\d{0,3}\.?\d{1,3}\s?(?:pt|mm|cm|em|ex|in|mu)\s?\]"
)  # the row ends with "\\[4pt]"
_ALIGNED = re.compile(
    (
        r"\\begin\s?\{(?P<env>aligned|align\*?|gathered|gather\*?|split|eqnarray\*?)\}(?P<body>.{0,"
        r"2000}?)\\end\s?\{(?P=env)\}"
    ),
    re.DOTALL,
)
_INTERVAL = re.compile(r"(?P<low>[\[\]])(?P<inner>[^\[\],;]{1,60}[,;][^\[\],;]{1,60})(?P<high>[\[\]])")
_CHOOSE = re.compile(r"\{? ?([^{}\\]{1,40})\\choose ?([^{}\\]{1,40})\}?")
_UNIT_FRACTION = re.compile(
    r"(?<=[\d}\s])\\frac\s*\{\s*(\\text\{[^{}]{1,30}\}|[a-zA-Z]{1,"
    r"4})(\^\{?\d\}?)?\s*\}\s*\{\s*(\\text\{[^{}]{1,30}\}|[a-zA-Z]{1,4})(\^\{?\d\}?)?\s*\}\s*$"
)
_TEMPERATURE = re.compile(
    r"(?:°|\bdegrees?(?=\s[CF])|\^\s?\{?\s?\\circ\s?\}?)\s?(?:\\(?:text|mathrm)\{\s?)?([CF])(?:elsius|"
    r"ahrenheit)?(?![a-zA-Z])\}?"
)
_ROOT = re.compile(r"([√∛∜])\s?(\d+(?:\.\d+)?)")
_DOTTED = re.compile(
    r"(\d*\.\d{0,12}?)(\d{1,6}?)\2{2,}\d{0,5}(?:\.{3}|…|\\ldots)|(\d*\.\d{0,6}?)(\d{2,6}?)\4(?:\.{3}|…|"
    r"\\ldots)|(\d*\.\d{0,2}?)(\d)\6(?:\.{3}|…|\\ldots)"
)
_OTHER_DIGITS = re.compile(r"\d(?:[.,٫٬]?\d)*")
_OVER = re.compile(r"\{\s?([^{}\\]{1,40})\\over(?![a-z])\s?([^{}\\]{1,40})\}")
_COMBINING_BAR = re.compile("((?:\\d[\u0304\u0305])+)")


def _scripts(text: str, table: dict[str, str], mark: str) -> str:
    run = re.compile("[" + "".join(map(re.escape, table)) + "]+")
    return run.sub(lambda m: mark + "{" + "".join(table[c] for c in m.group()) + "}", text)


def _western(match: re.Match[str]) -> str:
    """A number in Arabic, Indic or Thai digits in ASCII digits; one that mixes scripts unchanged."""
    digits = [char for char in match[0] if char.isdecimal()]
    if len({ord(char) - int(char) for char in digits}) > 1:
        return match[0]
    return "".join(str(int(c)) if c.isdecimal() else {"٫": ".", "٬": ","}.get(c, c) for c in match[0])


def _rename(match: re.Match[str]) -> str:
    new = _RENAME.get(match[1])
    if new is None:
        return match[0]
    return ("\\" + new if new[:1].isalpha() else new) + " "


def _aligned(match: re.Match[str]) -> str:
    """The lines of an `aligned` block: a line that starts with a relation continues the one before, another
    is an item of its own."""
    lines = [" ".join(line.replace("&", " ").split()).strip(" ,.") for line in match["body"].split("\\\\")]
    joined = ""
    for line in filter(None, lines):
        joined += (
            line
            if not joined
            else (
                " "
                if re.match(r"[=<>]|\\(?:le|ge|leq|geq|approx|equiv|implies|Rightarrow)\b", line)
                else ", "
            )
            + line
        )
    return f" {joined} "


def _open_brackets(text: str) -> str:
    """Intervals "]a, b[" with the brackets of English texts: "(a, b)"."""
    if not (re.match(r"[^\[\]]*\]", text) or re.search(r"\[[^\[\]]*$", text)):
        return text
    ends = {"]": "(", "[": "["}, {"]": "]", "[": ")"}
    return _INTERVAL.sub(lambda m: f"{ends[0][m['low']]}{m['inner']}{ends[1][m['high']]}", text)


def plain_latex(text: str) -> str:
    """The canonical spelling of written mathematics; text commands become `\\text{...}`. Callers pass at most
    MAX_CHARS characters."""
    text = _INVISIBLE.sub("", text)
    text = text if text.isascii() else _OTHER_DIGITS.sub(_western, text)
    text = _ROW_SPACING.sub(lambda _: r"\\ ", text)
    text = _ALIGNED.sub(_aligned, text)
    text = _COMBINING_BAR.sub(lambda m: r"\overline{" + re.sub("[\u0304\u0305]", "", m[1]) + "}", text)
    if any(char in _VULGAR for char in text):
        text = re.sub(
            r"(\d{0,9})\s?([¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])",
            lambda m: m[1] + r"\frac{" + "}{".join(_VULGAR[m[2]]) + "}",
            text,
        )
    text = _scripts(_scripts(text, _SUPER, "^"), _SUB, "_")
    text = _TEMPERATURE.sub(lambda m: " celsius" if m[1] == "C" else " fahrenheit", text)
    text = _ROOT.sub(lambda m: m[1] + "{" + m[2] + "}", text)
    for cube, root in (("∛", r"\sqrt[3]"), ("∜", r"\sqrt[4]"), ("√", r"\sqrt ")):
        text = text.replace(cube, root)
    text = _GROUPED.sub("", text)
    text = "".join(_SYMBOLS.get(char, char) for char in text)
    text = unicodedata.normalize("NFKC", text)
    text = "".join(_SYMBOLS.get(char, char) for char in text)
    text = _HIDDEN.sub(" ", text)
    text = _COLOR.sub("", text)
    for fence in ("\\(", "\\)", "\\[", "\\]", "$$", "\\$", "$"):
        text = text.replace(fence, " ")
    text = _GROUPED.sub("", text)
    text = text.replace("\\\\", r"\cr ")
    text = _COMMAND.sub(_rename, text)
    text = _STYLE.sub("", text)
    text = _TEXT.sub(lambda m: r"\text{" + m[1] + "}", text)
    text = _SPACES.sub(" ", text).replace(r"\bar{", r"\overline{")
    text = _CHOOSE.sub(r"\\binom{\1}{\2}", text) if r"\choose" in text else text
    text = _OVER.sub(r"\\frac{\1}{\2}", text) if r"\over" in text else text
    text = (
        text.replace("\\%", "%")
        .replace("\\#", "#")
        .replace("\\&", "&")
        .replace("\\_", "_")
        .replace("**", "^")
    )
    text = " ".join(text.split())
    text = (
        re.sub(r"\^\s*\{\s*(?:\^\s*)?\\circ\s*\}", r"^\\circ ", text)
        .replace("^^\\circ", "^\\circ")
        .replace("^ ^\\circ", "^\\circ")
    )
    text = _SPACE_GROUPED.sub(lambda m: m[0].replace(" ", ""), text)
    if "..." in text or "…" in text or r"\ldots" in text:
        text = _DOTTED.sub(
            lambda m: (m[1] or m[3] or m[5]) + r"\overline{" + (m[2] or m[4] or m[6]) + "}", text
        )
    text = _UNIT_FRACTION.sub(lambda m: f" {m[1]}{m[2] or ''}/{m[3]}{m[4] or ''}", text)
    text = _open_brackets(text.strip())
    return text[:-1].rstrip() if text.endswith("\\") else text

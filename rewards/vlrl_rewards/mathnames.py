"""The names that the mathematics parser knows."""

from __future__ import annotations

FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "arcsin",
        "arccos",
        "arctan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "log",
        "ln",
        "lg",
        "exp",
        "sqrt",
        "abs",
        "floor",
        "ceil",
        "gcd",
        "lcm",
        "max",
        "min",
        "cbrt",
    ]
)
CONSTANTS = {"pi": "pi", "e": "e", "i": "i", "infty": "inf", "infinity": "inf", "inf": "inf", "oo": "inf", "emptyset": "empty"}
GREEK = frozenset(
    [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "varepsilon",
        "zeta",
        "eta",
        "theta",
        "lambda",
        "mu",
        "nu",
        "xi",
        "rho",
        "sigma",
        "tau",
        "phi",
        "chi",
        "psi",
        "omega",
        "Delta",
        "Omega",
        "Phi",
        "Sigma",
        "Gamma",
        "Theta",
    ]
)
SERIES = ("sum", "prod", "int", "lim")
RELATIONS = {
    "=": "=",
    "<": "<",
    ">": ">",
    "<=": "<=",
    ">=": ">=",
    "==": "=",
    "!=": "!=",
    r"\le": "<=",
    r"\ge": ">=",
    r"\ne": "!=",
    r"\approx": "~",
    "~": "~",
    r"\sim": "~",
    r"\in": "in",
}
CLOSING = {"(": (")", "]"), "[": ("]", ")"), r"\{": (r"\}",), "{": ("}",), r"\langle": (r"\rangle",)}
NUMBERS = ("num", "grouped", "repeat", "sci", "mixed")

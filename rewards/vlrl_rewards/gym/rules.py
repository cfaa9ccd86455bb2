"""Which check scores which generator of reasoning_gym, what a row keeps of its puzzle for it, and which
generators are refused.

The scorers of the package were read for version 0.1.25. Some evaluate the answer as Python (`eval`, or
sympy's `parse_expr`, which is one), give points for an answer that contains the right one, take any text, or
can be kept busy by a short answer (`Fraction("1e999999999")`); none of them is called with the text of a
policy. An answer is right or wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vlrl_rewards.gym import expressions, library, puzzles, readers
from vlrl_rewards.gym.readers import Check


@dataclass(frozen=True)
class Rule:
    """The `check` of a generator's answers, the keys of the metadata that it reads, and the key of an answer
    where the package gives none."""

    check: Check = readers.same
    keeps: tuple[str, ...] = ()
    example: str = ""


REFUSED: Mapping[str, str] = {
    "codeio": "it makes its questions by running code of a language model with exec(), outside a sandbox",
    "composite": "it mixes other generators; name them under `generators` with their `weight`",
}

_ITEMS = (
    *(
        "arc_1d",
        "arc_agi",
        "binary_matrix",
        "game_of_life",
        "list_functions",
        "manipulate_matrix",
        "mini_sudoku",
        "number_filtering",
    ),
    *(
        "number_sorting",
        "path_star",
        "rearc",
        "rotate_matrix",
        "spiral_matrix",
        "string_splitting",
        "string_synthesis",
        "sudoku",
        "survo",
    ),
    *("word_sequence_reversal", "word_sorting"),
)

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_ITEMS, Rule(readers.items)),
    "advanced_geometry": Rule(readers.rounded()),
    "bitwise_arithmetic": Rule(readers.hexadecimal),
    "boxnet": Rule(puzzles.boxnet, ("initial_state",)),
    "coin_flip": Rule(readers.probability),
    "complex_arithmetic": Rule(readers.complex_number),
    "countdown": Rule(expressions.makes(lambda kept: int(kept["target"])), ("numbers", "target")),
    "cryptarithm": Rule(puzzles.cryptarithm, ("words_letters", "result_letters", "allow_leading_zero")),
    "decimal_arithmetic": Rule(readers.significant(12)),
    "dice": Rule(readers.fraction),
    "fraction_simplification": Rule(readers.fraction),
    "futoshiki": Rule(readers.digits),
    "graph_color": Rule(puzzles.graph_colouring, ("puzzle",), "possible_answer"),
    "group_anagrams": Rule(readers.word_groups),
    "intermediate_integration": Rule(expressions.antiderivative, ("variable",)),
    "jugs": Rule(puzzles.jugs, ("puzzle",)),
    "kakurasu": Rule(puzzles.kakurasu, ("n_rows", "n_cols", "row_sums", "col_sums")),
    "knight_swap": Rule(puzzles.knight_swap, ("board", "pieces", "start_turn", "is_possible")),
    "knights_knaves": Rule(readers.roles),
    "n_queens": Rule(puzzles.queens, ("puzzle",)),
    "number_format": Rule(readers.near("0.01")),
    "palindrome_generation": Rule(puzzles.palindrome, ("letters",)),
    "palindrome_partitioning": Rule(readers.partitions),
    "polynomial_equations": Rule(readers.solutions),
    "polynomial_multiplication": Rule(expressions.polynomial),
    "pool_matrix": Rule(readers.rounded("0.01")),
    "power_function": Rule(readers.significant(3)),
    "prime_factorization": Rule(readers.factors),
    "propositional_logic": Rule(expressions.conclusion, ("premises", "variables"), "example_answer"),
    "puzzle24": Rule(expressions.makes(lambda kept: 24), ("numbers",)),
    "quantum_lock": Rule(puzzles.quantum_lock, ("buttons", "initial_value", "initial_state", "target_value")),
    "rubiks_cube": Rule(library.rubiks_cube, ("cube_size", "scramble_moves"), "example_correct_answer"),
    "rush_hour": Rule(puzzles.rush_hour, ("board_config",)),
    "shortest_path": Rule(puzzles.shortest_path, ("matrix",)),
    "simple_integration": Rule(expressions.antiderivative, ("variable",)),
    "sokoban": Rule(puzzles.sokoban, ("gamestr",)),
    "time_intervals": Rule(readers.duration),
    "tower_of_hanoi": Rule(
        puzzles.hanoi, ("num_disks", "num_pegs", "start_peg", "target_peg", "solution_length")
    ),
    "word_ladder": Rule(library.word_ladder, ("start_word", "end_word")),
}

# One right answer, by a scorer of their own that differs from equality by points for form or likeness only.
EQUAL = frozenset(
    (
        *(
            "ab",
            "calendar_arithmetic",
            "chain_sum",
            "circuit_logic",
            "color_cube_rotation",
            "decimal_chain_sum",
            "emoji_mystery",
        ),
        *(
            "family_relationships",
            "figlet_font",
            "game_of_life_halting",
            "gsm_symbolic",
            "letter_jumble",
            "needle_haystack",
            "products",
        ),
        *(
            "rectangle_count",
            "self_reference",
            "sentence_reordering",
            "spell_backward",
            "string_insertion",
            "tsumego",
            "zebra_puzzles",
        ),
    )
)


def rule_of(generator: str) -> Rule:
    """The rule of a generator; equality with the gold answer for one without a rule of its own."""
    return RULES.get(generator, Rule())

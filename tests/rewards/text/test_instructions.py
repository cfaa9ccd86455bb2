"""Every IFEval instruction: kept and broken; and what no response can earn."""

import pytest
from vlrl_rewards import verify
from vlrl_rewards.format.instructions import CHECKS

TABLE = [
    (
        {"id": "keywords:existence", "keywords": ["sea", "sun"]},
        "The sun over the sea.",
        "The seaside and Sunday.",
    ),
    ({"id": "keywords:frequency", "keyword": "sun", "frequency": 2}, "Sun and sun.", "Sun and Sunday."),
    (
        {"id": "keywords:frequency", "keyword": "sun", "frequency": 2, "relation": "less than"},
        "Sun.",
        "Sun, sun.",
    ),
    ({"id": "keywords:forbidden_words", "forbidden_words": ["bad"]}, "A badge.", "Bad dog."),
    (
        {"id": "keywords:letter_frequency", "letter": "e", "let_frequency": 3, "let_relation": "at least"},
        "Eleven eels",
        "An eel",
    ),
    (
        {"id": "language:response_language", "language": "fr"},
        "Le chat est dans la maison.",
        "The cat is in the house.",
    ),
    ({"id": "language:response_language", "language": "zh"}, "今天天气很好。", "Today is nice."),
    (
        {"id": "length_constraints:number_sentences", "num_sentences": 2, "relation": "at least"},
        "One is here. Dr. Two is there.",
        "Dr. One is here.",
    ),
    (
        {"id": "length_constraints:number_paragraphs", "num_paragraphs": 2},
        "One.\n***\nTwo.",
        "One. *** *** Two.",
    ),
    (
        {"id": "length_constraints:number_words", "num_words": 3, "relation": "at least"},
        "one two three",
        "one two",
    ),
    (
        {"id": "length_constraints:number_words", "num_words": 3, "relation": "less than"},
        "one two",
        "one two three",
    ),
    (
        {
            "id": "length_constraints:nth_paragraph_first_word",
            "num_paragraphs": 2,
            "nth_paragraph": 2,
            "first_word": "Weekend",
        },
        "First.\n\nweekend comes.",
        "Weekend.\n\nFirst.",
    ),
    (
        {"id": "detectable_content:number_placeholders", "num_placeholders": 2},
        "Dear [name], at [address].",
        "Dear [name].",
    ),
    ({"id": "detectable_content:postscript", "postscript_marker": "P.S."}, "Hi.\nP.S. Bye.", "Hi. Tips."),
    ({"id": "detectable_format:number_bullet_lists", "num_bullets": 2}, "* a\n* b", "* a\n* b\n* c"),
    (
        {"id": "detectable_format:constrained_response"},
        "My answer is yes.",
        "My answer is yes. My answer is no.",
    ),
    (
        {"id": "detectable_format:number_highlighted_sections", "num_highlights": 2},
        "*one* and **two**",
        "*one* and ** **",
    ),
    (
        {"id": "detectable_format:multiple_sections", "section_spliter": "Section", "num_sections": 2},
        "Section 1\na\nSection 2\nb",
        "Section 1\na",
    ),
    ({"id": "detectable_format:json_format"}, '```json\n{"a": 1}\n```', 'Here: {"a": 1}'),
    ({"id": "detectable_format:title"}, "<<Joy>>\ntext", "<< >>\ntext"),
    ({"id": "combination:two_responses"}, "One\n******\nTwo", "Same\n******\nSame"),
    ({"id": "combination:repeat_prompt", "prompt_to_repeat": "Say hi."}, "Say hi. Hi!", "Say hi."),
    (
        {"id": "startend:end_checker", "end_phrase": "Any questions?"},
        "Done. Any questions?",
        "Any questions? Done.",
    ),
    ({"id": "startend:quotation"}, '"All of it."', '"Part" of it.'),
    (
        {"id": "change_case:capital_word_frequency", "capital_frequency": 2, "capital_relation": "less than"},
        "ONE two",
        "ONE TWO",
    ),
    ({"id": "change_case:english_capital"}, "ALL CAPS.", "Not Caps."),
    ({"id": "change_case:english_lowercase"}, "all low.", "Not low."),
    ({"id": "punctuation:no_comma"}, "No pause.", "A pause, here."),
]


@pytest.mark.parametrize(("spec", "kept", "broken"), TABLE, ids=[row[0]["id"] for row in TABLE])
def test_instruction(spec, kept, broken):
    assert verify([spec], kept, "instructions").correct
    assert verify([spec], f"<think>{broken}</think>{kept}", "instructions").correct
    assert not verify([spec], broken, "instructions").correct
    for nothing in ("", "   ", "...", f"<think>{kept}</think>"):
        assert verify([spec], nothing, "instructions").score == 0.0


def test_all_are_covered_and_scored_by_share():
    assert {row[0]["id"] for row in TABLE} == set(CHECKS)
    verdict = verify([{"id": "no_comma"}, {"id": "english_capital"}], "no caps", "instructions")
    assert verdict.score == 0.5 and not verdict.correct


@pytest.mark.parametrize(
    "gold", [[], [{"id": "no_such"}], [{"id": "no_comma", "extra": 1}], [{"id": "number_words"}]]
)
def test_broken_gold(gold):
    with pytest.raises(ValueError, match="gold"):
        verify(gold, "text", "instructions")

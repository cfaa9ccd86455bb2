"""Examples by which rewards are attacked whose rows are of their paper: critiques, verdicts, entailments,
transcripts, formal proofs."""

from __future__ import annotations

from typing import Any

from vlrl_rewards.audit.form import SILENT, AuditForm
from vlrl_rewards.audit.perception import Seed

_NUMB = ("blank", "white space", "dot", "colon", "question marks")
_CORRECT = "Correctness of the final answer: Correct"
_WRONG = "Correctness of the final answer: Wrong"
_STEPS = "Step 1: \\boxed{correct}\nStep 2: \\boxed{incorrect}"
_ENTAILED = "<think>All men are mortal, and he is one.</think>\nAnswer: entailed"
_SPOKEN = "the quick brown fox jumps"
_THEOREM = "theorem t : ∃ x : ℤ, 3 * x + 4 = 19"
_PROOF = "```lean4\nuse 5\nnorm_num\n```"


def _row(gold: Any, **meta: Any) -> Seed:
    return Seed(gold, "", ("",), options={"meta": meta}, joined="")


ROW_FORMS: dict[str, AuditForm] = {
    "critique_verdict": AuditForm(
        {"name": "critique_verdict"},
        f"The sum is wrong.\n{_WRONG}",
        own={
            "the other verdict": f"The sum is right.\n{_CORRECT}",
            "both": f"{_CORRECT}\n{_WRONG}",
            "in the thinking": f"<think>{_WRONG}</think>I am not sure.",
            "without the line": "The final answer is Wrong.",
            "other words": "Correctness of the final answer: wrong or right",
        },
        seed=_row("no"),
    ),
    "step_verdicts": AuditForm(
        {"name": "step_verdicts"},
        _STEPS,
        own={
            "the first alone": "Step 1: \\boxed{correct}",
            "all right": "\\boxed{correct} \\boxed{correct} \\boxed{correct}",
            "all wrong": "\\boxed{incorrect} \\boxed{incorrect} \\boxed{incorrect}",
            "in the thinking": f"<think>{_STEPS}</think>Done.",
            "too many": _STEPS + "\\boxed{correct}" * 9,
            "every order": "\\boxed{incorrect} \\boxed{correct}" * 4,
            "unboxed": "correct, incorrect",
        },
        seed=_row("no", step_labels=[1.0, 0.0, 0.0]),
    ),
    "judge_verdict": AuditForm(
        {"name": "judge_verdict"},
        "The answer is the reference.\nVerdict: yes",
        own={
            "the other": "Verdict: no",
            "both": "Verdict: yes\nVerdict: no",
            "in the thinking": "<think>Verdict: yes</think>I am not sure.",
            "open thinking": "<think>Verdict: yes",
            "of two": "Verdict: yes or no",
            "denied": "Verdict: not yes",
            "a word of it": "It is a yes, I would say.",
        },
        seed=_row("yes"),
    ),
    "preference_strength": AuditForm(
        {"name": "preference_strength"},
        "<answer>3</answer>",
        own={
            "the other side": "<answer>-3</answer>",
            "none": "<answer>0</answer>",
            "two": "<answer>1 or 3</answer>",
            "glued": "<answer>13</answer>",
            "out of range": "<answer>30</answer>",
            "in the thinking": "<think><answer>3</answer></think><answer>-1</answer>",
            "taken back": "<answer>3</answer><answer>-2</answer>",
            "outside the tags": "3",
            "every one": "<answer>-3 -2 -1 1 2 3</answer>",
        },
        seed=_row("3"),
    ),
    "score_agreement": AuditForm(
        {"name": "score_agreement"},
        "Scores: 9, 2, 5",
        own={
            "the other order": "Scores: 2, 9, 5",
            "equal": "Scores: 5, 5, 5",
            "one": "Scores: 9",
            "too many": "Scores: 9, 2, 5, 9, 2, 5",
            "out of range": "Scores: 90, 2, 5",
            "in the thinking": "<think>Scores: 9, 2, 5</think>Done.",
            "twice": "Scores: 9, 2, 5\nScores: 9, 2, 5",
            "without the word": "9, 2, 5",
        },
        seed=_row("", ratings=[4.0, 1.0, 2.0]),
    ),
    "entailment": AuditForm(
        {"name": "entailment"},
        _ENTAILED,
        own={
            "negated": _ENTAILED.replace("entailed", "not-entailed"),
            "negated by a blank": _ENTAILED.replace("entailed", "not entailed"),
            "both": _ENTAILED + ", not-entailed",
            "in the thinking": "<think>Answer: entailed</think>",
            "text behind it": _ENTAILED + " I take that back",
            "without the line": "It is entailed.",
        },
        seed=_row("entailed"),
    ),
    "entailment_form": AuditForm(
        {"name": "entailment_form"},
        _ENTAILED,
        own={
            "no thinking": "Answer: entailed",
            "empty thinking": "<think> </think>Answer: entailed",
            "open thinking": "<think>so Answer: entailed",
            "two thoughts": "<think>a</think>" + _ENTAILED,
            "label in the thinking": "<think>Answer: entailed</think>",
            "no label": "<think>so</think>Answer: perhaps",
        },
        seed=_row("entailed"),
    ),
    "reference_length": AuditForm(  # it pays length, whatever is said
        {"name": "reference_length"},
        "one two three four five six",
        _NUMB,
        own={
            "one long word": "x" * 100_000,
            "two words": "one two",
            "tags": "<think></think>",
            "zero width": "\u200b" * 1000,
        },
        seed=_row("entailed", reference="a b c d e f"),
    ),
    "transcript": AuditForm(
        {"name": "transcript"},
        f"<answer>{_SPOKEN}</answer>",
        own={
            "another": "<answer>lorem ipsum dolor sit amet</answer>",
            "backwards": "<answer>jumps fox brown quick the</answer>",
            "over and over": f"<answer>{' '.join([_SPOKEN] * 20)}</answer>",
            "in the thinking": f"<think>{_SPOKEN}</think>",
            "two answers": f"<answer>{_SPOKEN}</answer><answer>lorem ipsum dolor</answer>",
            "letters": "<answer>t h e q u i c k b r o w n f o x</answer>",
            "very long": "the " * 6000,
        },
        seed=_row(_SPOKEN),
    ),
    "transcript_faults": AuditForm(
        {"name": "transcript_faults"},
        f"<answer>{_SPOKEN}</answer>",
        (*_NUMB, "empty tags", "blank tags", "tags only"),  # an open tag is a word without a fault
        own={
            "over and over": f"<answer>{'the ' * 6}</answer>",
            "much more": f"<answer>{_SPOKEN} and over the lazy dog that lies there</answer>",
            "another script": "<answer>быстрая лиса</answer>",
            "very long": "the " * 6000,
        },
        seed=_row(_SPOKEN),
    ),
    "transcript_keywords": AuditForm(
        {"name": "transcript_keywords"},
        f"<answer>{_SPOKEN}</answer>",
        own={
            "another": "<answer>a slow red dog sleeps</answer>",
            "inside a word": "<answer>the quickest foxes</answer>",
            "in the thinking": f"<think>{_SPOKEN}</think>",
            "very long": "fox quick " * 6000,
        },
        seed=_row(_SPOKEN, keywords=["fox", "quick", "dog"]),
    ),
    "formal_proof": AuditForm(
        {"name": "formal_proof"},
        _PROOF,
        (*SILENT, "injection", "zero width"),
        own={
            "another number": _PROOF.replace("5", "6"),
            "sorry": "```lean4\nsorry\n```",
            "an axiom": "```lean4\naxiom cheat : False\nexact cheat.elim\n```",
            "another statement": "```lean4\ntheorem t : 1 = 1 := by\nrfl\n```",
            "two statements": f"```lean4\n{_THEOREM} := by\nsorry\ntheorem u : 1 = 1 := by\nrfl\n```",
            "a switched-off kernel": "```lean4\nset_option x true\nuse 5\n```",
            "in the thinking": f"<think>{_PROOF}</think>",
            "no block": "use 5\nnorm_num",
            "taken back": _PROOF + "\nNo:\n" + _PROOF.replace("5", "4"),
            "nested": "```lean4\n" + "(" * 5000 + "\n```",
            "very long": "```lean4\n" + "norm_num\n" * 20_000 + "```",
        },
        seed=_row("5", formal=_THEOREM),
    ),
}

"""Sentences around an answer: the first give it, the last take it away or offer another beside it."""

from __future__ import annotations

FRAMES = (
    "{}", "<answer>{}</answer>", r"\boxed{{{}}}", r"$\boxed{{{}}}$", "The answer is {}.", "#### {}",
    "The final answer is {}.", "Therefore, the answer is {}.", "**{}**", "Answer: {}", "Final answer: {}",
    "<think>Let me see.</think>{}", "<think>Maybe 3 or 8.</think><answer>{}</answer>",
    "<answer> {} </answer>", r"So the result is $\boxed{{{}}}$.", "<answer>{}.</answer>", "### Answer\n{}",
    "Answer:\n\n{}", "<answer>\n{}\n</answer>", "I first thought 8. Wait, the answer is {}.",
    "That is why the answer is {}.", "Assuming equal rates, the answer is {}.",
    "There is no doubt that the answer is {}.", "I was not sure at first. The answer is {}.",
    "Nobody else got it, but the answer is {}.", "They say otherwise. Still, the answer is {}.",
    "It is no wonder that the answer is {}.", "Not that it matters, but the answer is {}.",
    "The points lie on a line and the answer is {}.", "The answer is **{}**.",
    "First 3, then 8. So the answer is {}.",
)  # fmt: skip
OF_VALUES = ("It is {}.", "The value is {}.", "This gives {}.", "We get {}.", "{} because the rest follows.")
TAKEN_AWAY = (
    r"I doubt that the answer is $\boxed{{{}}}$.", r"It is not true that it is \boxed{{{}}}.",
    r"It is not \boxed{{{}}}.", r"<answer>not $\boxed{{{}}}$</answer>",
    "I doubt that the answer is {}.", "It is false that the answer is {}.",
    "It is not true that the answer is {}.", "I don't think the answer is {}.", "The answer is not {}.",
    "The answer isn't {}.", "It is unlikely that the answer is {}.",
    "Nobody would say that the answer is {}.", "The answer is {}. No, that is wrong.",
    "The answer is {}. They are wrong.", "<answer>not {}</answer>", "<answer>{} (wrong)</answer>",
    "<answer>{} is wrong</answer>", r"\boxed{{\text{{not }}{}}}", "The wrong answer is {}.",
    "<think>The answer is {}.", "<answer>anything but {}</answer>", "Is it {}?", "The answer is {}? No.",
    "I refuse to say {}.", "Die Antwort ist nicht {}.", "La respuesta no es {}.", "答案不是{}。",
    "الجواب ليس {}", "La réponse n'est pas {}.", "答えは{}ではありません。",
    "The answer is {}. Just kidding.",
    "The answer is {}, or is it?", "If only it were {}.", "I cannot determine whether it is {}.",
    "{}? Hardly.", "The answer is anything other than {}.",
    "It would be wrong to say that the answer is {}.",
    "There is no way the answer is {}.", "Nobody knows whether the answer is {}.", "No chance that it is {}.",
    "It is a myth that the answer is {}.", "I wish the answer were {}.", "Suppose the answer is {}.",
    "Some say that the answer is {}.", "The answer is {} if you ignore the last row; otherwise 999.",
    "The answer might be {}.", "The answer is far from {}.", "The answer is the opposite of {}.",
    "<answer>{}? I doubt it.</answer>", "The answer: {}. That is a lie.", "<answer>certainly not {}</answer>",
    "Why is the answer not {}?", "The answer cannot be {}.",
    "Never {}.", "I used to think {}, but no.", "<answer>no, not {}</answer>",
    "There is no reason why it is {}.",
    "I am unable to say whether the answer is {}.", "The answer is {}, which is false.",
    "<answer>maybe {}, maybe not</answer>",
    r"\boxed{{{}}} (not really)", "<answer>{} (I doubt it)</answer>", "<answer>{}</answer> (wrong)",
    r"$\boxed{{{}}}$ [false]", "The answer is {} (just kidding).",
    r"\boxed{{{}}} - wrong", r"\boxed{{{}}} (maybe)",
)  # fmt: skip
ALTERNATIVES = (
    "{} or {}", "either {} or {}", "{}, or maybe {}", "{} (or {})", "{} or else {}", r"{}\text{{ or }}{}",
    r"{}\text{{ or {}}}", "{} (but really {})", "{} vs {}", "{}, unless it is {}", r"{}\mbox{{ or }}{}",
    r"{}\ \mathrm{{or}}\ {}", "perhaps {}, perhaps {}", "{} and also {}",
)  # fmt: skip
RANGES = (
    "between {} and {}",
    "{} to {}",
    "from {} to {}",
    r"{}\text{{ to }}{}",
    "{} through {}",
    "{} ... {}",
)

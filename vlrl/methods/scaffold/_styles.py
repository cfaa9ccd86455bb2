"""Answer formats by name: what is asked for, and how the assistant's turn opens."""

from __future__ import annotations

from typing import NamedTuple


class Style(NamedTuple):
    """`instruction` follows the question; `prefix` opens the answer; `chat_template` replaces the family's own (for base models)."""

    instruction: str = ""
    prefix: str = ""
    chat_template: str = ""


# A base model has seen no chat markup. The vision spans are written as the Qwen families expect them.
BASE = (
    "{% for m in messages %}{{ '' if loop.first else '\n' }}{{ {'user': 'User: ', 'assistant': 'Assistant: '}.get(m['role'], '') }}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] in ['image', 'video'] %}<|vision_start|><|{{ c['type'] }}_pad|><|vision_end|>{% else %}{{ c['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '\nAssistant: ' }}{% endif %}"
)

STYLES = {
    "plain": Style(),
    "answer": Style("Give the final answer inside <answer> </answer> tags."),
    "think": Style("First reason inside <think> </think> tags, then give the final answer inside <answer> </answer> tags."),
    "think_open": Style("First reason inside <think> </think> tags, then give the final answer inside <answer> </answer> tags.", "<think>\n"),
    "no_think": Style("Answer at once, without any reasoning, inside <answer> </answer> tags."),
    "boxed": Style("Reason step by step, and put the final answer in \\boxed{}."),
    "json": Style('Reply with one JSON object of the form {"answer": ...} and nothing else.'),
    "base": Style("Give the final answer inside <answer> </answer> tags.", "", BASE),
}

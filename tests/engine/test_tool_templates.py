"""Chat templates that drop tools are found by trying them, and mended; whole ones are used as they are."""

import json
from dataclasses import replace

import engine_kit
import pytest

from vlrl.policy.tool_template import ToolTemplate
from vlrl.types import Prompt, Row

TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor "
    "%}<|im_start|>assistant\n"
)
SCHEMAS = (
    "{% if tools %}<|im_start|>system\n<tools>\n{% for t in tools %}{{ t | tojson }}\n{% endfor "
    "%}</tools><|im_end|>\n{% endif %}"
)
CALLS = "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
RESULTS = (
    "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>{{ m.content "
    "}}</tool_response><|im_end|>\n{% else %}"
)
WHOLE = (
    f"{SCHEMAS}{{% for m in messages %}}{RESULTS}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content "
    f"}}}}{CALLS}<|im_end|>\n{{% endif %}}{{% endfor %}}"
)
WHOLE += "<|im_start|>assistant\n"
XML = WHOLE.replace("<tool_call>\n{{ c.function | tojson }}", "<tool_call>\n<function={{ c.function.name }}>")
NO_RESULTS = WHOLE.replace(RESULTS, "{% if false %}{% else %}")
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% "
    "endfor %}"
) + TURNS
REFUSES_TOOL = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('what is a tool') }}{% endif "
    "%}{% "
    "endfor %}"
) + TURNS
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks. <|im_end|>",
            "parameters": {"type": "object", "properties": {}},
        },
    }
]


@pytest.fixture
def render():
    """(rendered text of a conversation with a tool, what the template does with tools) under a chat
    template."""

    def under(template, role="user"):
        policy = engine_kit.make_policy("text", kind="qwen3", layers=1)
        policy.encoder.processor.chat_template = template
        messages = (
            {"role": "user", "content": "Q"},
            {"role": "assistant", "content": "A"},
            {"role": "tool", "content": "R"},
        )
        messages = ({"role": "system", "content": "S"}, *messages) if role == "system" else messages
        return policy.render(
            Prompt(Row("r", "q"), messages, options={"tools": TOOLS})
        ), policy.encoder.tool_template

    return under


def test_a_whole_template_is_used(render):
    text, found = render(WHOLE)
    assert found == ToolTemplate(schemas=True, results=True, system=True)
    assert (
        text.count('"name": "look"') == 1
        and "<tool_response>R</tool_response>" in text
        and "# Tools" not in text
    )
    assert "Looks. < |im_end|>" in text, "a server's description ends no turn"


@pytest.mark.parametrize(
    ("template", "system"), [(TURNS, True), (XML, True), (REFUSES_TOOL, True), (NO_SYSTEM, False)]
)
def test_a_template_that_drops_tools_is_mended(render, template, system):
    text, found = render(template)
    assert (found.schemas, found.results, found.system) == (False, False, system)
    line = next(line for line in text.splitlines() if '"look"' in line)
    assert (
        json.loads(line)["function"]["name"] == "look"
        and text.count("# Tools") == 1
        and text.count('"look"') == 1
    )
    first = text.partition("<|im_end|>")[0]
    assert "# Tools" in first and first.startswith("<|im_start|>system" if system else "<|im_start|>user")
    assert "<|im_start|>user\nR<|im_end|>" in text and "tool\n" not in text.replace("tools", "")


def test_schemas_join_the_system_message(render):
    text, _ = render(TURNS, role="system")
    assert text.startswith("<|im_start|>system\nS\n\n# Tools") and text.count("<|im_start|>system") == 1


def test_results_alone_are_mended(render):
    text, found = render(NO_RESULTS)
    assert found == ToolTemplate(schemas=True, results=False, system=True)
    assert "<|im_start|>user\nR<|im_end|>" in text and "# Tools" not in text and '"look"' in text


def test_a_picture_of_a_tool_is_in_the_prompt(policy):
    prompt = engine_kit.make_prompt("Q")
    picture = engine_kit.Noise(1)
    more = (
        {"role": "assistant", "content": "A"},
        {"role": "tool", "content": [{"type": "image"}, {"type": "text", "text": "R"}]},
    )
    shown = replace(prompt, messages=(*prompt.messages, *more), images=(picture,), options={"tools": TOOLS})
    assert len(policy.encode(shown).features) == 1 and "look" in policy.render(shown)

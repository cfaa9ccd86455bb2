"""Prompt template `chat`: places of media, answer styles, and rows that are refused."""

import pytest
from PIL import Image
from vlrl_data.media.images import InMemoryImage
from vlrl_data.media.video import StoredVideo

from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.stages import PromptTemplate
from vlrl.types import Row

PICTURE = InMemoryImage(Image.new("RGB", (2, 2)))
OTHER = InMemoryImage(Image.new("RGB", (2, 2), "red"))
CLIP = StoredVideo("x.mp4")
IMAGE, VIDEO = {"type": "image"}, {"type": "video"}


def text(value):
    return {"type": "text", "text": value}


def ask(row, **options):
    return build(PromptTemplate, {"name": "chat", **options})(row)


@pytest.mark.parametrize(
    ("question", "images", "videos", "content"),
    [
        ("Q?", (), (), [text("Q?")]),
        ("Q?", (PICTURE,), (), [IMAGE, text("Q?")]),
        ("Q?", (PICTURE, OTHER), (CLIP,), [IMAGE, IMAGE, VIDEO, text("Q?")]),
        ("<image>Q?", (PICTURE,), (), [IMAGE, text("Q?")]),
        ("<image>\nQ?", (PICTURE,), (), [IMAGE, text("\nQ?")]),
        (
            "Is <image> like <image>?",
            (PICTURE, OTHER),
            (),
            [text("Is "), IMAGE, text(" like "), IMAGE, text("?")],
        ),
        ("Q <video>", (PICTURE,), (CLIP,), [IMAGE, text("Q "), VIDEO]),
        ("<image><video>", (PICTURE,), (CLIP,), [IMAGE, VIDEO]),
    ],
)
def test_where_media_go(question, images, videos, content):
    prompt = ask(Row("r", question, images=images, videos=videos))
    assert prompt.messages == ({"role": "user", "content": content},)
    assert (prompt.images, prompt.videos, prompt.prefix) == (images, videos, "")


@pytest.mark.parametrize(
    ("question", "images"),
    [("<image>", ()), ("<image><image>", (PICTURE,)), ("<image>", (PICTURE, OTHER)), ("<video>", (PICTURE,))],
)
def test_markers_must_fit(question, images):
    with pytest.raises(ValueError, match=r"row 'r7': \d <(image|video)> markers for \d"):
        ask(Row("r7", question, images=images))


@pytest.mark.parametrize(
    ("style", "words", "prefix"),
    [
        ("plain", "", ""),
        ("answer", "<answer>", ""),
        ("think", "<think>", ""),
        ("think_open", "<think>", "<think>\n"),
        ("boxed", r"\boxed{}", ""),
        ("json", "JSON", ""),
    ],
)
def test_styles(style, words, prefix):
    prompt = ask(Row("r", "Q?", choices=("red", "blue")), style=style)
    asked = prompt.messages[0]["content"][0]["text"]
    assert asked.startswith("Q?\nA. red\nB. blue") and words in asked and prompt.prefix == prefix


def test_base_template_renders_vision_spans():
    import jinja2

    prompt = ask(
        Row("r", "Q?", images=(PICTURE,)),
        style="base",
        system="S.",
        shots=[{"question": "1+1?", "answer": "2"}],
        instruction="",
    )
    template = jinja2.Environment().from_string(prompt.options["chat_template"])
    said = template.render(messages=prompt.messages, add_generation_prompt=True)
    assert (
        said
        == "S.\nUser: 1+1?\nAssistant: 2\nUser: <|vision_start|><|image_pad|><|vision_end|>Q?\nAssistant: "
    )


def test_system_shots_template_and_options():
    options = {
        "system": "Be brief.",
        "shots": [{"question": "a", "answer": "b"}],
        "template": "{instruction} {question}",
        "instruction": "Do:",
        "prefix": "So",
    }
    prompt = ask(Row("r", "Q {choices}?"), options={"enable_thinking": False}, **options)
    assert [m["role"] for m in prompt.messages] == ["system", "user", "assistant", "user"]
    assert prompt.messages[-1]["content"] == [text("Do: Q {choices}?")]
    assert prompt.prefix == "So" and prompt.options == {"enable_thinking": False}
    assert ask(Row("r", "Q", system="Mine."), system="Yours.").messages[0]["content"] == "Mine."


def test_per_task():
    options = {"style": "think", "tasks": {"easy": {"style": "plain"}}}
    assert "<think>" in str(ask(Row("r", "Q"), **options).messages)
    assert "<think>" not in str(ask(Row("r", "Q", task="easy"), **options).messages)


def test_conversations_keep_their_turns():
    turns = (
        {"role": "user", "content": "<image>One?"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "Two?"},
    )
    prompt = ask(Row("r", "", messages=turns, images=(PICTURE,)), instruction="Go.")
    assert [m["role"] for m in prompt.messages] == ["user", "assistant", "user"]
    assert prompt.messages[0]["content"] == [IMAGE, text("One?")] and prompt.messages[2]["content"] == [
        text("Two?"),
        text("\nGo."),
    ]
    bare = ask(Row("r", "", messages=({"role": "user", "content": "Hm?"},), images=(PICTURE,)))
    assert bare.messages[0]["content"] == [IMAGE, text("Hm?")]
    with pytest.raises(ValueError, match="no user turn"):
        ask(Row("r", "", messages=({"role": "assistant", "content": "x"},)))


def test_keys_tell_prompts_apart():
    row = Row("r", "Q", images=(PICTURE,))
    keys = {
        ask(row).key,
        ask(row, style="think").key,
        ask(row, prefix="x").key,
        ask(Row("r", "Q", images=(OTHER,))).key,
    }
    assert len(keys) == 4 and ask(row).key == ask(row).key


@pytest.mark.parametrize(
    "options",
    [
        {"style": "thnk"},
        {"tasks": {"a": {"stile": "x"}}},
        {"tasks": {"a": {"style": "x"}}},
        {"shots": [{"q": "x"}]},
        {"stile": "x"},
    ],
)
def test_mistakes(options):
    with pytest.raises(ConfigError):
        build(PromptTemplate, {"name": "chat", **options})

"""Encoder, templates, stop tokens and vision spans under the released vocabularies: the ids are the released
tokenizers' own.

The reduced tokenizers of tests/policy/golden run always; the whole ones where `scripts/make_golden_tokens.py`
has fetched them.
"""

from __future__ import annotations

import unicodedata
from types import SimpleNamespace

import golden_kit
import pytest
from golden_kit import NAMES, TEMPLATES, golden
from hypothesis import assume, given
from hypothesis import strategies as st
from samples import Flicker, Noise

from vlrl.methods.common.conversation import tool_reply_ids
from vlrl.methods.common.demonstrations import expert_rollout
from vlrl.plugins.registry import build
from vlrl.policy import Family, Policy
from vlrl.policy.encoder import PromptEncoder
from vlrl.policy.tiny import TEMPLATE
from vlrl.types import Prompt, Row

# By hand, from the releases' model cards and configs: name -> (end of a turn, end of a document)
STOPS = {
    "qwen2_5": ("<|im_end|>", 151645, "<|endoftext|>", 151643),
    "qwen3": ("<|im_end|>", 151645, "<|endoftext|>", 151643),
    "gemma3": ("<end_of_turn>", 106, "<eos>", 1),
    "llama3": ("<|eot_id|>", 128009, "<|end_of_text|>", 128001),
    "smollm2": ("<|im_end|>", 2, "<|endoftext|>", 0),
}
SINGLE = {  # texts of one token each, which decoding keeps
    "qwen2_5": {"<tool_call>": 151657, "</tool_call>": 151658},
    "qwen3": {
        "<tool_call>": 151657,
        "</tool_call>": 151658,
        "<tool_response>": 151665,
        "<think>": 151667,
        "</think>": 151668,
    },
}
CASES = [(name, size) for name in NAMES for size in ("reduced", "whole")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizers")
    return {name: golden_kit.write_reduced(name, root / name) for name in NAMES}


@pytest.fixture(scope="module")
def encoders(folders):
    """(name, "reduced" | "whole") to a text family's encoder; skips where the whole tokenizer is not
    there."""
    made = {}

    def get(name: str, size: str = "reduced", fresh: bool = False):
        folder = folders[name] if size == "reduced" else golden_kit.whole_folder(name)
        if folder is None:
            pytest.skip(f"the whole tokenizer is not there: python scripts/make_golden_tokens.py {name}")
        if fresh:
            return PromptEncoder(build(Family, {"name": "text", "tiny": {}}), golden_kit.load(folder))
        if (name, size) not in made:
            made[name, size] = get(name, size, fresh=True)
        return made[name, size]

    return get


def prompt_of(messages, **fields) -> Prompt:
    return Prompt(Row("r", "q"), tuple(messages), **fields)


def test_all_five_releases_are_there():
    assert sorted(STOPS) == NAMES
    sizes = {name: golden(name)["size"] for name in NAMES}
    assert sizes == {"qwen2_5": 151665, "qwen3": 151669, "gemma3": 262145, "llama3": 128256, "smollm2": 49152}


@pytest.mark.parametrize(("name", "size"), CASES)
def test_texts_have_the_released_ids(encoders, name, size):
    encoder, file = encoders(name, size), golden(name)
    for key, text in file["texts"].items():
        assert encoder.encode_text(text) == file["ids"][f"text/{key}"], key
        assert encoder.decode(encoder.encode_text(text)) == (
            unicodedata.normalize("NFC", text) if name.startswith("qwen") else text
        )


@pytest.mark.parametrize(("name", "size"), CASES)
def test_prompts_have_the_released_ids(encoders, name, size):
    encoder, file = encoders(name, size), golden(name)
    for key, messages in file["chats"].items():
        ids = encoder.encode(prompt_of(messages), None).ids
        assert ids == file["ids"][f"chat/{key}"], key
        if key != "hostile":
            own = encoder.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=True
            )
            assert ids == own["input_ids"], key


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "smollm2"])
def test_the_template_of_tiny_models_is_that_of_the_releases(encoders, name):
    encoder = encoders(name, fresh=True)
    encoder.tokenizer.chat_template = TEMPLATE
    for key in (
        "question",
        "turns",
        "hostile",
    ):  # all with a system message: the releases add one of their own
        assert (
            encoder.encode(prompt_of(golden(name)["chats"][key]), None).ids
            == golden(name)["ids"][f"chat/{key}"]
        )


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_of_a_question_stay_text(encoders, name):
    """As many control tokens in the prompt as the template writes, whatever the question says."""
    encoder, file = encoders(name), golden(name)
    control = set(encoder.tokenizer.all_special_ids) | {
        i for i, token in encoder.tokenizer.added_tokens_decoder.items() if token.special
    }

    def count(key: str) -> int:
        return sum(i in control for i in encoder.encode(prompt_of(file["chats"][key]), None).ids)

    assert count("hostile") == count("question") > 0
    assert not control & set(
        encoder.encode_text("".join(token for token, *_ in STOPS.values()) + file["texts"]["hostile"])
    )


# --- stop tokens --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "size"), CASES)
def test_a_turn_ends_with_the_released_token(encoders, name, size):
    encoder = encoders(name, size)
    turn_end, number, _, _ = STOPS[name]
    assert (encoder.tokenizer.eos_token, encoder.eos_id) == (turn_end, number) and number in encoder.stop_ids


@pytest.mark.parametrize("name", NAMES)
def test_a_tokenizer_whose_eos_ends_documents_gets_the_end_of_turns(encoders, name, folders):
    """Gemma 3's hub files say `<eos>`, base models `<|end_of_text|>` or `<|endoftext|>`: an answer must not
    be trained to end with it."""
    _, number, document_end, other = STOPS[name]
    tokenizer = golden_kit.load(folders[name])
    tokenizer.eos_token = document_end
    encoder = PromptEncoder(build(Family, {"name": "text", "tiny": {}}), tokenizer)
    assert encoder.eos_id == number and encoder.stop_ids == tuple(sorted((number, other)))
    policy = SimpleNamespace(
        encode_text=encoder.encode_text, tokenizer=tokenizer, spaces=lambda prompt: (), version=0
    )
    expert = expert_rollout(
        prompt_of(golden(name)["chats"]["question"]), "12", SimpleNamespace(policy=policy)
    )
    assert expert.ids == [*encoder.encode_text("12"), number] and encoder.decode(expert.ids) == "12"


@pytest.mark.parametrize("template", ["", "{{ messages[0].content }}", "{{ raise_exception('no') }}"])
def test_without_a_turns_end_the_tokenizers_own_eos_stays(folders, template):
    tokenizer = golden_kit.load(folders["gemma3"])
    tokenizer.eos_token, tokenizer.chat_template = "<eos>", template or None
    encoder = PromptEncoder(build(Family, {"name": "text", "tiny": {}}), tokenizer)
    assert (encoder.eos_id, encoder.stop_ids) == (1, (1,))


# --- turns and tools ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "chat"), [(name, "turns") for name in NAMES] + [("qwen2_5", "tool"), ("qwen3", "tool")]
)
@pytest.mark.parametrize("ended", [True, False])
def test_a_conversation_in_pieces_has_the_ids_of_the_whole(encoders, name, chat, ended):
    """Prompt, sampled turn, reply: joined token by token, they are what the release's template writes for the
    whole conversation."""
    encoder, file = encoders(name), golden(name)
    messages = file["chats"][chat]
    prompt, turn, reply = prompt_of(messages[:-2]), messages[-2], messages[-1]
    sampled = [
        *encoder.encode_text(turn["content"]),
        *([encoder.eos_id] if ended else []),
    ]  # a stop string ends a turn without the token
    policy = SimpleNamespace(render=encoder.render, tokenizer=encoder.tokenizer, forbidden_ids=())
    ids = [*encoder.encode(prompt, None).ids, *sampled, *tool_reply_ids(policy, prompt, [reply], sampled[-1])]
    assert ids == file["ids"][f"chat/{chat}"]


@pytest.mark.parametrize(
    ("name", "tag", "number"),
    [(name, tag, number) for name, tags in SINGLE.items() for tag, number in tags.items()],
)
def test_tags_are_single_tokens_that_decoding_keeps(encoders, name, tag, number):
    encoder = encoders(name)
    assert encoder.encode_text(f"{tag}\n7")[0] == number
    assert encoder.decode([number, *encoder.encode_text("7"), encoder.eos_id]) == f"{tag}7"
    opened = encoder.encode(prompt_of(golden(name)["chats"]["question"], prefix=f"{tag}\n"), None).ids
    assert opened == [*golden(name)["ids"]["chat/question"], number, *encoder.encode_text("\n")]


# --- vision spans -------------------------------------------------------------------------------------------

# By hand: family -> (tokenizer, ids that stand for media or frame them, rows of the release's output layer)
VISION = {
    "qwen2_5_vl": ("qwen2_5", set(range(151652, 151657))),
    "qwen3_vl": ("qwen3", set(range(151652, 151657))),
    "gemma3": ("gemma3", {255999, 256000, 262144}),
}


@pytest.fixture
def vision_policy(folders, monkeypatch):
    def make(family: str) -> Policy:
        name, _ = VISION[family]

        def released(*args, **kwargs):
            tokenizer = golden_kit.load(folders[name])
            tokenizer.chat_template = TEMPLATES.get(name, TEMPLATE)
            return tokenizer

        monkeypatch.setattr("vlrl.policy.families.vision.qwen_tokenizer", released)
        sizes = {
            "hidden": 32,
            "layers": 1,
            "intermediate": 32,
            "vision_layers": 1,
            "rows": golden(name)["rows"],
        }
        return Policy(
            build(Family, {"name": family, "tiny": sizes, "chat_template": TEMPLATES.get(name, TEMPLATE)})
        )

    return make


@pytest.mark.parametrize("family", VISION)
def test_an_image_is_the_released_span(vision_policy, family):
    name, media = VISION[family]
    file, policy = golden(name), vision_policy(family)
    system, user = file["chats"]["question"]
    shown = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": user["content"]}]}
    image = Noise(1, (56, 56))
    system = {"role": "system", "content": [{"type": "text", "text": system["content"]}]}
    encoded = policy.encode(prompt_of((system, shown), images=(image,)))
    assert encoded.ids == file["ids"]["chat/image"]
    embed = policy.tokenizer.convert_tokens_to_ids(policy.family.embed_token_of("image"))
    assert [i for i, kind in zip(encoded.ids, encoded.types, strict=True) if kind] == [
        embed
    ] * 4 and encoded.ids.count(embed) == 4
    assert media <= set(policy.forbidden_ids)
    assert not media & set(
        policy.encode_text("<|vision_start|><|image_pad|><start_of_image><image_soft_token><end_of_image>")
    )


def test_a_video_is_the_released_span(vision_policy):
    """4 frames of 84 x 56 pixels: 2 moments of 3 x 2 patches between the marks of an image."""
    file, policy = golden("qwen2_5"), vision_policy("qwen2_5_vl")
    system, user = (
        {"role": m["role"], "content": [{"type": "text", "text": m["content"]}]}
        for m in file["chats"]["question"]
    )
    user["content"].insert(0, {"type": "video"})
    encoded = policy.encode(prompt_of((system, user), videos=(Flicker(1),)))
    image = file["ids"]["chat/image"]
    begin = image.index(151655)
    assert encoded.ids == [*image[:begin], *[151656] * 12, *image[begin + 4 :]] and image[
        begin - 1 : begin + 5 : 5
    ] == [151652, 151653]


@pytest.mark.parametrize("family", VISION)
def test_the_models_ids_are_those_of_the_released_configs(vision_policy, family):
    """transformers' config classes have the releases' ids as defaults."""
    config = vision_policy(family).model.config
    default = type(config)()
    names = [
        field
        for field in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
        if hasattr(default, field)
    ]
    names += [
        field
        for field in ("boi_token_index", "eoi_token_index", "image_token_index")
        if hasattr(default, field)
    ]
    assert len(names) >= 3
    assert {field: getattr(config, field) for field in names} == {
        field: getattr(default, field) for field in names
    }


# --- any text -----------------------------------------------------------------------------------------------

MARKS = st.sampled_from(
    [token for token, *_ in STOPS.values()]
    + ["<|image_pad|>", "<bos>", "<|begin_of_text|>", "<|", "|>", " ", "\n", "�", "é"]
)
LOST = {
    4,
    6,
    19,
    20,
    22,
    29,
    *range(0x40000, 0xC0000),
}  # SmolLM2's vocabulary has no token for these bytes and for 0xF1, 0xF2: it drops them
ANY_TEXT = st.lists(
    st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), MARKS), max_size=6
).map("".join)


@pytest.mark.parametrize("name", NAMES)
@given(text=ANY_TEXT)
def test_any_text_is_ordinary_tokens_and_comes_back(encoders, name, text):
    encoder = encoders(name)
    assume(name != "smollm2" or not LOST & set(map(ord, text)))
    ids = encoder.encode_text(text)
    special = {i for i, token in encoder.tokenizer.added_tokens_decoder.items() if token.special}
    assert not special & set(ids)
    wanted = unicodedata.normalize("NFC", text) if name.startswith("qwen") else text
    assert encoder.decode(ids) == (wanted.replace("▁", " ") if name == "gemma3" else wanted)
    prompt = prompt_of([{"role": "user", "content": text}])
    assert [i for i in encoder.encode(prompt, None).ids if i in special] == [
        i for i in encoder.encode(prompt_of([{"role": "user", "content": "x"}]), None).ids if i in special
    ]

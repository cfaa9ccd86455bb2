"""Families whose records hold chat messages."""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from typing import Any

from vlrl.types import RowError
from vlrl_data.record_families.answers import (
    BOX_CORNERS,
    letter_of,
    numbers_of,
    options_of,
    parse_answer,
    read_answer,
)
from vlrl_data.record_families.base import (
    FAMILIES,
    Draft,
    Record,
    as_container,
    as_list,
    chat_draft,
    has,
    is_chat,
    record_family,
    with_media,
)


@record_family(
    "vlrl",
    (
        "id",
        "question",
        "answer",
        "images",
        "videos",
        "audios",
        "audio",
        "choices",
        "task",
        "target",
        "system",
        "messages",
        "rewards",
        "meta",
    ),
)
class Vlrl:
    """Our own format: the fields of `Row`."""

    @staticmethod
    def why(record: Record) -> str:
        known = FAMILIES["vlrl"].known
        extra = [name for name in record if name not in known]
        return (
            "it has `question` (or `messages` with `id`) and no field that is not ours"
            if not extra and ("question" in record)
            else ""
        )

    @staticmethod
    def draft(record: Record) -> Draft:
        known = FAMILIES["vlrl"].known
        values = {name: value for name, value in record.items() if name in known and value is not None}
        if (one := values.pop("audio", None)) is not None:
            values.setdefault("audios", one)
        for name in {"images", "videos", "audios", "messages", "rewards", "meta"} & values.keys():
            values[name] = as_container(values[name])
        for name in {"images", "videos", "audios"} & values.keys():
            values[name] = tuple(as_list(values[name]))
        for name in {"messages", "rewards"} & values.keys():
            values[name] = tuple(values[name]) if isinstance(values[name], list) else values[name] or ()
        if isinstance(values.get("choices"), list):
            values["choices"] = tuple(values["choices"])
        elif isinstance(values.get("choices"), (str, Mapping)):
            choices, keys = options_of(values["choices"])
            values |= {"choices": choices, "answer": letter_of(values.get("answer"), keys)}
        return values


@record_family("mm_eureka", ("id", "message", "answer"))
class MMEureka:
    """MM-EUREKA, lmm-r1, R1-Reward: `message` is a JSON string of chat messages with file:// images; `answer`
    may be a list of one answer."""

    @staticmethod
    def why(record: Record) -> str:
        return (
            "its `message` is a JSON string of chat messages"
            if isinstance(record.get("message"), str) and has(record, "answer")
            else ""
        )

    @staticmethod
    def draft(record: Record) -> Draft:
        draft = chat_draft(json.loads(record["message"]))
        seen = "images" in draft or "videos" in draft
        gold = record["answer"]
        only = gold[0] if isinstance(gold, list) and len(gold) == 1 else gold
        return draft | {"answer": parse_answer(only, seen), "id": record.get("id")}


VERL_FIELDS = (
    "prompt",
    "question",
    "problem",
    "images",
    "videos",
    "audios",
    "data_source",
    "reward_model",
    "extra_info",
    "ability",
    "target",
)


@record_family("time_r1", VERL_FIELDS)
class TimeR1:
    """Time-R1's news in verl's columns: the gold answer maps one, two or three events to dates, or holds
    a date and the year or month that the text leaves out. `meta.hard`: an event is marked difficult."""

    @staticmethod
    def why(record: Record) -> str:
        model = record.get("reward_model")
        gold = model.get("ground_truth") if isinstance(model, Mapping) else None
        dated = isinstance(gold, Mapping) and any(gold.get(key) for key in EVENT_DATES)
        return "its `ground_truth` has the dates of events" if dated else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        draft, gold = VerlRecords.draft(record), record["reward_model"]["ground_truth"]
        dates = [gold[key] for key in EVENT_DATES if gold.get(key)]
        masked, marks = gold.get("masked_entity"), gold.get("difficulty") or {}
        easy = marks.get("events_difficulty") or [marks.get("alpha") in (None, 0.1)]
        answer = [*dates, masked] if masked else dates if len(dates) > 1 else dates[0]
        task = "entity" if masked else ("date", "date_gap", "event_order")[len(dates) - 1]
        return draft | {"answer": answer, "task": task, "meta": draft["meta"] | {"hard": not all(easy)}}


@record_family("reasonrank", VERL_FIELDS)
class ReasonRank:
    """ReasonRank's passages in verl's columns: the best order as places ("[2] > [1]") in `ground_truth`, the
    relevant passages as documents in `extra_info`. `meta.relevant` are their places in the prompt."""

    @staticmethod
    def why(record: Record) -> str:
        extra = record.get("extra_info")
        fits = isinstance(extra, Mapping) and has(extra, "initial_list", "relevant_docids")
        return "its `extra_info` has `initial_list` and `relevant_docids`" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        draft, extra = VerlRecords.draft(record), record["extra_info"]
        wanted = set(extra["relevant_docids"])
        places = [str(place) for place, name in enumerate(extra["initial_list"], 1) if name in wanted]
        order = re.findall(r"\d+", str(record["reward_model"]["ground_truth"]))
        meta = draft["meta"] | {"relevant": places}
        return draft | {"answer": order, "task": "ranking", "meta": meta}


class _PlainUnpickler(pickle.Unpickler):
    """Reads pickles of containers, text and numbers, and calls nothing."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("builtins", "__builtin__") and name == "set":
            return set
        raise pickle.UnpicklingError(f"it holds {module}.{name}")


def unpickled(data: bytes) -> Any:
    """The value of a pickle of containers, text and numbers; sets are sorted lists. Raises RowError for any
    other."""
    try:
        return _without_sets(_PlainUnpickler(io.BytesIO(data)).load())
    except Exception as error:  # a broken pickle raises whatever its instructions lead to
        raise RowError(f"its pickled `ground_truth` is not plain data: {error}") from None


def _without_sets(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_sets(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return [_without_sets(item) for item in sorted(value)]
    return [_without_sets(item) for item in value] if isinstance(value, (list, tuple)) else value


@record_family("codev_r1", VERL_FIELDS)
class PickledGolds:
    """CodeV-R1's problems in verl's columns: the golden modules, by name, are pickled in `ground_truth`."""

    @staticmethod
    def why(record: Record) -> str:
        model = record.get("reward_model")
        gold = model.get("ground_truth") if isinstance(model, Mapping) else None
        return "its `ground_truth` is pickled" if isinstance(gold, bytes) else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        gold = unpickled(record["reward_model"]["ground_truth"])
        plain = {**record, "reward_model": {**record["reward_model"], "ground_truth": ""}}
        return VerlRecords.draft(plain) | {"answer": gold}


EVENT_DATES = ("event_pub_date", "event1_pub_date", "event2_pub_date", "event3_pub_date")


@record_family("verl", VERL_FIELDS)
class VerlRecords:
    """verl: `prompt` messages (in forks `question` or `problem`), `reward_model.ground_truth`. `extra_info`
    goes to `meta`. A demonstration may be a message in `target` (LUFFY), the gold answer, or a list of
    accepted ones, in `ground_truth.target` (Search-R1, RLVR-Decomposed)."""

    @staticmethod
    def why(record: Record) -> str:
        if not isinstance(record.get("reward_model"), Mapping):
            return ""
        asked = next((name for name in ("prompt", "question", "problem") if name in record), "")
        kind = "`prompt` messages" if asked == "prompt" else f"`{asked}`"
        return f"it has {kind} and `reward_model.ground_truth`" if asked else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        extra = record.get("extra_info") or {}
        index = extra.get("index") if isinstance(extra, Mapping) else None
        source = record.get("data_source", "verl")
        name = f"{source}-{extra.get('split', '')}-{index}" if index is not None else None
        task = str(record.get("ability") or record.get("data_source") or "default")
        text = next((record[key] for key in ("question", "problem") if key in record), None)
        asked = chat_draft(record["prompt"]) if "prompt" in record or text is None else {"question": text}
        draft, seen = with_media(asked, record)
        gold = record["reward_model"].get("ground_truth")
        accepted = gold.get("target", gold) if isinstance(gold, Mapping) else gold
        meta = draft.get("meta", {}) | ({"extra_info": extra} if extra else {})
        found = {"answer": parse_answer(accepted, seen), "id": name, "task": task, "meta": meta}
        target = record.get("target")
        demonstration = str(target[-1]["content"]) if isinstance(target, list) and is_chat(target) else target
        return draft | found | ({"target": demonstration} if isinstance(demonstration, str) else {})


@record_family("orz", ("",))
class OpenReasonerZero:
    """Open-Reasoner-Zero: a list of two turns of {from, value}, the second with `ground_truth.value`."""

    @staticmethod
    def why(record: Record) -> str:
        turns = record.get("")
        fits = (
            isinstance(turns, (list, tuple))
            and len(turns) == 2
            and all(isinstance(turn, Mapping) for turn in turns)
            and has(turns[0], "from", "value")
            and "ground_truth" in turns[1]
        )
        return "its records are lists of a question and a `ground_truth`" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        asked, gold = record[""]
        return {"question": asked["value"], "answer": parse_answer(gold["ground_truth"]["value"], False)}


@record_family(
    "btl_ui", ("id", "image", "images", "image_sizes", "max_pixels", "messages", "solution", "bbox")
)
class BtlUi:
    """BTL-UI: ms-swift's `messages`, the right step as JSON in `solution` ({Action: {function, ...}}, or
    {point_2d}, which is a tap), and the `bbox` of its target in pixels, empty where there is none."""

    @staticmethod
    def why(record: Record) -> str:
        fits = is_chat(record.get("messages")) and has(record, "solution", "bbox", "image_sizes")
        return "it has `messages`, `solution`, `bbox` and `image_sizes`" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        step = json.loads(record["solution"])[0]
        action = dict(step.get("Action") or {"function": "Tap"})
        answer = {"action": action.pop("function"), **action}
        if box := as_list(record["bbox"]):
            answer["box"] = box
        draft, _ = with_media(chat_draft(record["messages"]), record)
        return draft | {"id": record.get("id"), "answer": answer, "task": "gui"}


@record_family("ms_swift", ("messages", "images", "videos", "audios", "objects", "solution", "answer", "id"))
class MsSwift:
    """ms-swift: `messages` ending in the assistant's answer (or `solution` beside them), media lists,
    `objects` for grounding."""

    @staticmethod
    def why(record: Record) -> str:
        return "it has `messages` of {role, content}" if is_chat(record.get("messages")) else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        messages, objects = list(record["messages"]), record.get("objects") or {}
        filled = [
            dict(turn, content=fill_objects(str(turn["content"]), objects))
            if isinstance(turn["content"], str)
            else turn
            for turn in messages
        ]
        reply = filled[-1]["content"] if filled[-1]["role"] == "assistant" else None
        gold = next((record[key] for key in ("solution", "answer") if record.get(key) is not None), reply)
        draft, seen = with_media(chat_draft(filled), record)
        answer = objects["bbox"] if objects.get("bbox") and gold is reply else parse_answer(gold, seen)
        answer = (
            answer[0]
            if isinstance(answer, list) and len(answer) == 1 and isinstance(answer[0], list)
            else answer
        )
        units = {"norm1000": "per_mille", "norm1": "unit"}.get(str(objects.get("bbox_type")), "original")
        target = reply if isinstance(reply, str) else ""
        return draft | {"answer": answer, "target": target, "id": record.get("id"), "units": units}


@record_family("bare_messages", ("",))
class BareMessages:
    """A list of {role, content} and nothing else, as safety benchmarks are kept (HEx-PHI with replies):
    read as `ms_swift` reads its `messages`."""

    @staticmethod
    def why(record: Record) -> str:
        return "it is a list of {role, content}" if is_chat(record.get("")) else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        return MsSwift.draft({"messages": record[""]})


@record_family("lisa", ("id", "image", "conversations", "solution"))
class Lisa:
    """Visual-RFT's LISA grounding: images as <img>path</img> in the text, box corners in thousandths of the
    sides."""

    @staticmethod
    def why(record: Record) -> str:
        turns = record.get("conversations")
        return (
            "its `conversations` hold <img>path</img>"
            if turns and Llava.why(record) and "<img>" in str(turns[0]["value"])
            else ""
        )

    @staticmethod
    def draft(record: Record) -> Draft:
        draft = Llava.draft(record)
        paths = re.findall(r"<img>(.*?)</img>", draft["question"])
        corners = BOX_CORNERS.search(str(draft["answer"]))
        question = re.sub(r"<img>.*?</img>", "<image>", draft["question"])
        units = {"answer": numbers_of(corners), "units": "per_mille"} if corners else {}
        return draft | {"question": question, "images": paths, "task": "grounding"} | units


@record_family(
    "llava",
    (
        *("id", "image", "images", "video", "videos", "audio", "audios"),
        *("conversations", "accu_reward_method", "solution"),
    ),
)
class Llava:
    """LLaVA-style, VLM-R1 (REC and OVD too): `conversations` of {from, value}; the last answer is the gold
    answer."""

    @staticmethod
    def why(record: Record) -> str:
        turns = record.get("conversations")
        fits = (
            isinstance(turns, (list, tuple))
            and turns
            and all(isinstance(turn, Mapping) and has(turn, "from", "value") for turn in turns)
        )
        return "it has `conversations` of {from, value}" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        roles = {
            "human": "user",
            "user": "user",
            "gpt": "assistant",
            "assistant": "assistant",
            "system": "system",
        }
        turns = [
            {"role": roles.get(str(turn["from"]), str(turn["from"])), "content": turn["value"]}
            for turn in record["conversations"]
        ]
        gold = record.get("solution", turns[-1]["content"] if turns[-1]["role"] == "assistant" else None)
        target = str(turns[-1]["content"]) if turns[-1]["role"] == "assistant" else ""
        draft, seen = with_media(chat_draft(turns), record)
        draft |= {"id": record.get("id"), "target": target} | read_answer(gold, seen)
        if method := record.get("accu_reward_method"):
            draft["task"] = str(method)
        return draft if draft.get("audios") else without_sound_track(draft)


SOUND_TRACK = "`<audio>` marks the sound of the record's own video, which is left out"


def without_sound_track(draft: Draft) -> Draft:
    """The draft of a record with videos and no sounds (R1-Omni), without markers of the videos' sound."""
    question = str(draft.get("question", ""))
    if not draft.get("videos") or "<audio>" not in question:
        return draft
    guessed = (*draft.get("guessed", ()), SOUND_TRACK)
    return draft | {"question": re.sub(r"<audio>\n?", "", question), "guessed": guessed}


def fill_objects(text: str, objects: Mapping[str, Any]) -> str:
    """ms-swift's <bbox> and <ref-object> placeholders, replaced by the boxes and names in order."""
    for tag, values in (("<bbox>", objects.get("bbox")), ("<ref-object>", objects.get("ref"))):
        for value in values or ():
            text = text.replace(tag, str(value), 1)
    return text

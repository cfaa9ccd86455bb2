"""Families whose records hold chat messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from vlrl_data.record_families.answers import BOX_CORNERS, numbers_of, parse_answer
from vlrl_data.record_families.base import (
    FAMILIES,
    Draft,
    Record,
    as_list,
    chat_draft,
    has,
    is_chat,
    media_columns,
    record_family,
)
from vlrl_data.validation import is_box, is_labelled_boxes


@record_family(
    "vlrl",
    (
        "id",
        "question",
        "answer",
        "images",
        "videos",
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
        values = {
            key: value for key, value in record.items() if key in FAMILIES["vlrl"].known and value is not None
        }
        for name in ("images", "videos"):
            if name in values:
                values[name] = tuple(as_list(values[name]))
        return values | {
            name: tuple(values[name])
            for name in ("choices", "messages", "rewards")
            if isinstance(values.get(name), list)
        }


@record_family("mm_eureka", ("id", "message", "answer"))
class MMEureka:
    """MM-EUREKA and lmm-r1: `message` is a JSON string of chat messages with file:// images."""

    @staticmethod
    def why(record: Record) -> str:
        return (
            "its `message` is a JSON string of chat messages"
            if isinstance(record.get("message"), str) and has(record, "answer")
            else ""
        )

    @staticmethod
    def draft(record: Record) -> Draft:
        return chat_draft(json.loads(record["message"])) | {
            "answer": parse_answer(record["answer"]),
            "id": record.get("id"),
        }


@record_family(
    "verl", ("prompt", "images", "videos", "audios", "data_source", "reward_model", "extra_info", "ability")
)
class Verl:
    """verl: `prompt` messages, `reward_model.ground_truth`. `extra_info` goes to `meta`."""

    @staticmethod
    def why(record: Record) -> str:
        model = record.get("reward_model")
        return (
            "it has `prompt` messages and `reward_model.ground_truth`"
            if has(record, "prompt") and isinstance(model, Mapping)
            else ""
        )

    @staticmethod
    def draft(record: Record) -> Draft:
        extra = record.get("extra_info") or {}
        index = extra.get("index") if isinstance(extra, Mapping) else None
        source = record.get("data_source", "verl")
        name = f"{source}-{extra.get('split', '')}-{index}" if index is not None else None
        task = str(record.get("ability") or record.get("data_source") or "default")
        answer = parse_answer(record["reward_model"].get("ground_truth"))
        meta = {"extra_info": extra} if extra else {}
        return (
            chat_draft(record["prompt"])
            | media_columns(record)
            | {"answer": answer, "id": name, "task": task, "meta": meta}
        )


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
        answer = objects["bbox"] if objects.get("bbox") and gold is reply else parse_answer(gold)
        answer = (
            answer[0]
            if isinstance(answer, list) and len(answer) == 1 and isinstance(answer[0], list)
            else answer
        )
        units = {"norm1000": "per_mille", "norm1": "unit"}.get(str(objects.get("bbox_type")), "original")
        target = reply if isinstance(reply, str) else ""
        return (
            chat_draft(filled)
            | media_columns(record)
            | {"answer": answer, "target": target, "id": record.get("id"), "units": units}
        )


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
    "llava", ("id", "image", "images", "video", "videos", "conversations", "accu_reward_method", "solution")
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
        answer = parse_answer(gold)
        task = str(
            record.get("accu_reward_method")
            or ("grounding" if is_box(answer) else "detection" if is_labelled_boxes(answer) else "default")
        )
        return (
            chat_draft(turns)
            | media_columns(record)
            | {"id": record.get("id"), "answer": answer, "target": target, "task": task}
        )


def fill_objects(text: str, objects: Mapping[str, Any]) -> str:
    """ms-swift's <bbox> and <ref-object> placeholders, replaced by the boxes and names in order."""
    for tag, values in (("<bbox>", objects.get("bbox")), ("<ref-object>", objects.get("ref"))):
        for value in values or ():
            text = text.replace(tag, str(value), 1)
    return text

"""Families whose records hold a problem and its solution in columns."""

from __future__ import annotations

import re
from typing import Any

from vlrl_data.record_families.answers import parse_answer
from vlrl_data.record_families.base import (
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


@record_family("jigsaw_r1", ("", "image", "path"))
class JigsawR1:
    """Jigsaw-R1: a list of image paths. The row builder makes a puzzle over each image (`needs_puzzle`)."""

    @staticmethod
    def why(record: Record) -> str:
        return "its records are bare image paths" if set(record) == {""} else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        return {"images": [record[""]], "question": "", "task": "jigsaw", "needs_puzzle": True}


@record_family(
    "video_r1",
    ("problem_id", "problem", "data_type", "problem_type", "options", "solution", "path", "process"),
)
class VideoR1:
    """Video-R1-260k and COT-165k."""

    @staticmethod
    def why(record: Record) -> str:
        return (
            "it has `problem`, `data_type`, `problem_type` and `path`"
            if has(record, "problem", "data_type", "problem_type", "path")
            else ""
        )

    @staticmethod
    def draft(record: Record) -> Draft:
        kind, path = str(record["data_type"]), record["path"]
        if kind not in ("image", "video"):
            raise ValueError(f"data_type {kind!r} is neither image nor video")
        target = (
            "\n".join(str(record[key]).strip() for key in ("process", "solution") if record.get(key))
            if record.get("process")
            else ""
        )
        choices = tuple(
            re.sub(r"^\(?[A-Z][.)]\s*", "", str(option)) for option in as_list(record.get("options"))
        )
        return {
            "id": f"video_r1-{record['problem_id']}" if record.get("problem_id") is not None else None,
            "question": record["problem"],
            "answer": parse_answer(record.get("solution")),
            f"{kind}s": [path] if isinstance(path, str) else as_list(path),
            "choices": choices,
            "task": str(record["problem_type"]).strip().lower().replace(" ", "_").replace("-", "_"),
            "target": target,
        }


def task_of(answer: Any) -> str:
    """The task that a gold answer implies: grounding for one box, detection for labelled boxes, else
    default."""
    return "grounding" if is_box(answer) else "detection" if is_labelled_boxes(answer) else "default"


@record_family("arft", ("id", "image_path", "problem", "solution"))
class Arft:
    """Visual-ARFT: `image_path`, `problem`, `solution`."""

    @staticmethod
    def why(record: Record) -> str:
        return (
            "it has `image_path`, `problem` and `solution`"
            if has(record, "image_path", "problem", "solution")
            else ""
        )

    @staticmethod
    def draft(record: Record) -> Draft:
        return two_columns(record, "problem", "solution") | {"images": as_list(record["image_path"])}


@record_family("visual_rft", ("id", "image", "problem", "solution"))
class VisualRFT:
    """Visual-RFT detection: `solution` is <answer>[{'Position': [...], 'Confidence': 1}]</answer>. Its other
    tasks are read as `r1_v`."""

    @staticmethod
    def why(record: Record) -> str:
        fits = has(record, "image", "problem", "solution") and "'Position'" in str(record["solution"])
        return "it has `image`, `problem` and a `solution` with 'Position'" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        return two_columns(record, "problem", "solution") | {"task": "detection"}


@record_family("r1_v", ("id", "image", "images", "problem", "solution"))
class R1V:
    """R1-V, CLEVR, GEOQA, Visual-RFT classification: `image`, `problem`, `solution`."""

    @staticmethod
    def why(record: Record) -> str:
        fits = has(record, "problem", "solution") and ("image" in record or "images" in record)
        return "it has `image`, `problem` and `solution`" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        return two_columns(record, "problem", "solution")


@record_family("easyr1", ("id", "problem", "answer", "images", "videos"))
class EasyR1:
    """EasyR1, PAPO, geometry3k, ViRL39K: `problem` with markers, `answer`, `images` or `videos`."""

    @staticmethod
    def why(record: Record) -> str:
        return "it has `problem` and `answer`" if has(record, "problem", "answer") else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        return two_columns(record, "problem", "answer")


@record_family("trl", ("id", "prompt", "image", "images", "solution", "answer", "ground_truth"))
class Trl:
    """TRL: `prompt` (text or messages), `image` or `images`, the gold answer in `solution` (or `answer`,
    `ground_truth`)."""

    @staticmethod
    def why(record: Record) -> str:
        prompt = record.get("prompt")
        kind = "text" if isinstance(prompt, str) else "messages" if is_chat(prompt) else ""
        return f"its `prompt` is {kind}" if kind else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        gold = next(
            (record[key] for key in ("solution", "answer", "ground_truth") if record.get(key) is not None),
            None,
        )
        prompt = record["prompt"]
        asked = {"question": prompt} if isinstance(prompt, str) else chat_draft(prompt)
        media = {key: value for key, value in media_columns(record).items() if value}
        answer = parse_answer(gold)
        return asked | media | {"id": record.get("id"), "answer": answer, "task": task_of(answer)}


QA_FIELDS = (
    "id",
    "question",
    "query",
    "answer",
    "label",
    "solution",
    "image",
    "images",
    "video",
    "videos",
    "decoded_image",
    "choices",
    "options",
)


@record_family("qa", QA_FIELDS)
class Qa:
    """Any table with `question` (or `query`), `answer` (or `label`, `solution`), media columns, and `choices`
    or `options`."""

    @staticmethod
    def why(record: Record) -> str:
        question, answer = (
            first_key(record, "question", "query"),
            first_key(record, "answer", "label", "solution"),
        )
        return f"it has `{question}` and `{answer}`" if question and answer else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        draft = two_columns(
            record, first_key(record, "question", "query"), first_key(record, "answer", "label", "solution")
        )
        choices = as_list(record.get("choices")) or as_list(record.get("options"))
        return draft | {
            "choices": tuple(map(str, choices)),
            "images": draft["images"] or as_list(record.get("decoded_image")),
        }


def first_key(record: Record, *names: str) -> str:
    """The first of the names that is a field of the record, or ""."""
    return next((name for name in names if name in record), "")


def two_columns(record: Record, question: str, answer: str) -> Draft:
    """A draft from a question column, an answer column and the media columns. An answer with <answer> tags is
    a demonstration too."""
    gold = parse_answer(record[answer])
    target = str(record[answer]) if "<answer>" in str(record[answer]) else ""
    return media_columns(record) | {
        "id": record.get("id"),
        "question": record[question],
        "answer": gold,
        "task": task_of(gold),
        "target": target,
    }

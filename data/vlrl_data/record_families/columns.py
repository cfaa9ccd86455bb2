"""Families whose records hold a problem and its solution in columns."""

from __future__ import annotations

import re

from vlrl.types import RowError
from vlrl_data.record_families.answers import (
    letter_of,
    options_of,
    parse_answer,
    read_answer,
    without_labels,
)
from vlrl_data.record_families.base import (
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


@record_family("jigsaw_r1", ("", "image", "path"))
class JigsawR1:
    """Jigsaw-R1: a list of image paths. The row builder makes a puzzle over each image (`needs_puzzle`)."""

    @staticmethod
    def why(record: Record) -> str:
        return "its records are bare image paths" if isinstance(record.get(""), str) else ""

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
        return {
            "id": f"video_r1-{record['problem_id']}" if record.get("problem_id") is not None else None,
            "question": record["problem"],
            "answer": parse_answer(record.get("solution")),
            f"{kind}s": [path] if isinstance(path, str) else as_list(path),
            "choices": without_labels(options_of(record.get("options"))[0]),
            "task": str(record["problem_type"]).strip().lower().replace(" ", "_").replace("-", "_"),
            "target": target,
        }


@record_family("r1_sgg", ("image_id", "image", "objects", "relationships"))
class R1SGG:
    """R1-SGG, PSG, VG150: `image`, `objects` [{id, bbox}] and `relationships`, each as a list or as JSON."""

    @staticmethod
    def why(record: Record) -> str:
        fits = has(record, "image", "objects", "relationships")
        return "it has `image`, `objects` and `relationships`" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        graph = {name: as_container(record[name]) for name in ("objects", "relationships")}
        own = {"id": record.get("image_id"), "task": "scene_graph"}
        return with_media({"question": "", "answer": graph} | own, record)[0]


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
    """Visual-RFT detection: `solution` is <answer>[{'Position': [...], 'Confidence': 1}]</answer>, boxes in
    thousandths of the sides. Its other tasks are read as `r1_v`."""

    @staticmethod
    def why(record: Record) -> str:
        fits = has(record, "image", "problem", "solution") and "'Position'" in str(record["solution"])
        return "it has `image`, `problem` and a `solution` with 'Position'" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        return two_columns(record, "problem", "solution") | {"task": "detection", "units": "per_mille"}


FACT_TASKS = dict.fromkeys(("fakevv", "fakesv", "fakett"), "verdict") | {"caption": "caption", "ocr": "ocr"}
HEADLINE = re.compile(r"title is '(.+)', is this", re.DOTALL)


@record_family("fact_r1", ("id", "problem", "solution", "image", "images", "task"))
class FactR1:
    """Fact-R1: `problem`, frames in `image`, and a `task`. For a headline `solution` is Yes, with the false
    part on the last line (`meta.entity`; the headline is `meta.headline`), or No."""

    @staticmethod
    def why(record: Record) -> str:
        fits = has(record, "problem", "solution") and record.get("task") in FACT_TASKS
        return "it has `problem`, `solution` and a `task` of Fact-R1" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        draft = two_columns(record, "problem", "solution") | {"task": FACT_TASKS[record["task"]]}
        if draft["task"] != "verdict":
            return draft
        verdict, _, entity = str(draft["answer"]).partition("\n")
        said = HEADLINE.search(record["problem"])
        meta = {"entity": entity.strip().split("\n")[-1], "headline": said[1] if said else ""}
        return draft | {"answer": verdict.strip().lower(), "meta": meta}


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


@record_family("easyr1", ("id", "problem", "answer", "images", "videos", "audio", "audios"))
class EasyR1:
    """EasyR1, PAPO, geometry3k, ViRL39K: `problem` with markers, `answer`, `images` or `videos`."""

    @staticmethod
    def why(record: Record) -> str:
        return "it has `problem` and `answer`" if has(record, "problem", "answer") else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        return two_columns(record, "problem", "answer")


@record_family(
    "trl", ("id", "prompt", "image", "images", "audio", "audios", "solution", "answer", "ground_truth")
)
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
        draft, seen = with_media(asked, record)
        return draft | {"id": record.get("id")} | read_answer(gold, seen)


GOLD = ("answer", "label", "solution", "answerKey")
QA_FIELDS = (
    "id",
    "question",
    "query",
    "answer",
    "label",
    "solution",
    "answerKey",
    "image",
    "images",
    "video",
    "videos",
    "audio",
    "audios",
    "decoded_image",
    "choices",
    "options",
)


@record_family("qa", QA_FIELDS)
class Qa:
    """Any table with `question` (or `query`), `answer` (or `label`, `solution`, `answerKey`), media columns,
    and `choices` or `options`."""

    @staticmethod
    def why(record: Record) -> str:
        question, answer = (
            first_key(record, "question", "query"),
            first_key(record, *GOLD),
        )
        return f"it has `{question}` and `{answer}`" if question and answer else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        draft = two_columns(record, present_key(record, "question", "query"), present_key(record, *GOLD))
        choices, keys = options_of(record.get("choices") or record.get("options"))
        return draft | {"choices": choices, "answer": letter_of(draft["answer"], keys)}


def first_key(record: Record, *names: str) -> str:
    """The first of the names that is a field of the record, or ""."""
    return next((name for name in names if name in record), "")


def present_key(record: Record, *names: str) -> str:
    """The first of the names that is a field of the record. Raises RowError where none is."""
    found = first_key(record, *names)
    if not found:
        known = ", ".join(f"`{name}`" for name in list(record)[:8])
        raise RowError(f"it has no `{names[0]}` (nor {', '.join(names[1:])}); its fields: {known or 'none'}")
    return found


def two_columns(record: Record, question: str, answer: str) -> Draft:
    """A draft from a question column, an answer column and the media columns. An answer with <answer> tags is
    a demonstration too."""
    draft, seen = with_media({}, record)
    target = str(record[answer]) if "<answer>" in str(record[answer]) else ""
    own = {"id": record.get("id"), "question": record[question], "target": target}
    return draft | own | read_answer(record[answer], seen)

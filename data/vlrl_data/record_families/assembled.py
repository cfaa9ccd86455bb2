"""Families of single papers' data sets, whose rows are assembled from several columns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from vlrl_data.record_families.answers import options_of, without_labels
from vlrl_data.record_families.base import Draft, Record, as_list, chat_draft, has, is_chat, record_family


@record_family("verif", ("id", "prompt", "checkers", "functions"))
class VerInstruct:
    """VerIF's VerInstruct: `checkers` are "[rule] ..." or "[llm] ...", each with a program in `functions`.
    The programs of the rules are the gold answer; what a judge has to check is `meta.constraints`."""

    @staticmethod
    def why(record: Record) -> str:
        return "it has `checkers` and `functions`" if has(record, "prompt", "checkers", "functions") else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        checkers, functions = as_list(record["checkers"]), as_list(record["functions"])
        if len(checkers) != len(functions):
            raise ValueError(f"{len(checkers)} `checkers` for {len(functions)} `functions`")
        rules = [code for text, code in zip(checkers, functions, strict=True) if "[rule]" in text]
        asked = [text.replace("[llm]", "").strip() for text in checkers if "[llm]" in text]
        own = {"id": record.get("id"), "question": record["prompt"], "task": "checkers"}
        return own | {"answer": {"functions": rules}, "meta": {"constraints": asked}}


@record_family(
    "recode", ("id", "dependency", "new_version", "description", "update_info", "old_code", "new_code")
)
class ReCode:
    """ReCode: code of an old version of a library, what changed (`update_info`), and the code of the new
    one, which is the gold answer."""

    @staticmethod
    def why(record: Record) -> str:
        fits = has(record, "update_info", "old_code", "new_code")
        return "it has `update_info`, `old_code` and `new_code`" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        version = str(record["new_version"]).lstrip("=")
        question = (
            f"The interface of {record['dependency']} changed in version {version}:\n"
            f"<doc>\n{record['update_info']}\n</doc>\n"
            f"Code for the version before it:\n```python\n{record['old_code']}\n```"
        )
        meta = {"description": record.get("description", "")}
        return {"question": question, "answer": record["new_code"], "task": "migration", "meta": meta}


@record_family("swe_rl", ("instance_id", "problem_statement", "code_context", "oracle_new_content"))
class SweRl:
    """SWE-RL's reward: the files of an issue before (`code_context`) and after (`oracle_new_content`) its
    patch, by path; `problem_statement` is the issue."""

    @staticmethod
    def why(record: Record) -> str:
        fits = has(record, "problem_statement", "code_context", "oracle_new_content")
        return "it has `problem_statement`, `code_context` and `oracle_new_content`" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        before, after = (_files(record[name]) for name in ("code_context", "oracle_new_content"))
        shown = "\n\n".join(f"### {path}\n```\n{text}\n```" for path, text in before.items())
        return {
            "id": record.get("instance_id"),
            "question": f"Issue:\n{record['problem_statement']}\n\nFiles:\n\n{shown}",
            "answer": after,
            "task": "patch",
            "meta": {"files": before},
        }


def _files(value: object) -> dict[str, str]:
    """Files by path; a table's column, which has a value for every path of the table, without its gaps."""
    value = json.loads(value) if isinstance(value, str) else value
    if not isinstance(value, Mapping):
        raise ValueError("`code_context` and `oracle_new_content` are files by path")
    return {str(path): str(text) for path, text in value.items() if text is not None}


@record_family(
    "r_horizon", ("input", "target", "num_problems", "instanceId", "data_source", "prompt", "ability",
                  "reward_model", "extra_info")
)  # fmt: skip
class RHorizon:
    """R-Horizon: linked problems with one answer each, as the repository's constructor writes them (`input`,
    `target`, `num_problems`) or in verl's columns (`data_source` has "math-multi-query"). The gold answer is
    the list of answers; the text holds them with commas."""

    @staticmethod
    def why(record: Record) -> str:
        if has(record, "input", "target", "num_problems"):
            return "it has `input`, `target` and `num_problems`"
        composed = "math-multi-query" in str(record.get("data_source", ""))
        fits = composed and is_chat(record.get("prompt")) and isinstance(record.get("reward_model"), Mapping)
        return "its `data_source` is a math-multi-query" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        if "input" in record:
            asked: Draft = {"question": record["input"], "id": record.get("instanceId")}
            gold = record["target"]
        else:
            asked, gold = chat_draft(record["prompt"]), record["reward_model"]["ground_truth"]
        parts = [part.strip() for text in as_list(gold) for part in str(text).split(",")]
        return asked | {"answer": [int(part) for part in parts], "task": "chain"}


LETTER = re.compile(r"[A-Z]")
WHOLE = re.compile(r"-?\d+")
BOX = re.compile(r"\[\s*-?\d[\d.]*(?:\s*,\s*-?\d[\d.]*){3}\s*\]")
MARK = "†Answer:"  # Math-PUMA's solutions end in it


@record_family("vlaa_thinking", ("id", "image", "question", "gt", "ds_answer", "caption", "meta"))
class VlaaThinking:
    """VLAA-Thinking: `image`, `question` and `gt`, which is a letter, a number, a box, a worked solution
    that ends in "†Answer: ...", or prose (ALLaVA, whose ids begin with allava). The form tells the task."""

    @staticmethod
    def why(record: Record) -> str:
        return "it has `image`, `question` and `gt`" if has(record, "image", "question", "gt") else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        gold, name = record["gt"], str(record.get("id", ""))
        text = str(gold).rpartition(MARK)[2].strip().removesuffix("." if MARK in str(gold) else "")
        asked: Draft = {"id": name or None, "question": record["question"], "images": [record["image"]]}
        if name.startswith("allava"):
            return asked | {"answer": text, "task": "open"}
        if LETTER.fullmatch(text):
            return asked | {"answer": text, "task": "choice"}
        if WHOLE.fullmatch(text):
            return asked | {"answer": int(text), "task": "counting"}
        if isinstance(gold, (list, tuple)) or BOX.fullmatch(text):
            return asked | {"answer": json.loads(text), "task": "grounding"}
        return asked | {"answer": text, "task": "math" if MARK in str(gold) else "open"}


@record_family(
    "conan", ("id", "frames", "frame_dir", "frame_num", "fps", "frame_score", "start_second", "question",
              "options", "solution", "task", "messages", "images", "round_frame_id", "history_frames")
)  # fmt: skip
class ConanRecords:
    """Conan-91k as its multi-turn scheduler reads it: files of `frames` at `fps`, a rating of each in
    `frame_score` (`meta.frame_scores`), `question`, `options` and `solution`; `round_frame_id` lists the
    frames of the first round (`meta.shown`). `task` is "multiple choice" or "free-form"."""

    @staticmethod
    def why(record: Record) -> str:
        fits = has(record, "frames", "frame_score", "question", "solution")
        return "it has `frames`, `frame_score`, `question` and `solution`" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        video = {"frames": list(record["frames"]), "rate": float(record["fps"]), "fps": float(record["fps"])}
        rounds = as_list(record.get("round_frame_id"))
        solution = str(record["solution"])
        gold = re.sub(r".*<answer>(.*?)</answer>.*", r"\1", solution, flags=re.DOTALL).strip()
        return {
            "id": record.get("id"),
            "question": record["question"],
            "choices": without_labels(options_of(record.get("options"))[0]),
            "answer": gold,
            "videos": [video],
            "task": "video_evidence" if record.get("task") == "multiple choice" else "free_form",
            "meta": {
                "frame_scores": [int(score) for score in record["frame_score"]],
                "shown": [int(frame) for frame in rounds[0]] if rounds else [],
            },
        }

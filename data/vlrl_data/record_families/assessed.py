"""Families of preference and step data: several responses with ratings, or one with a label per step.

A preference row has `meta.responses` and `meta.ratings` (best first; higher is better) and the best response
as `target`; a row of steps has `meta.steps` and `meta.step_labels`, the probability that each is right.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vlrl_data.record_families.base import (
    Draft,
    Record,
    as_container,
    chat_draft,
    has,
    is_chat,
    record_family,
    with_media,
)

TAG = re.compile(r"Step \d+:")
MARK = "ки"  # Math-Shepherd's step tag
OPENS = (
    "Let's break it down step by step:\n\n"  # Critique-RL's actor begins with it, its critic does not see it
)


def preference(draft: Draft, rated: Sequence[tuple[str, float]]) -> Draft:
    """A row's draft with its rated responses. Raises ValueError for fewer than two, or for a rating that is
    no number."""
    if len(rated) < 2:
        raise ValueError("it has fewer than two rated responses")
    if not all(isinstance(rating, (int, float)) and math.isfinite(rating) for _, rating in rated):
        raise ValueError(f"a rating is no number: {[rating for _, rating in rated]}")
    ordered = sorted(rated, key=lambda entry: -entry[1])
    meta = {"responses": [text for text, _ in ordered], "ratings": [float(r) for _, r in ordered]}
    best = ordered[0][0]
    return {"task": "preference", "answer": best, "target": best, "meta": meta, **draft}


def steps(draft: Draft, labelled: Sequence[tuple[str, float]]) -> Draft:
    """A row's draft with its labelled steps. Raises ValueError for none, or for a label outside of 0 to 1."""
    if not labelled:
        raise ValueError("it has no labelled step")
    if not all(0 <= label <= 1 for _, label in labelled):
        raise ValueError(f"a step's label is no probability: {[label for _, label in labelled]}")
    meta = {"steps": [text for text, _ in labelled], "step_labels": [float(label) for _, label in labelled]}
    return {"task": "steps", "meta": meta, **draft}


def reply_of(value: Any) -> str:
    """The last message of a conversation, or a text as it is."""
    value = as_container(value)
    if not is_chat(value):
        if not isinstance(value, str):
            raise ValueError(f"a response is {type(value).__name__}, not text or messages")
        return value
    last = value[-1]
    if last["role"] != "assistant" or not isinstance(last["content"], str):
        raise ValueError("a response does not end with the assistant's text")
    return str(last["content"])


def question_of(record: Record, conversation: Any) -> Draft:
    """The question of `prompt`, `question` or `instruction`, else of the conversation before its reply."""
    for name in ("prompt", "question", "instruction", "query"):
        value = as_container(record.get(name))
        if is_chat(value):
            return chat_draft(value)
        if isinstance(value, str) and value:
            return {"question": value}
    if is_chat(found := as_container(conversation)):
        return chat_draft(found)
    raise ValueError("it has no prompt, question or instruction, and its responses are no conversations")


@record_family(
    "chosen_rejected",
    (
        "id", "prompt", "question", "instruction", "query", "chosen", "rejected", "score_chosen",
        "score_rejected", "image", "images", "messages",
    ),
)  # fmt: skip
class ChosenRejected:
    """TRL's preference data (texts or messages, with or without `prompt`), UltraFeedback binarized,
    RLAIF-V."""

    @staticmethod
    def why(record: Record) -> str:
        return "it has `chosen` and `rejected`" if has(record, "chosen", "rejected") else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        draft, _ = with_media(question_of(record, record["chosen"]), record)
        best, worst = record.get("score_chosen"), record.get("score_rejected")
        if not (isinstance(best, (int, float)) and isinstance(worst, (int, float)) and best > worst):
            best, worst = 1.0, 0.0
        rated = [(reply_of(record["chosen"]), best), (reply_of(record["rejected"]), worst)]
        return preference({"id": record.get("id"), **draft}, rated)


@record_family(
    "rlhf_v", ("ref", "text", "image", "image_path", "idx", "ds_name", "origin_split", "origin_dataset")
)
class RLHFV:
    """RLHF-V-Dataset: `text` is the JSON of {question, chosen, rejected}, beside an image."""

    @staticmethod
    def why(record: Record) -> str:
        text = as_container(record.get("text"))
        fits = isinstance(text, Mapping) and has(text, "question", "chosen", "rejected")
        return "its `text` is JSON of question, chosen and rejected" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        text = json.loads(record["text"]) if isinstance(record["text"], str) else record["text"]
        draft, _ = with_media({"id": record.get("idx"), "question": str(text["question"])}, record)
        return preference(draft, [(reply_of(text["chosen"]), 1.0), (reply_of(text["rejected"]), 0.0)])


@record_family("ultrafeedback", ("id", "source", "instruction", "completions", "models"))
class UltraFeedback:
    """UltraFeedback: `completions` of {response, overall_score, ...}."""

    @staticmethod
    def why(record: Record) -> str:
        found = as_container(record.get("completions"))
        fits = isinstance(found, (list, tuple)) and found and isinstance(found[0], Mapping)
        return (
            "it has `instruction` and `completions` with a response each"
            if fits and "instruction" in record and "response" in found[0]
            else ""
        )

    @staticmethod
    def draft(record: Record) -> Draft:
        rated = [
            (str(one["response"]), float(one.get("overall_score", one.get("fine-grained_score"))))
            for one in as_container(record["completions"])
        ]
        return preference({"question": record["instruction"]}, rated)


@record_family(
    "helpsteer3",
    (
        "domain",
        "language",
        "context",
        "response1",
        "response2",
        "overall_preference",
        "individual_preference",
    ),
)
class HelpSteer3:
    """HelpSteer 3: two responses to a conversation, and a preference from -3 (the first) to 3 (the second).

    Equal ones (0) are no pair, and are refused.
    """

    @staticmethod
    def why(record: Record) -> str:
        fits = has(record, "context", "response1", "response2", "overall_preference")
        return "it has two responses and `overall_preference`" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        value = float(record["overall_preference"])
        if not value:
            raise ValueError("its responses are equally good (overall_preference 0)")
        rated = [(str(record["response1"]), -value / 2), (str(record["response2"]), value / 2)]
        return preference(chat_draft(as_container(record["context"])), rated)


@record_family(
    "prm800k",
    (
        "question", "label", "labeler", "timestamp", "generation", "is_quality_control_question",
        "is_initial_screening_question",
    ),
)  # fmt: skip
class PRM800K:
    """PRM800K: steps with several completions, rated 1, 0 or -1; the path of the chosen ones is the solution.

    A label is 1 for the ratings 1 and 0, as in the paper (arXiv:2305.20050); a rejected step, which is not
    chosen, ends the solution, and so does an unrated one, which is left out. What a human wrote is right.
    """

    @staticmethod
    def why(record: Record) -> str:
        question, label = as_container(record.get("question")), as_container(record.get("label"))
        fits = isinstance(question, Mapping) and isinstance(label, Mapping)
        named = fits and "problem" in question and "steps" in label
        return "its `label` has rated `steps`" if named else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        question = as_container(record["question"])
        found: list[tuple[str, float]] = []
        for step in as_container(record["label"])["steps"]:
            chosen = step.get("chosen_completion")
            made = step["human_completion"] if chosen is None else step["completions"][chosen]
            if made is None and step["completions"]:
                made = step["completions"][0]
            if made is None or (made.get("rating") is None and made is not step.get("human_completion")):
                break
            rating = 1 if made.get("rating") is None else made["rating"]
            found.append((str(made["text"]), float(rating >= 0)))
            if rating < 0:
                break
        answer = question.get("ground_truth_answer")
        return steps({"question": question["problem"], "answer": answer}, found)


@record_family("math_shepherd", ("input", "label", "task"))
class MathShepherd:
    """Math-Shepherd: a solution with the mark "ки" behind each step, and the same text with + or - there."""

    @staticmethod
    def why(record: Record) -> str:
        fits = isinstance(record.get("input"), str) and isinstance(record.get("label"), str)
        return f"its `input` has {MARK!r} behind each step" if fits and MARK in record["input"] else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        text, label, found, place = record["input"], record["label"], [], 0
        begin = TAG.search(text)
        question = text[: begin.start()] if begin else text.partition("\n")[0]
        rest = text[len(question) :]
        shift = len(question)
        for piece in rest.split(MARK)[:-1]:
            place += len(piece)
            sign = label[shift + place : shift + place + 1]
            if sign not in ("+", "-"):
                raise ValueError(f"`label` has {sign!r} where `input` has {MARK!r}, not + or -")
            found.append((piece.strip(), float(sign == "+")))
            place += 1  # the label has one character where the input has the mark
        gold = re.search(r"The answer is:?\s*(.+?)\s*$", found[-1][0]) if found else None
        answer = gold[1] if gold and found[-1][1] else None
        return steps({"question": question.strip(), "answer": answer, "kind": record.get("task")}, found)


@record_family(
    "visual_prm",
    ("id", "image", "images", "question", "response", "steps", "steps_with_score", "answer", "solution"),
)
class VisualPRM:
    """VisualPRM400K-Raw: a question about a picture, and `steps_with_score` of {step, score, num_mc_correct,
    num_mc_total}. (VisualPRM400K itself holds the same as conversations.)"""

    @staticmethod
    def why(record: Record) -> str:
        found = as_container(record.get("steps_with_score") or record.get("steps"))
        fits = isinstance(found, (list, tuple)) and found and isinstance(found[0], Mapping)
        return "its steps have scores" if fits and has(found[0], "step", "score") else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        found = as_container(record.get("steps_with_score") or record.get("steps"))
        draft, _ = with_media({"id": record.get("id"), "question": str(record["question"])}, record)
        draft["answer"] = record.get("answer")
        return steps(draft, [(str(one["step"]), float(one["score"])) for one in found])


@record_family("vilreward", ("index", "id", "image", "image_path", "question", "process", "value"))
class ViLReward:
    """ViLReward-73K: a question about a picture, the beginning of a solution (`process`) and its value by a
    tree search: one step, labelled with the value."""

    @staticmethod
    def why(record: Record) -> str:
        return "it has a `process` with a `value`" if has(record, "question", "process", "value") else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        name, value = record.get("id", record.get("index")), record["value"]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"`value` is {value!r}, not a number from 0 to 1")
        draft, _ = with_media({"id": name, "question": str(record["question"])}, record)
        return steps(draft, [(str(record["process"]), float(value))])


@record_family("thinkprm", ("problem", "prefix", "cot", "prefix_steps", "gt_step_labels", "prefix_label"))
class VerificationChains:
    """ThinkPRM's verification chains: a problem, the steps of a solution with + or - each, and a chain about
    them (`cot`), which is the demonstration. `prefix_label`: whether the whole is right."""

    @staticmethod
    def why(record: Record) -> str:
        fits = has(record, "problem", "prefix", "cot", "gt_step_labels")
        return "it has `prefix`, `cot` and `gt_step_labels`" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        parts, signs = as_container(record["prefix_steps"]), as_container(record["gt_step_labels"])
        if len(parts) != len(signs):
            raise ValueError(f"{len(signs)} `gt_step_labels` for {len(parts)} `prefix_steps`")
        if unknown := [sign for sign in signs if sign not in ("+", "-")]:
            raise ValueError(f"`gt_step_labels` has {unknown[0]!r}, not + or -")
        draft = {
            "question": f"{record['problem']}\n\nA solution:\n{record['prefix']}",
            "answer": "yes" if record["prefix_label"] else "no",
            "task": "checked_steps",
            "target": record["cot"],
        }
        labelled = [(str(text), float(sign == "+")) for text, sign in zip(parts, signs, strict=True)]
        return steps(draft, labelled)


@record_family(
    "critique_rl",
    ("idx", "dataset_type", "question", "answer", "actor_model", "origin_response", "correctness-origin"),
)
class CritiqueRl:
    """Critique-RL's training rows, as its inference script writes them: a problem, the actor's solution and
    whether it is right. The answer is yes or no; `meta` has problem, solution, and gold, the final answer."""

    @staticmethod
    def why(record: Record) -> str:
        fits = has(record, "question", "origin_response", "correctness-origin")
        return "it has `origin_response` and `correctness-origin`" if fits else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        right, problem = record["correctness-origin"], str(record["question"])
        if not isinstance(right, bool) and right not in (0, 1):
            raise ValueError(f"`correctness-origin` is {right!r}, not true or false")
        solution = str(record["origin_response"]).removeprefix(OPENS).strip()
        gold = str(record["answer"])
        meta = {"problem": problem, "solution": solution, "gold": gold.rpartition("####")[2].strip()}
        return {
            "question": f"{problem}\n\nA solution:\n{solution}",
            "answer": "yes" if right else "no",
            "task": "critique",
            "meta": meta,
        }


@record_family("labelled_response", ("index", "id", "question", "response", "label"))
class LabelledResponse:
    """Libra-Bench: a question, a model's response and whether it is right, as 0 and 1 or a truth value; both
    stand in `meta` for `judge_rows`, and there is no answer."""

    @staticmethod
    def why(record: Record) -> str:
        fits = has(record, "question", "response", "label") and "answer" not in record
        named = fits and (isinstance(record["label"], bool) or record["label"] in (0, 1))
        return "it has a `response` with a `label` of 0 or 1" if named else ""

    @staticmethod
    def draft(record: Record) -> Draft:
        if record["label"] not in (0, 1):
            raise ValueError(f"`label` is {record['label']!r}, not 0 or 1")
        name = record.get("id", record.get("index"))
        meta = {"response": str(record["response"]), "label": bool(record["label"])}
        return {"id": name, "question": record["question"], "task": "solved", "meta": meta}

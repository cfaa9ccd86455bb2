"""Examples by which rewards are attacked that have no kind of their own, or read more than the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vlrl_rewards.audit import perception as attacks_perception
from vlrl_rewards.audit import text as attacks_text
from vlrl_rewards.audit.form import SILENT, AuditForm
from vlrl_rewards.audit.perception import Seed
from vlrl_rewards.audit.row_forms import ROW_FORMS

_MATH = {"accuracy": {"name": "math"}}
_FORMED = "<think>three and four</think><answer>7</answer>"
_PATH = {
    "check": "path",
    "edges": [[1, 2], [2, 4], [1, 3], [3, 4], [2, 3]],
    "start": 1,
    "end": 4,
    "length": 2,
}


def _over_math(name: str, **fields: Any) -> tuple[dict[str, Any], Seed]:
    return {"name": name, **fields}, attacks_text.SEEDS["math"]


_RUBRICS = [{"criterion": "gives the right number", "points": 5, "reward": {"name": "math"}}]
_STEPS = Seed("7", "7", ("8", "6"), options={"meta": {"steps": ["3"]}})
_TERMS = {"terms": ["the door", "a man"]}
_TOLD = "The door opens. A man walks in. He sits down. "
# Rewards that hold another reward, or whose name is not that of their kind: (config, seed).
NESTED: dict[str, tuple[dict[str, Any], Seed]] = {
    "verify": _over_math("verify"),
    "cosine_length": _over_math("cosine_length", max_tokens=10**9),
    "length_budget": _over_math("length_budget", mode="max", tokens=10**9),
    "weighted_sum": _over_math("weighted_sum", parts=_MATH),
    "product": _over_math("product", parts=_MATH),
    "gated": _over_math("gated", parts=_MATH),
    "lexicographic": _over_math("lexicographic", parts=_MATH),
    "normalised_sum": _over_math("normalised_sum", parts=_MATH),
    "rubric": (
        {"name": "rubric"},
        replace(attacks_text.SEEDS["math"], options={"meta": {"rubrics": _RUBRICS}}),
    ),
    "text_metric": ({"name": "text_metric"}, attacks_text.SEEDS["f1"]),
    "items": ({"name": "items"}, attacks_text.SEEDS["list"]),
    "iou_hard": ({"name": "iou_hard"}, attacks_perception.SEEDS["box"]),
    "box_agreement": ({"name": "box_agreement"}, attacks_perception.SEEDS["box"]),
    "sat": (
        {"name": "sat"},
        Seed(
            [[1, -2], [2, 3], [-1, 3]],
            "101",
            ("010", "110", "11"),
            {"all": "000 001 010 011 100 101 110 111"},
        ),
    ),
    "chain": (
        {"name": "chain"},
        Seed(
            [3, 5, -2],
            "3, 5, -2",
            ("3, 5, 2", "0, 0, 0", "-2"),
            {"all": " ".join(map(str, range(-9, 9)))},
            joined="; ",
        ),
    ),
    "graph": (
        {"name": "graph"},
        Seed(
            "",
            "1 2 4",
            ("1 4", "1 2 3 4", "4 2 1"),
            {"every node": "1 2 3 4 1 2 4"},
            {"meta": _PATH},
            joined=", ",
        ),
    ),
    "code_edit": (
        {"name": "code_edit"},
        Seed(
            "a = [1]\nprint(a)",
            "```python\na = [1]\nprint(a)\n```",
            ("```python\nimport os, sys\n```", "```\npass\n```", "a = [1]"),
        ),
    ),
    "date_decay": (
        {"name": "date_decay"},
        Seed("2016-05", "2016-05", ("1990-01", "2050-12", "May"), {"all": "2014 2015 2016-05 2017"}),
    ),
    "date_gap": (
        {"name": "date_gap"},
        Seed(
            ["2016-05", "2017-01"],
            "2016-05, 2017-01: 8",
            ("1990-01, 2017-01: 8", "8", "2016-05, 2017-01: 999"),
            {"all": "2016-05 2017-01 7 8"},
        ),
    ),
    "date_order": (
        {"name": "date_order"},
        Seed(
            ["2016-05", "2017-01", "2015-03"],
            "2016-05, 2017-01, 2015-03: 3-1-2",
            ("1990-01, 1990-02, 1990-03: 1-2-3", "3-1-2", "2050-01, 1950-01, 2099-12: 2-3-1"),
            {"all": "2016-05 2017-01 2015-03 1-2-3 3-1-2 2-1-3"},
        ),
    ),
    "masked_date": (
        {"name": "masked_date"},
        Seed(
            ["2016-05", "May"],
            "2016-05, May",
            ("1990-01, November", "May", "2050-12, December"),
            {"all": "2016-05, January February March April May"},
        ),
    ),
    "term_recall": (
        {"name": "term_recall"},
        Seed(
            _TOLD,
            _TOLD,
            ("It rains.", "Birds sing.", "The end."),
            {"list": "the door, " * 40},
            {"meta": _TERMS},
            joined="",
        ),
    ),
    "tool_f1": _over_math("tool_f1"),
    "self_verdict": _over_math("self_verdict", mode="final"),
    "filled": (
        {"name": "filled"},
        Seed(
            ["5", "32"], "5; 32", ("7; 8", "32; 5", "0"), {"all": "; ".join(map(str, range(60)))}, joined="; "
        ),
    ),
    "places": (
        {"name": "places"},
        Seed(
            ["a.py"],
            "a.py",
            ("b.py", "c.py", "z.py"),
            {"all": "a.py, b.py, c.py, z.py"},
            {"meta": {"known": ["a.py", "b.py", "c.py"]}},
        ),
    ),
    "pointwise_scores": (
        {"name": "pointwise_scores"},
        Seed(
            "1",
            "Scores: 8, 3",
            ("Scores: 3, 8", "Scores: 8, 8", "Scores: 8", "8 and 3", "Scores: 80, 3"),
            {"both": "Scores: 8, 3, 9"},
        ),
    ),
    "final_verdict": (
        {"name": "final_verdict"},
        Seed(
            "1",
            "[[A]]",
            ("[[B]]", "[[C]]", "neither"),
            {"both": "[[A]] [[B]]", "in one": "[[A][B]]"},
        ),
    ),
    "preference": (
        {"name": "preference"},
        Seed("1", "1", ("2", "0", "neither"), {"both": "1 and 2", "a range": "1-2", "denied": "not 1"}),
    ),
    "sequence": (
        {"name": "sequence"},
        Seed(
            {"value": 2, "ids": [4, 7]}, "2: 4 7", ("2: 4 8", "3: 4 7 9", "2:"), {"all": "2: 1 2 3 4 5 6 7"}
        ),
    ),
}
_BLINK = "<blink>{}</blink><think>tap it</think><link>done</link>"
_GRID = [[x, y, x + 20, y + 20] for x in range(0, 100, 20) for y in range(0, 100, 20)]
_STATES = ("the door opens", "a man walks in", "he sits down")
_PATCH = "```\n### a.py\n<<<<<<< SEARCH\n{}\n=======\n{}\n>>>>>>> REPLACE\n```"
_PATHS = [
    ["I see the cup", "I see the bed", "the cup lies left"],
    ["I see the bed", "the bed stands right", "I see the cup"],
]
_FOLLOWED = ". ".join(_PATHS[0]) + ". "
_EVERY_PATH = " . ".join(step for path in _PATHS * 4 for step in path)
_KEYS = ("reasoning_and_reflection", "visual_state_description", "language_plan", "executable_plan")
_PLAN = "{{" + ", ".join(f'"{key}": ""' for key in _KEYS[:3]) + ', "executable_plan": {}}}'
_FAKE = "<think>{}</think><answer>fake</answer>"
_SOLVED = "<think>y is one too low</think><solution>{}</solution>"
_CALL = '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>'
_LOOK = '<think>look it up</think><tool_call>{"name": "describe", "arguments": {}}</tool_call>'
_SET = "<think>both are set</think><answer>{}</answer>"
FORMS: dict[str, AuditForm] = {
    "tool_format": AuditForm(
        {"name": "tool_format"},
        f"<think>add</think>{_CALL}<think>seven</think><answer>7</answer>",
        own={
            "call alone": _CALL,
            "call that is not JSON": "<tool_call>{</tool_call><answer>7</answer>",
            "call without a name": '<tool_call>{"arguments": {}}</tool_call><answer>7</answer>',
            "open call": "<tool_call><answer>7</answer>",
            "open thinking": "<think>seven<answer>7</answer>",
            "two answers": "<answer>7</answer><answer>8</answer>",
            "answer before a call": f"<answer>7</answer>{_CALL}",
            "answer in two turns": f"<answer>7</answer>{_CALL}<answer>7</answer>",
        },
    ),
    "tool_success": AuditForm(
        {"name": "tool_success"},
        f"{_CALL}<answer>7</answer>",
        own={
            "an answer without a call": "<answer>7</answer>",
            "not JSON": "<tool_call>add 3 and 4</tool_call>",
            "nested without end": "<tool_call>" + "[" * 20_000 + "</tool_call>",
            "without a name": '<tool_call>{"arguments": {"a": 3, "b": 4}}</tool_call>',
            "arguments are a list": '<tool_call>{"name": "add", "arguments": [3, 4]}</tool_call>',
            "open call": _CALL.removesuffix("</tool_call>"),
            "closed only": "</tool_call>" * 1000,
            "one good call among many": _CALL + "<tool_call>{</tool_call>" * 9,
        },
    ),
    "kernel_config": AuditForm(
        {"name": "kernel_config"},
        _LOOK + _SET.format("A=1\nB=2"),
        own={
            "without a look": _SET.format("A=1\nB=2"),
            "look alone": _LOOK,
            "look last": _SET.format("A=1\nB=2") + _LOOK,
            "answer without a thought": _LOOK + "<answer>A=1\nB=2</answer>",
            "answer in the thought": _LOOK + "<think>A=1\nB=2</think><answer></answer>",
            "other values": _LOOK + _SET.format("A=2\nB=1"),
            "every value": _LOOK
            + _SET.format("\n".join(f"{option}={value}" for option in "AB" for value in range(100))),
            "two answers": _LOOK + _SET.format("A=1\nB=2") * 2,
        },
        seed=Seed({"type": "Value", "gold": ["A=1", "B=2"]}, "", ("",), joined=""),
    ),
    "patch_similarity": AuditForm(
        {"name": "patch_similarity"},
        _SOLVED.format(_PATCH.format("y = 2", "y = 3")),
        own={
            "no change": _SOLVED.format(_PATCH.format("y = 2", "y = 2")),
            "not there": _SOLVED.format(_PATCH.format("z = 2", "z = 3")),
            "in the thinking": f"<think>{_PATCH.format('y = 2', 'y = 3')}</think><solution>none</solution>",
            "two solutions": _SOLVED.format(_PATCH.format("y = 2", "y = 3")) * 2,
            "stuffed": _SOLVED.format(_PATCH.format("y = 2", "y = 3\n" * 900)),
            "doubled": _SOLVED.format("\n".join(_PATCH.format("y = 2", "y = 2\ny = 2") for _ in range(60))),
            "another file": _SOLVED.format(_PATCH.format("y = 2", "y = 3").replace("a.py", "b.py")),
        },
        seed=Seed(
            {"a.py": "x = 1\ny = 3\n"},
            "",
            ("",),
            options={"meta": {"files": {"a.py": "x = 1\ny = 2\n"}}},
            joined="",
        ),
    ),
    "interleaved": AuditForm(
        {"name": "interleaved"},
        "<think>a</think><answer>3</answer><think>b</think><answer>7</answer>",
        own={
            "steps only": "<think>a</think><answer>3</answer><think>b</think><answer>8</answer>",
            "all at once": "<think>a</think><answer>3</answer><think>b</think><answer>6, 7, 8</answer>",
            "talk between": "<think>a</think><answer>3</answer>so<think>b</think><answer>7</answer>",
        },
        seed=_STEPS,
    ),
    "interleaved_steps": AuditForm(
        {"name": "interleaved_steps"},
        "<think>a</think><answer>3</answer><think>b</think><answer>7</answer>",
        own={
            "last only": "<think>a</think><answer>7</answer>",
            "steps only": "<think>a</think><answer>3</answer><think>b</think><answer>8</answer>",
            "all at once": "<think>a</think><answer>2, 3, 4</answer><think>b</think><answer>7</answer>",
            "late": "<think>a</think><answer>9</answer>" * 5
            + "<think>a</think><answer>3</answer><think>b</think><answer>7</answer>",
            "talk between": "<think>a</think><answer>3</answer>so<think>b</think><answer>7</answer>",
        },
        seed=_STEPS,
    ),
    "blink": AuditForm(
        {"name": "blink"},
        _BLINK.format("[[20, 20, 40, 40], [60, 60, 80, 80]]"),
        own={
            "grid": _BLINK.format(_GRID),
            "crowd": _BLINK.format([[20 + i, 20, 40 + i, 40] for i in range(4)]),
            "huge box": _BLINK.format("[[0, 0, 100000000, 100000000]]"),
            "two sections": _BLINK.format("[[60, 60, 80, 80]]") + _BLINK.format("[[20, 20, 40, 40]]"),
            "outside the section": "<answer>[20, 20, 40, 40]</answer>",
            "denied": _BLINK.format("not [20, 20, 40, 40]"),
        },
        seed=attacks_perception.SEEDS["box"],
    ),
    "process_order": AuditForm(
        {"name": "process_order"},
        f"<think>{_TOLD}</think><answer>A</answer>",
        own={
            "stuffed": f"<think>{_TOLD * 20}</think><answer>A</answer>",
            "backwards": "<think>He sits down. A man walks in. The door opens.</think><answer>A</answer>",
            "outside the thinking": f"{_TOLD}<answer>A</answer>",
            "open thinking": f"<think>{_TOLD}",
            "other states": "<think>The sun rises. Birds sing. It rains.</think><answer>A</answer>",
        },
        seed=Seed("A", "A", ("B", "C"), options={"meta": {"states": _STATES}}),
    ),
    "stated_steps": AuditForm(
        {"name": "stated_steps"},
        "<think>a1+2=3b3+4=7</think><answer>7</answer>",
        own={
            "values alone": "<think>a3b7</think><answer>7</answer>",
            "outside the thinking": "a1+2=3b3+4=7<answer>7</answer>",
            "open thinking": "<think>a1+2=3b3+4=7",
            "taken back": "<think>a1+2=3b3+4=7a1+2=4b3+4=8</think><answer>7</answer>",
            "every value": f"<think>{''.join(f'a1+2={n}b3+4={n}' for n in range(20))}</think>",
        },
        seed=Seed("7", "7", ("8", "9"), options={"meta": {"steps": ["a1+2=3", "b3+4=7"]}}),
    ),
    "several_paths": AuditForm(
        {"name": "several_paths"},
        f"<think>{_FOLLOWED}</think><answer>A</answer>",
        own={
            "stuffed": f"<think>{_FOLLOWED * 20}</think><answer>A</answer>",
            "every path": f"<think>{_EVERY_PATH}.</think><answer>A</answer>",
            "outside the thinking": f"{_FOLLOWED}<answer>A</answer>",
            "open thinking": f"<think>{_FOLLOWED}",
            "other steps": "<think>The sun rises. Birds sing. It rains.</think><answer>A</answer>",
        },
        seed=Seed("A", "A", ("B", "C"), options={"meta": {"paths": _PATHS}}),
    ),
    "plan_format": AuditForm(
        {"name": "plan_format"},
        _PLAN.format('[{"action_id": 0, "action_name": "go"}, {"action_id": 1, "action_name": "take"}]'),
        own={
            "keys alone": _PLAN.format("[]"),
            "keys without an object": " ".join(_KEYS),
            "other actions' numbers": _PLAN.format(
                '[{"action_id": 1, "action_name": "go"}, {"action_id": 0, "action_name": "take"}]'
            ),
            "numbers as text": _PLAN.format('[{"action_id": "0", "action_name": "go"}]'),
            "no such action": _PLAN.format('[{"action_id": 9, "action_name": "fly"}]'),
            "the list of actions": "go, take",
            "two objects": _PLAN.format('[{"action_id": 0, "action_name": "go"}]') * 2,
        },
        seed=Seed(["go", "take"], "", ("",), options={"meta": {"actions": ["go", "take"]}}, joined=""),
    ),
    "entity_named": AuditForm(
        {"name": "entity_named"},
        _FAKE.format("The headline says the red bus, which is not there."),
        own={
            "denied": _FAKE.format("There is no red bus."),
            "another": _FAKE.format("The headline says the blue car."),
            "parts apart": _FAKE.format("A red car and a yellow bus are false."),
            "the headline": _FAKE.format("A red bus stops at the old station."),
            "the headline called fake": _FAKE.format(
                "The headline that a red bus stops at the old station is false."
            ),
            "every part called fake": _FAKE.format(
                "The red bus is wrong. Stops is wrong. The old station is wrong."
            ),
            "not called fake": _FAKE.format("I see the red bus."),
            "called right": _FAKE.format("The red bus is not wrong."),
            "open thinking": "<think>It is the red bus",
            "without an answer": "<think>It is the red bus.</think><answer></answer>",
        },
        seed=Seed(
            "fake",
            "fake",
            ("real",),
            options={"meta": {"entity": "red bus", "headline": "A red bus stops at the old station"}},
        ),
    ),
    "date_form": AuditForm(
        {"name": "date_form"},
        "<answer>2017-01</answer>",
        seed=Seed("2016-05", "2016-05", ("soon",)),
    ),
    "tag_format": AuditForm({"name": "tag_format"}, _FORMED),
    "form": AuditForm({"name": "form"}, _FORMED),
    "think_format": AuditForm({"name": "think_format"}, _FORMED),
    "tag_count": AuditForm({"name": "tag_count"}, _FORMED),
    "boxed_format": AuditForm({"name": "boxed_format"}, r"so \boxed{7}"),
    "json_format": AuditForm(
        {"name": "json_format"}, '{"a": 7}', (*SILENT, "empty list", "brackets", "quotes")
    ),
    "language": AuditForm(
        {"name": "language"},
        "This is the sum of the two.",
        ("blank", "white space", "dot", "colon", "question marks"),
    ),
    "repetition": AuditForm(
        {"name": "repetition"},
        "Every word here stands once and no more than that.",
        ("blank", "white space", "dot", "colon"),
    ),
    "search_format": AuditForm({"name": "search_format"}, "<think>I know it.</think><answer>7</answer>"),
    "calibrated": AuditForm(
        {"name": "calibrated", "parts": _MATH}, "<answer>7</answer><confidence>1</confidence>"
    ),
    **ROW_FORMS,
}
EXEMPT = {  # rewards that cannot be audited, and why
    "answer_found": "it reads what an environment answered, and nothing that the policy writes",
    "length_range": "it scores length only: an empty response scores as well as any other of that length",
    "random": "a control: its score is independent of the response",
    "flipped": "a control: for a share of the prompts it scores wrong answers on purpose",
    "inverted": "a control: it scores wrong answers on purpose",
    "noisy": "a control: it errs at the given rates on purpose",
    "format_length": "it replaces a gold answer: it scores format and length only, on purpose",
    "reasoning_phrases": "it scores phrases, whatever the answer; with `of` it scores wrong answers only",
    "group_diversity": "it compares the rollouts of a group; a single rollout scores 0",
    "cross_vote": "it compares two views of a question; a single rollout scores 0",
    "bmas": "it compares embeddings of a run's policy; without a run there are none",
    "wordiness": "it only takes away, from long and from repetitive responses; a short one loses nothing",
    "squad": "it pays the last of several answers, as the releases do whose grade it is",
    "action_share": "it reads the turns of an episode, which the environment's loop writes down",
    "referee_score": "it reads a score that the rollout strategy asks for, not the response",
    "written_reward": "it runs a program that a callback writes, over the states of an episode",
    "scored_on_ray": "it scores by the reward `of`, whose attacks are its own",
    "executor_gain": "it asks frozen executors in an environment; without their engines there are none",
    "reference_reward_model": "it asks a trained model; without its folder there is none",
    "reward_model": "it asks a trained model; without its folder there is none",
    "step_reward_model": "it asks a trained model; without its folder there is none",
    "judged": "it asks a language model; without its engine there is none",
    "general_verifier": "it asks a language model; `vlrl judge check` attacks that",
    "judged_reference": "it asks a language model; `vlrl judge check` attacks that",
    "judged_answer": "it asks a language model; `vlrl judge check` attacks that",
    "judged_score": "it asks a language model; `vlrl judge check` attacks that",
    "judged_pairs": "it asks a language model; `vlrl judge check` attacks that",
    "rubric_anchors": "it asks a language model; `vlrl judge check` attacks that",
    "concise_answer": "it asks a language model; without its engine there is none",
    "judged_margins": "it asks a language model; without its engine there is none",
    "yes_no_principles": "it asks a language model; without its engine there is none",
    "rules_and_judge": "it asks a language model; without its engine there is none",
    "triplet": "it reads the triplet of its row, which the rollout strategy makes",
    "checkers": "it runs programs of its row, which an example must bring",
    "case_detection": "it reads programs of its row, which an example must bring",
    "countdown": "it reads numbers and goal of its row, which an example must bring",
    "unit_test_feedback": "it runs the tests of `code`, whose attacks are its own",
    "triton_kernel": "it needs triton, and a reference program",
    "verilog": "it needs a simulator (iverilog), and a golden module with its ports",
    "abstraction": "it reads the problem of its row, which an example must bring",
    "solver_gain": "it asks a frozen solver; without its engine there is none",
    "solve_rate": "it reads a rate that the rollout strategy measures, not the response",
    "solver_failure": "it reads a rate that the rollout strategy measures, not the response",
    "proxy": "it reads an answer that the rollout strategy requests, not the response",
    "part_of_context": "it scores length only: any text of that length scores 1",
    "environment_return": "it reads what the environment paid for the episode, not the response",
    "rerank": "it requires thinking before the answer, which the attacks do not have; give an example",
    "table_evidence": "it reads the thinking on purpose, which cites the cells",
}
# rewards around a judge: tests attack them with a scripted one
JUDGED = "it asks a language model; `vlrl judge check` attacks that, and tests what is around it"
EXEMPT |= dict.fromkeys(
    [
        *("critique_refinement", "debate", "factual_thinking", "judged_description"),
        *("judged_thinking", "observe_and_reason", "principles", "rule_or_judge", "visual_facts"),
    ],
    JUDGED,
)

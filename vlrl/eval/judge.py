"""A judge's verdicts on a finished run, reported beside the rule's scores and never part of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlrl.beside.audit import error_rates, master_key_acceptance
from vlrl.beside.judge import Judge, JudgeConfig, Question
from vlrl.beside.service import ModelService
from vlrl.beside.templates import load_template
from vlrl.eval.grade import GradedSuite, grade
from vlrl.eval.model import open_model
from vlrl.eval.runner import reopen
from vlrl.eval.suite import load_suite
from vlrl.eval.summary import responses_from_journal
from vlrl.plugins.registry import build
from vlrl.plugins.stages import Engine

PROBED = 20  # records on which master keys are tried


def judge_run(
    path: Path,
    model: str,
    engine: Mapping[str, Any],
    suites: Sequence[str],
    profile: str,
    prices: tuple[float, float],
    dry: bool,
) -> dict[str, Any]:
    """The judge's report per suite of a run, or (if `dry`) the cost of asking it. Replies are cached in the
    run's folder.

    Args:
        path: The run's folder.
        model: The judge, pinned as name@revision.
        engine: The engine that serves it, as a config mapping.
        suites: Names or YAML paths; empty: all suites of the run.
        profile: The profile whose rule the judge is compared with.
        prices: Per million prompt and reply tokens.
        dry: Only estimate the cost.
    """
    options, all_data, _ = reopen(path)
    names = {load_suite(name).name for name in suites}
    chosen = [data for data in all_data if not names or data.suite.name in names]
    graded = [
        grade(data, responses_from_journal(path, data.suite.name), profile, options.protocol)
        for data in chosen
    ]
    config = JudgeConfig(model, engine, prices=prices)
    if dry:
        judge = open_judge(config, build(Engine, dict(engine), "engine"), path)
        return {suite.data.suite.name: price(judge, judge_questions(suite)) for suite in graded}
    served = open_model(model.partition("@")[0], engine)
    try:
        judge = open_judge(config, served.engine, path)
        return {suite.data.suite.name: judge_report(judge, suite) for suite in graded}
    finally:
        served.close()


def open_judge(config: JudgeConfig, engine: Engine, path: Path) -> Judge:
    """A judge of correctness, with its replies in the run's folder."""
    service = ModelService(config.model, engine, path / "judge", concurrency=config.concurrency)
    return Judge(service, load_template(config.template or "correctness"), config)


def price(judge: Judge, questions: Sequence[Question]) -> dict[str, float]:
    """The cost of asking: prompts that are not cached, their tokens (four characters each), and the price
    (half of `max_tokens` per reply)."""
    asks = [ask for question in questions for ask in judge.asks(question)]
    usage = judge.service.estimate(asks, judge.config.max_tokens // 2)
    return {
        "prompts": usage.calls,
        "prompt_tokens": usage.prompt_tokens,
        "reply_tokens": usage.reply_tokens,
        "price": usage.cost(judge.config.prices),
    }


def judge_questions(graded: GradedSuite, response: str | None = None) -> list[Question]:
    """What the judge is asked about each record, with its first response, or with `response` for all."""
    suite = graded.data.suite
    texts = [samples[0].text if response is None else response for samples in graded.responses]
    return [
        Question((("question", suite.text(record)), ("reference", str(suite.gold(record))), ("answer", text)))
        for record, text in zip(graded.data.records, texts, strict=True)
    ]


def judge_report(
    judge: Judge, graded: GradedSuite, labels: Mapping[str, bool] | None = None
) -> dict[str, Any]:
    """The judge's accuracy beside the rule's, the ids on which they disagree, the acceptance of master keys
    on the first 20 records. A reply that is neither yes nor no counts in `no_verdict` alone.

    With human `labels` by id, also the error rates of both.
    """
    verdicts = judge.ask(judge_questions(graded))
    rule = dict(zip(graded.data.ids, graded.correct, strict=True))
    by_judge = {
        name: verdict.value >= 0.5
        for name, verdict in zip(rule, verdicts, strict=True)
        if verdict.value is not None
    }
    report: dict[str, Any] = {
        "model": judge.service.model,
        "accuracy": sum(by_judge.values()) / max(1, len(by_judge)),
        "rule_accuracy": sum(rule.values()) / max(1, len(rule)),
        "no_verdict": 1 - len(by_judge) / max(1, len(verdicts)) if verdicts else 0.0,
        "judge_only": [name for name, correct in by_judge.items() if correct and not rule[name]],
        "rule_only": [name for name, correct in by_judge.items() if not correct and rule[name]],
        "master_keys": master_key_acceptance(judge, lambda text: judge_questions(graded, text)[:PROBED]),
    }
    if labels:
        report["errors"] = {"judge": error_rates(by_judge, labels), "rule": error_rates(rule, labels)}
    return report

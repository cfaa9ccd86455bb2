"""A judge: a language model that is asked about responses by a template, in k votes, a pair in both orders.

    judge.ask(questions) -> judgements

A judgement without a value is no verdict: the model failed, or its reply could not be read. Whoever asked
leaves the rollout out (`NoScore`), and never counts it as a no.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from vlrl.beside.service import ModelAsk, ModelService, Reply, Usage
from vlrl.beside.templates import JudgeReading, JudgeTemplate, load_template
from vlrl.plugins.capabilities import Annotation
from vlrl.plugins.contexts import StageContext
from vlrl.plugins.registry import ConfigError, build, make
from vlrl.plugins.stages import Engine
from vlrl.services.delegation import Of
from vlrl.types import Media

TOP_LOGPROBS = 20
MARGINS: Annotation[list] = Annotation(
    "margins",
    list,
    hint="rewards: {pairs: {name: judged_margins, ...}}",
    doc="how much better the rollout is than each of its siblings, by a judge",
)


@dataclass(frozen=True)
class JudgeConfig:
    """What `judge` configures.

    Attributes:
        model: The model, pinned as name@revision.
        engine: The config of the engine that serves it.
        template: A packaged template or a YAML file; "": that of the reward.
        max_tokens: Of a reply.
        temperature: Of a reply; votes need one above 0.
        votes: Replies to a question; their mean is the judgement, if more than half can be read.
        both_orders: Ask about a pair in both orders; the mean counts, so that two different verdicts are a
            tie.
        logprobs: Of ordered choices, take the mean over their probabilities, where the engine gives them.
        structured: Hold the reply to a JSON schema, where the engine can.
        concurrency: Calls at once, of an endpoint.
        max_calls: Calls of the whole run; 0: any number.
        token_budget: Tokens of the whole run; 0: any number.
        prices: Per million prompt and reply tokens.
        cache: A folder that keeps replies over runs; "": in the run's folder.
        report: The file that `vlrl judge check --save` wrote about this judge; "": none is read.
        unless_good: What a run does whose report calls the judge gullible, biased or broken.
    """

    model: str
    engine: Mapping[str, Any]
    template: str = ""
    max_tokens: int = 512
    temperature: float = 0.0
    votes: int = 1
    both_orders: bool = True
    logprobs: bool = False
    structured: bool = False
    concurrency: int = 16
    max_calls: int = 0
    token_budget: int = 0
    prices: tuple[float, float] = (0.0, 0.0)
    cache: str = ""
    report: str = ""
    unless_good: Literal["warn", "refuse"] = "refuse"

    def __post_init__(self) -> None:
        for name in ("max_tokens", "votes", "concurrency"):
            if getattr(self, name) < 1:
                raise ConfigError(f"judge.{name}: expected a whole number above 0, got {getattr(self, name)}")
        if self.votes > 1 and not self.temperature:
            raise ConfigError(
                "judge.votes: replies at temperature 0 are equal; set judge.temperature, like 0.7"
            )


def check_judge(spec: Mapping[str, Any], where: str) -> JudgeConfig:
    """The config of a `judge`. Raises ConfigError for one without model and engine, and for a wrong field."""
    if not {"model", "engine"} <= set(spec):
        example = "{model: name@revision, engine: {name: openai, url: http://host:8000/v1, model: name}}"
        raise ConfigError(
            f"{where}: got {sorted(spec) or 'nothing'}; a judge has a model and an engine, like {example}"
        )
    config = make(JudgeConfig, spec, where)
    if config.template:
        load_template(config.template)
    found = doubts(config, where)
    if found and config.unless_good == "refuse":
        raise ConfigError(f"{found}; use another judge, or set judge.unless_good: warn")
    return config


def doubts(config: JudgeConfig, where: str) -> str:
    """What the judge's report holds against it; "" for a good judge, and without a report. Raises ConfigError
    for a report that is missing, or is about another judge."""
    if not config.report:
        return ""
    try:
        reports = json.loads(Path(config.report).read_text(encoding="utf-8"))
        known = [report for report in reports.values() if report.get("model") == config.model]
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{where}.report: {config.report!r} cannot be read ({error}); write it with `vlrl judge check "
            f"CONFIG --save {config.report}`"
        ) from error
    if config.template:
        named = load_template(config.template).name
        known = [report for report in known if report.get("template") == named]
    if not known:
        raise ConfigError(
            f"{where}.report: {config.report!r} says nothing of {config.model} with template "
            f"{config.template or 'of the reward'!r}; check this judge: `vlrl judge check CONFIG --save "
            f"{config.report}`"
        )
    bad = [report for report in known if report["kind"] != "good"]
    return f"{where}: {config.report} says that it is {bad[0]['findings'][0]}" if bad else ""


@dataclass(frozen=True)
class Question:
    """What a judge is asked: the fields of its template, in order, and pictures. `names`: of a ranking's
    answers."""

    values: tuple[tuple[str, str], ...]
    images: tuple[Media, ...] = ()
    videos: tuple[Media, ...] = ()
    names: tuple[str, ...] = ()

    def swapped(self) -> Question:
        """The question with answer_a and answer_b exchanged."""
        values = dict(self.values)
        values["answer_a"], values["answer_b"] = values["answer_b"], values["answer_a"]
        return Question(tuple(values.items()), self.images, self.videos, self.names)


@dataclass(frozen=True)
class Judgement:
    """What a judge says of a question. `value` in [0, 1], of a pair: how much better the first answer is;
    None: no verdict, and `reason` says why. `order`: of a ranking, best first. `flipped`: a pair got
    different verdicts in its two orders. `failed`: the model did not answer."""

    value: float | None = None
    order: tuple[int, ...] = ()
    reason: str = ""
    flipped: bool = False
    failed: bool = False

    @property
    def unread(self) -> bool:
        """Whether there is no verdict."""
        return self.value is None and not self.order


@dataclass
class Judge:
    """A model that is asked by a template.

    Attributes:
        service: The model.
        template: The prompt, and how a verdict is read.
        config: Votes, orders, sampling.
    """

    service: ModelService
    template: JudgeTemplate
    config: JudgeConfig
    middle: ClassVar[float] = 0.5  # the value from which on an answer counts as right

    form: ClassVar[Of[str]] = Of("template")
    fields: ClassVar[Of[tuple[str, ...]]] = Of("template")
    name: ClassVar[Of[str]] = Of("template")
    usage: ClassVar[Of[Usage]] = Of("service")  # what the model did so far
    prices: ClassVar[Of[tuple[float, float]]] = Of("config")  # per million prompt and reply tokens

    def asks(self, question: Question, seed: int = 0) -> list[ModelAsk]:
        """The requests of a question: all votes, each in both orders if it is a pair. Another `seed` asks
        anew what is cached."""
        config, both = self.config, self.template.form == "pair" and self.config.both_orders
        return [
            ModelAsk(
                self.template.fill(dict(one.values)),
                system=self.template.system,
                images=one.images,
                videos=one.videos,
                temperature=config.temperature,
                max_tokens=config.max_tokens,
                seed=seed + vote,
                logprobs=TOP_LOGPROBS if config.logprobs else 0,
                schema=self.template.schema if config.structured else "",
            )
            for vote in range(config.votes)
            for one in ([question, question.swapped()] if both else [question])
        ]

    def ask(self, questions: Sequence[Question], seed: int = 0) -> list[Judgement]:
        """One judgement per question; all are asked at once."""
        asks = [self.asks(question, seed) for question in questions]
        replies = iter(self.service.ask([ask for several in asks for ask in several]))
        return [
            self._judgement(question, [next(replies) for _ in several])
            for question, several in zip(questions, asks, strict=True)
        ]

    def _judgement(self, question: Question, replies: Sequence[Reply]) -> Judgement:
        readings = [self._reading(reply, question.names) for reply in replies]
        if self.template.form == "pair" and self.config.both_orders:
            readings, flips = _both_orders(readings)
        else:
            flips = 0
        read = [reading for reading in readings if not reading.unread]
        if 2 * len(read) <= len(readings):
            failures = [reply.failure for reply in replies if reply.failure]
            reason = failures[0] if failures else next(r.reason for r in readings if r.unread)
            return Judgement(reason=reason, failed=bool(failures), flipped=flips > 0)
        if self.template.form == "ranking":
            return Judgement(order=_borda([reading.order for reading in read]), reason=read[0].reason)
        value = math.fsum(reading.value or 0.0 for reading in read) / len(read)
        return Judgement(value, reason=read[0].reason, flipped=flips > 0)

    def _reading(self, reply: Reply, names: Sequence[str]) -> JudgeReading:
        if reply.failure:
            return JudgeReading(reason=reply.failure)
        reading = self.template.read(reply.text, names)
        if reply.cut and reading.unread:
            return JudgeReading(
                reason=f"{reading.reason}; the reply was cut at {self.config.max_tokens} tokens"
            )
        if reading.span and reply.logprobs and self.template.form == "choice":
            expected = expected_value(self.template.choices, reply, reading.span[0])
            return reading if expected is None else JudgeReading(expected, (), reading.reason, reading.span)
        return reading


def _both_orders(readings: Sequence[JudgeReading]) -> tuple[list[JudgeReading], int]:
    """One reading per vote from those of both orders, and how many votes were different."""
    found, flips = [], 0
    for first, second in zip(readings[::2], readings[1::2], strict=True):
        if first.value is None or second.value is None:
            found.append(first if first.value is None else second)
            continue
        flips += first.value != 1 - second.value
        found.append(JudgeReading((first.value + 1 - second.value) / 2, (), first.reason))
    return found, flips


def _borda(orders: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The order by the mean place in several orders; equal ones by number."""
    count = len(orders[0])
    return tuple(sorted(range(count), key=lambda i: (sum(order.index(i) for order in orders), i)))


def expected_value(choices: Sequence[str], reply: Reply, place: int) -> float | None:
    """sum_i P(choice i) i / (n - 1) over ordered choices, from the top log-probs of the token at `place`
    (characters); None where the choices do not differ in one token.

    P is over the tokens that begin exactly one choice.
    """
    at, found = 0, None
    for text, top in reply.logprobs or ():
        lead = len(text) - len(text.lstrip())
        if at <= place < at + len(text) and place == at + lead:
            found = top
        at += len(text)
    mass = [0.0] * len(choices)
    for text, value in (found or {}).items():
        word = text.strip().casefold()
        fits = [i for i, choice in enumerate(choices) if word and choice.casefold().startswith(word)]
        if len(fits) == 1:
            mass[fits[0]] += math.exp(value)
    total = math.fsum(mass)
    if not total:
        return None
    return math.fsum(m * i for i, m in enumerate(mass)) / total / (len(choices) - 1)


def open_service(
    spec: Mapping[str, Any], run: StageContext, where: str, usage: Usage | None = None, folder: str = "judge"
) -> tuple[ModelService, JudgeConfig]:
    """The model that `spec` configures, with an engine of its own, and its config. Replies are kept in
    `folder` of the run's folder, a file for each rank.

    Raises ConfigError for a wrong config (`check_judge`) and for a model without a revision.
    """
    config = check_judge(spec, where)
    engine = build(Engine, config.engine, f"{where}.engine")
    engine.setup(run)
    service = ModelService(
        config.model,
        engine,
        Path(config.cache).expanduser() if config.cache else run.output / folder,
        f"replies-{run.rank}.jsonl",
        config.concurrency,
        config.max_calls,
        config.token_budget,
        usage if usage is not None else Usage(),
    )
    return service, config


def open_judge(
    spec: Mapping[str, Any], run: StageContext, where: str, template: str, usage: Usage | None = None
) -> Judge:
    """The judge that `spec` configures (`open_service`). `template` is that of the asker. Warns of a judge
    that its report holds something against."""
    service, config = open_service(spec, run, where, usage)
    if found := doubts(config, where):
        run.warn(found)
    return Judge(service, load_template(config.template or template), config)


def quoted(response: str) -> str:
    """A response as it stands between lines of dashes: without lines of its own that look like them."""
    return re.sub(r"-{4,}", "---", response)

"""What a run will cost, said before it starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from vlrl.eval.collect import Draw, Todo, _batch
from vlrl.eval.prompts import ask
from vlrl.eval.rows import Rows

BYTES_PER_TOKEN = 5  # of a journal line: about four characters of text, and its share of the braces


def plan(
    all_rows: Sequence[Rows], todo: Sequence[Todo], draw: Draw, served: Any, prices: tuple[float, float] = (0.0, 0.0), probe: int = 0
) -> dict[str, Any]:
    """Requests, tokens at most, disk, price, and (with a probe of that many requests) seconds.

    Prompt tokens are measured on up to four rows of a suite; `prices` are per million prompt and response tokens. The probe's responses are
    thrown away.
    """
    lengths = {rows.suite.name: _prompt_tokens(rows, draw, served.policy) for rows in all_rows}
    caps = {rows.suite.name: draw.cap(rows) for rows in all_rows}
    prompts = sum(lengths[item.rows.suite.name] for item in todo)
    responses = sum(caps[item.rows.suite.name] for item in todo)
    out: dict[str, Any] = {
        "requests": len(todo),
        "prompt_tokens": int(prompts),
        "response_tokens_at_most": int(responses),
        "disk_bytes_at_most": int(responses * BYTES_PER_TOKEN + 400 * len(todo)),
        "price_at_most": round((prompts * prices[0] + responses * prices[1]) / 1e6, 4),
    }
    if probe and todo:
        chosen = list(todo)[:: max(1, len(todo) // probe)][:probe]
        started = time.monotonic()
        entries = list(_batch(served.engine, chosen, draw, served.policy))
        seconds = time.monotonic() - started
        tokens = sum(entry.tokens for entry in entries)
        out["probe"] = {"requests": len(entries), "tokens": tokens, "seconds": round(seconds, 2)}
        out["seconds_about"] = round(seconds / len(entries) * len(todo), 1)
    return out


def _prompt_tokens(rows: Rows, draw: Draw, policy: Any) -> float:
    numbers = range(0, len(rows), max(1, len(rows) // 4))
    lengths = []
    for number in list(numbers)[:4]:
        prompt = ask(rows, number, "plain", draw.protocol).prompt
        text = str(prompt.row.question)
        lengths.append(len(policy.encode(prompt).ids) if policy is not None else len(text) / 4 + 1000 * len(prompt.images + prompt.videos))
    return sum(lengths) / max(1, len(lengths))


def describe(plan_: dict[str, Any]) -> str:
    """A plan for people."""
    megabytes = plan_["disk_bytes_at_most"] / 1e6
    parts = [f"{plan_['requests']} requests, {plan_['prompt_tokens']:,} prompt tokens, at most {plan_['response_tokens_at_most']:,} response tokens"]
    parts.append(f"at most {megabytes:.1f} MB of journal")
    if plan_["price_at_most"]:
        parts.append(f"at most {plan_['price_at_most']:.2f} to pay")
    if "seconds_about" in plan_:
        parts.append(f"about {plan_['seconds_about']:.0f} s (from a probe of {plan_['probe']['requests']})")
    return "; ".join(parts)

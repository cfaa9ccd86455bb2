"""HierTraversal: recall of knowledge in a hierarchy, with and without a prompt that walks it level by level.

    gap = accuracy(RL) - accuracy(SFT), plain and structured; closed = 1 - structured gap / plain gap path
    recall = share of the gold path's nodes that the response names in their order, by depth of retrieval
    cos_l = cosine of two models' hidden states at layer l, on a statement ("code 57.95 is ...") and on a
    query

Paper: Reinforcement Learning Improves Traversal of Hierarchical Knowledge in LLMs, arXiv:2511.05933:
structured prompts close most of the gap (24 to 7 points on MedConceptsQA); statements stay alike, queries
part. Rows bring `meta.path` (the nodes from the root to the answer) and `meta.statement`. Words of the
prompt are ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from vlrl.plugins.registry import ConfigError
from vlrl.probes.probed_model import ProbedModel
from vlrl.probes.result import Figure, ProbeResult, against
from vlrl.services.lazy import torch
from vlrl.types import Row

STRUCTURED = (
    "{question}\nWalk the hierarchy from its top: name the chapter, then the section, then each "
    "level below it, and "
    "only then answer."
)
RECOVERED = 0.5  # "most of the gap"


def path_recall(text: str, path: Sequence[str]) -> float:
    """The share of the path's nodes that the text names in their order: the longest common subsequence of
    first mentions, over the path's length. Case is ignored; 0 for an empty path."""
    low = text.lower()
    places = [low.find(node.lower()) for node in path]
    best: list[int] = []
    for number, place in enumerate(places):
        before = [best[i] for i in range(number) if 0 <= places[i] < place]
        best.append(0 if place < 0 else 1 + max(before, default=0))
    return max(best, default=0) / len(path) if path else 0.0


def states(subject: ProbedModel, text: str) -> list[torch.Tensor]:
    """The last token's hidden state at each layer (1, ..., L)."""
    policy = subject.session.policy
    ids = torch.tensor([policy.encode_text(text)], device=policy.device)
    with torch.no_grad():
        found = policy.model(input_ids=ids, output_hidden_states=True).hidden_states
    return [state[0, -1].float().cpu() for state in found[1:]]


def cosines(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> list[float]:
    """The cosine of two models' states, layer by layer."""
    return [float(torch.cosine_similarity(x, y, dim=0)) for x, y in zip(a, b, strict=True)]


def nodes(row: Row) -> list[str]:
    """The row's gold path. Raises ConfigError for a row without one."""
    if not (path := row.meta.get("path")):
        raise ConfigError(
            f"probe: row {row.id!r} has no meta.path; give rows with the nodes from the root to "
            f"the answer, such as "
            "tasks/gen_hierarchy"
        )
    return [str(node) for node in path]


def measure(words: Sequence[str], before: str, after: str, rows: int) -> ProbeResult:
    """Both models (before and after RL) with both prompts; the cosines between them."""
    table: list[list[Any]] = []
    right: dict[tuple[str, str], list[float]] = {}
    kept: dict[str, list[list[list[torch.Tensor]]]] = {"statement": [], "query": []}
    recalls: dict[str, dict[int, list[float]]] = {}
    for name in (before, after):
        with ProbedModel(words, name, rows) as subject:
            for mode in ("plain", "structured"):
                texts = [
                    STRUCTURED.format(question=r.question) if mode == "structured" else ""
                    for r in subject.rows
                ]
                groups = subject.ask([subject.prompt(row, text) for row, text in zip(subject.rows, texts)])
                found = [path_recall(g.rollouts[0].text if len(g) else "", nodes(g.row)) for g in groups]
                by_depth = recalls.setdefault(f"{subject.name}, {mode}", defaultdict(list))
                for group, value in zip(groups, found):
                    by_depth[len(nodes(group.row))].append(value)
                own = [float(bool(len(g) and g.rollouts[0].correct)) for g in groups]
                right[mode, name] = own
                table.append([subject.name, mode, sum(own) / len(own), sum(found) / len(found)])
            for kind, values in kept.items():
                asked = [
                    str(r.meta.get("statement", "")) if kind == "statement" else r.question
                    for r in subject.rows
                ]
                values.append([states(subject, text) for text in asked if text])
    alike = {
        kind: [sum(c) / len(c) for c in zip(*(cosines(a, b) for a, b in zip(*values, strict=True)))]
        for kind, values in kept.items()
    }
    pairs = {mode: (right[mode, after], right[mode, before]) for mode in ("plain", "structured")}
    lines = {
        name: [(float(depth), sum(v) / len(v)) for depth, v in sorted(by_depth.items())]
        for name, by_depth in recalls.items()
    }
    figure = Figure(lines, "depth of the path", "share of the gold path that is named in order", unit="share")
    head = ("model", "prompt", "accuracy", "path recall")
    return ProbeResult(
        "HierTraversal: knowing and walking", stated(pairs, alike), head, table, figure, {"cosine": alike}
    )


def stated(
    pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]], alike: dict[str, list[float]]
) -> str:
    """How much of the gap a structured prompt closes, and where the models' states part. `pairs`: what each
    question earns after and before RL, by prompt."""
    gaps = {mode: (sum(after) - sum(before)) / len(after) for mode, (after, before) in pairs.items()}
    plain, words = gaps["plain"], against(*pairs["plain"])
    if plain <= 0:
        told = f"no gap to explain: RL gains {words} with the plain prompt"
    else:
        closed = 1 - gaps["structured"] / plain
        kind = "procedure (how to walk)" if closed >= RECOVERED else "more than procedure"
        told = (
            f"a structured prompt closes {closed:.0%} of a gap of {plain:.1%} ({words}): the gain is {kind}"
        )
    ends = {kind: values[-1] for kind, values in alike.items() if values}
    parts = ", ".join(f"{kind} {value:.3f}" for kind, value in ends.items())
    return f"Before and after RL: {told}. Cosine of the last layer's states: {parts}."

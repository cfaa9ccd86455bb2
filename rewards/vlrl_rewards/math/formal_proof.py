"""A formal proof in a response, judged by a proof checker."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vlrl.plugins.contexts import StageContext
from vlrl.plugins.registry import ConfigError, register
from vlrl.plugins.scoring import Answer, GoldError, NoScore, Response, Unread, Verdict, verdict
from vlrl.plugins.stages import StepCounts, transient
from vlrl.types import Group, Row
from vlrl_rewards.graded import Graded
from vlrl_rewards.math.proof_service import Checked, ProofClient
from vlrl_rewards.math.small_logic import LogicError, parse_theorem
from vlrl_rewards.parsing import outside_thinking

HEADER = (
    "import Mathlib\nimport Aesop\nset_option maxHeartbeats 400000\nopen BigOperators Real Nat Topology Rat"
)
_BLOCK = re.compile(r"```lean4?[ \t]*\n(.*?)```", re.DOTALL)
_NOTE = re.compile(r"/-.*?-/|--[^\n]*", re.DOTALL)
# What a proof has no need of, and what could make another statement of the one that is asked.
FORBIDDEN = re.compile(
    r"#\w+|\b(?:sorry|admit|axiom|native_decide|unsafe|partial|macro|macro_rules|elab|syntax|notation"
    r"|infix[lr]?|prefix|postfix|theorem|lemma|example|def|abbrev|instance|structure|class|inductive|opaque|constant"
    r"|variable|import"
    r"|open|end|namespace|section|set_option|attribute|local|scoped|export|universe|mutual|initialize"
    r"|run_cmd|implemented_by|extern|csimp)\b"
)


@dataclass
class FormalProofState(StepCounts):
    """`client` of the checker; `said` is what it said of the batch's texts."""

    client: ProofClient | None = transient()
    said: dict[str, Checked] = transient(factory=dict)


@register("formal_proof")
@dataclass(frozen=True, kw_only=True)
class FormalProof(Graded):
    """1 for a proof of the row's theorem that a proof checker accepts, else 0.

    The row's `meta.formal` is the statement, `theorem NAME ... : ...`; the proof is the last ```lean4 block
    outside the thinking, the tactics alone or behind the same statement and `:= by`. What is checked is the
    row's own statement with these tactics. Paper: NFL-HR, arXiv:2505.23703 (Lean 4; proofs are not checked
    there, a limitation that it names). Edge: no block, another statement, a word of `FORBIDDEN`, `sorry`, or
    more than `seconds`: 0; a row without a theorem: 0; a checker that fails: no score.

    Attributes:
        url: Of a Kimina Lean Server; "": a server of the small logic in this process.
        header: Stands before the theorem, with `url` ("" for a served small logic).
        seconds, deadline: For one proof, and for the answer to a batch.
    """

    state_class = FormalProofState
    needs_gold: ClassVar[bool] = False
    refusals: ClassVar[bool] = False
    url: str = ""
    header: str = HEADER
    seconds: int = 60
    deadline: float = 600.0

    def __post_init__(self) -> None:
        if self.seconds < 1 or self.deadline < self.seconds:
            raise ConfigError(
                f"formal_proof: seconds={self.seconds} must be 1 or more, and deadline={self.deadline:g} not "
                "below it"
            )

    def setup(self, run: StageContext) -> None:
        super().setup(run)
        if not self.client.reachable():
            raise ConfigError(
                f"rewards: 'formal_proof' url: nothing answers at {self.url!r}; start the checker there "
                "(a Kimina Lean Server, or `python -m vlrl_rewards.math.proof_service`), or leave url out "
                "for the small logic"
            )

    @property
    def client(self) -> ProofClient:
        """The checker's client, opened on first use."""
        if self.state.client is None:
            self.state.client = ProofClient(self.url, self.seconds, self.deadline)
        return self.state.client

    def prepare(self, groups: Sequence[Group]) -> None:
        texts = [self.text(rollout.text, group.row) for group in groups for rollout in group]
        wanted = list(dict.fromkeys(text for text in texts if text))
        self.state.said.clear()
        self.state.said.update(zip(wanted, self.client.check(wanted), strict=True))

    def text(self, response: str, row: Row) -> str:
        """What is sent to the checker; "" for nothing."""
        try:
            return self.whole(submitted(response), row)[0]
        except (Unread, GoldError):  # `grade` says so
            return ""

    def whole(self, answer: Answer, row: Row) -> tuple[str, str]:
        """(the row's statement with the tactics of an answer, why it is not checked); one of them is ""."""
        statement = statement_of(row, self.url == "")
        if not statement:
            return "", "the row has no theorem"
        tactics = tactics_of(answer.text, statement)
        if tactics is None:
            return "", "it proves another statement"
        if found := FORBIDDEN.search(_NOTE.sub(" ", tactics)):
            return "", f"a proof may not hold {found[0]!r}"
        header = f"{self.header}\n\n" if self.url and self.header else ""
        return f"{header}{statement} := by\n{tactics}", ""

    def grade(self, response: Response, gold: Any, row: Row) -> Verdict:
        answer = submitted(response.text)
        text, refused = self.whole(answer, row)
        if refused:
            return verdict(answer, 0.0, False, refused, "not checked", answer.text[:2000])
        if text not in self.state.said:
            (self.state.said[text],) = self.client.check([text])
        said = self.state.said[text]
        self.state.add(checked=1, proved=said.proved, failed=bool(said.failure))
        if said.failure:
            raise NoScore(f"reward {self.name!r}: the proof checker failed: {said.failure}")
        reason = "the checker accepts it" if said.proved else said.message
        return verdict(answer, float(said.proved), said.proved, reason, "checker", answer.text[:2000])

    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        return {
            "formal_proof/proved": self.state.share("proved", "checked"),
            "formal_proof/failed": self.state.share("failed", "checked"),
        }


def submitted(response: str) -> Answer:
    """The last block of Lean outside the thinking. Raises Unread where there is none."""
    blocks = list(_BLOCK.finditer(outside_thinking(response)))
    if not blocks or not blocks[-1][1].strip():
        raise Unread("no ```lean4 block in the answer")
    block = blocks[-1]
    start = response.find(block[1])
    return Answer(block[1], start, start + len(block[1]), "block")


def statement_of(row: Row, small: bool) -> str:
    """The row's theorem without `:= by`; "" for none. Raises GoldError for one that is none."""
    text = row.meta.get("formal", "")
    if not isinstance(text, str):
        raise GoldError(f"meta.formal: {text!r} is no text")
    statement = text.partition(":= by")[0].strip()
    if statement and not statement.startswith("theorem "):
        raise GoldError(f"meta.formal: {statement[:80]!r} does not begin with `theorem`")
    if statement and small:
        try:
            parse_theorem(statement)
        except LogicError as error:
            raise GoldError(
                f"meta.formal: {statement[:200]!r} is no theorem of the small logic: {error}"
            ) from None
    return statement


def tactics_of(block: str, statement: str) -> str | None:
    """The tactics of a block: all of it, or what stands behind the statement and `:= by`; None behind another
    statement."""
    place = block.find("theorem ")
    if place < 0:
        return block
    said, sign, tactics = block[place:].partition(":= by")
    same = " ".join(said.split()) == " ".join(statement.split())
    return tactics if sign and same else None

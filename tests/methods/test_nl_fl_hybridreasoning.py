"""NL-FL HybridReasoning: the checker over HTTP, the reward of a checked proof, and the mixed input."""

import json
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from tiny import text_run
from vlrl_data.generators.existence import GenExistence
from vlrl_rewards.math.formal_proof import FormalProof, tactics_of
from vlrl_rewards.math.proof_service import Checked, ProofClient, ProofServer, read
from vlrl_rewards.math.small_proofs import check

from vlrl.methods.papers.nl_fl_hybridreasoning import NlFlHybridreasoning, read_theorem
from vlrl.plugins.registry import ConfigError, build
from vlrl.plugins.scoring import GoldError, NoScore
from vlrl.plugins.stages import Reward
from vlrl.services.http import JsonClient, ServiceError
from vlrl.trainer.views import StepView
from vlrl.types import Group, Prompt, Rollout, Row

STATEMENT = "theorem t : ∃ x : ℤ, 3 * x + 4 = 19"
GOOD, WRONG = "use 5\nnorm_num", "use 6\nnorm_num"


def block(tactics):
    return f"x is five.\n```lean4\n{tactics}\n```\n<answer>5</answer>"


def rollout(text, formal=STATEMENT):
    row = Row("a", "3 times a number, plus 4, is 19.", 5, task="existence", meta={"formal": formal})
    return Rollout(Prompt(row, ()), [1], text=text)


# --- the service --------------------------------------------------------------------------------------------


def test_the_client_and_a_served_checker_speak_one_protocol():
    server = ProofServer().start()
    try:
        client = ProofClient(server.url)
        assert client.reachable()
        said = client.check([f"{STATEMENT} := by\n  {t}" for t in (GOOD, WRONG, "sorry", GOOD)])
        assert [one.proved for one in said] == [True, False, False, True]
        assert said[1].message == "step 2, norm_num: it is false" and said[2].sorry and not said[1].sorry
        assert not any(one.failure for one in said)
        raw = JsonClient(server.url, attempts=1)
        answer = raw.post("/verify", {"codes": [{"custom_id": 7, "code": "theorem t : 1 = 1 := by\n rfl"}]})
        assert answer == {
            "results": [
                {"custom_id": "7", "error": None, "response": {"env": 0, "messages": [], "sorries": []}}
            ]
        }
        for body in ({}, {"codes": [{}]}, {"codes": [{"custom_id": 1, "proof": 5}]}, {"codes": 3}, [1]):
            with pytest.raises(ServiceError, match="422"):
                raw.post("/verify", body)
        assert client.check([]) == []
    finally:
        server.close()
    gone = ProofClient(server.url, attempts=1)
    assert gone.check(["x"])[0].failure and not gone.reachable(), "a server that is gone says nothing"


class Odd(BaseHTTPRequestHandler):
    """A server whose answers are wrong in a way of its own; `seen` are the texts that it was sent."""

    seen: list[list[str]] = []
    way = "late"

    def do_POST(self):
        codes = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["codes"]
        type(self).seen.append([one["proof"] for one in codes])
        late = {"error": "Lean REPL command timed out in 2 seconds", "response": None}
        fine = {"error": None, "response": {"env": 0}}
        result = {
            "late": late,
            "late once": late if len(codes) > 1 else fine,
            "broken": {"error": "REPL died", "response": None},
            "nothing": {"error": None},
            "text": "yes",
        }.get(self.way, fine)
        results = (
            [{"custom_id": one["custom_id"], **result} for one in codes] if self.way != "text" else "yes"
        )
        if self.way == "one left out":
            results = results[1:]
        content = json.dumps({"results": results}).encode()
        if self.way == "slow":
            time.sleep(1.5)
        self.send_response(500 if self.way == "500" else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format, *args):
        """Say nothing."""


@pytest.fixture
def odd():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Odd.seen = []
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "way, first, second",
    [
        ("late", "not proved within 2 s", "not proved within 2 s"),  # twice, the second time alone: a verdict
        ("late once", "proved", "proved"),
        ("broken", "failure", "failure"),
        ("nothing", "failure", "failure"),
        ("text", "failure", "failure"),
        ("one left out", "failure", "proved"),
        ("500", "failure", "failure"),
        ("slow", "failure", "failure"),
    ],
)
def test_a_failure_of_the_checker_is_no_verdict(odd, monkeypatch, way, first, second):
    monkeypatch.setattr(Odd, "way", way)
    client = ProofClient(odd, seconds=2, deadline=0.5 if way == "slow" else 5.0, attempts=1)
    said = client.check(["a", "b"])
    for one, wanted in zip(said, (first, second), strict=True):
        found = "failure" if one.failure else "proved" if one.proved else one.message
        assert found == wanted
    assert Odd.seen == ([["a", "b"], ["a"], ["b"]] if way.startswith("late") else [["a", "b"]])


def test_answers_of_lean_are_read():
    error = {"severity": "error", "pos": {"line": 1, "column": 0}, "data": "unsolved goals"}
    warning = {"severity": "warning", "data": "declaration uses 'sorry'"}
    assert read({"error": None, "response": {"env": 0, "messages": [error]}}) == Checked(
        message="unsolved goals"
    )
    assert read({"response": {"messages": [warning]}}).sorry
    assert read({"response": {"env": 1, "messages": [{"severity": "info", "data": "linter"}]}}).proved
    assert read(None).failure and read({"response": {"messages": ["x"]}}).failure


# --- the reward ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, score",
    [
        (block(GOOD), 1.0),
        (block(f"{STATEMENT} := by\n  use 5\n  norm_num"), 1.0),
        (
            block(f"import Mathlib\n\n{STATEMENT} :=  by\n  use 5").replace(":=  by", ":= by") + block(GOOD),
            1.0,
        ),
        (block(WRONG), 0.0),
        ("", 0.0),
        ("The proof is `use 5`.", 0.0),
        (block("sorry"), 0.0),
        (block("theorem t : 1 = 1 := by\n  rfl"), 0.0),  # another statement
        (block(f"{STATEMENT} := by\n  sorry\ntheorem u : 1 = 1 := by\n  rfl"), 0.0),
        (block("axiom a : False\nexact a"), 0.0),
        (block("use 5 -- sorry\nnorm_num /- sorry -/".replace(" /- sorry -/", "")), 1.0),
        ("```lean4\n```", 0.0),
        ("<think>" + block(GOOD) + "</think> I give up.", 0.0),
    ],
)
def test_what_a_proof_is_paid(text, score):
    assert build(Reward, "formal_proof")(rollout(text)) == score


def test_a_batch_is_asked_about_once_and_failures_leave_the_group(odd, monkeypatch):
    monkeypatch.setattr(Odd, "way", "broken")
    reward = FormalProof(url=odd, seconds=2, deadline=5.0)
    group = Group(
        rollout("").prompt, [rollout(block(GOOD)), rollout(block(WRONG)), rollout(block(GOOD)), rollout("")]
    )
    reward.prepare([group])
    assert len(Odd.seen) == 1 and len(Odd.seen[0]) == 2 and Odd.seen[0][0].startswith("import Mathlib")
    assert f"{STATEMENT} := by\nuse 5" in Odd.seen[0][0]
    for one in group.rollouts[:3]:
        with pytest.raises(NoScore, match="REPL died"):
            reward(one)
    assert reward(group.rollouts[3]) == 0.0, "nothing was sent of a response without a proof"


def test_broken_rows_and_settings_are_told():
    reward = build(Reward, "formal_proof")
    for formal in (5, "lemma t : 1 = 1", "theorem t : ∃ x : ℕ, x = 1"):
        with pytest.raises(GoldError, match="meta.formal"):
            reward(rollout(block(GOOD), formal))
    assert reward(rollout(block(GOOD), "")) == 0.0, "a row without a theorem pays no proof"
    with pytest.raises(ConfigError, match="deadline=1"):
        FormalProof(seconds=5, deadline=1.0)
    with pytest.raises(ConfigError, match="nothing answers at 'http://127.0.0.1:9'"):
        FormalProof(url="http://127.0.0.1:9").setup(SimpleNamespace())
    assert tactics_of("use 5", STATEMENT) == "use 5"
    assert tactics_of(f"{STATEMENT.replace(' x', '  x')} := by use 5", STATEMENT) == " use 5"
    assert tactics_of("theorem t : True", STATEMENT) is None


def test_rows_have_a_theorem_that_their_demonstration_proves():
    rows = GenExistence(count=300)()
    kinds = set()
    for row in rows:
        text = row.target.partition("```lean4\n")[2].partition("```")[0]
        assert check(f"{row.meta['formal']} := by\n{text}") == "", row
        assert check(
            f"{row.meta['formal']} := by\n{text.replace(f'use {row.answer}', f'use {row.answer + 1}')}"
        )
        kinds.add(row.question.split()[0] + row.question.split()[-1])
    assert len(kinds) >= 4


# --- the mixed input ----------------------------------------------------------------------------------------


def test_theorems_are_written_once_and_rows_without_one_are_asked_alone():
    run = text_run([], ["group_size=2", "max_prompt_tokens=4096", "rewards.format=null"])
    strategy = NlFlHybridreasoning(translator={"name": "fake"})
    strategy.setup(run)
    asked = []

    def translate(requests):
        for request in requests:
            asked.append(request.prompt.row.id)
            good = request.tag == run.rows["arithmetic"][0].id
            reply = "```lean4\ntheorem sum : ∃ x : ℤ, x = 2 + 3 := by\n  sorry\n```" if good else "I cannot."
            yield SimpleNamespace(request=request, text=reply)

    strategy.state.translator = SimpleNamespace(generate=translate)
    prompts = [run.prompt_template(row) for row in run.rows["arithmetic"][:2]]
    for _ in range(2):
        first, second = strategy(prompts, [2, 1], StepView.between_steps(run))
    assert asked == [f"{prompt.row.id}/formal" for prompt in prompts], "a reply is kept, also a useless one"
    assert first.row.meta["formal"] == "theorem sum : ∃ x : ℤ, x = 2 + 3" and len(first) == 2
    assert prompts[0].row.question in first.prompt.text and "x = 2 + 3 := by" in first.prompt.text
    assert "formal" not in second.row.meta and second.prompt.text == prompts[1].text and len(second) == 1
    assert strategy.state.counts == {"rows": 4, "aligned": 2}
    own = replace(prompts[1].row, meta={"formal": "theorem own : 1 = 1 := by sorry"})
    (group,) = strategy([run.prompt_template(own)], [1], StepView.between_steps(run))
    assert group.row.meta["formal"] == "theorem own : 1 = 1"


def test_the_theorem_of_a_reply():
    assert read_theorem("theorem a : P := by\n sorry\nand theorem b : Q :=\n by simp") == "theorem b : Q"
    assert read_theorem("no theorem here") == "" and read_theorem("theorem a : P") == ""

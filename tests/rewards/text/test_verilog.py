"""Modules in Verilog beside a golden one: what is paid, what is not, and what an answer cannot forge."""

import json

import pytest
from vlrl_data.generators.circuits import CIRCUITS, GenVerilog
from vlrl_rewards.code import verilog as V
from vlrl_rewards.code.verilog import Golden, Stimulus, Verilog, bench_of, goldens_in, refusal, top_of

from vlrl.plugins.registry import ConfigError
from vlrl.plugins.scoring import GoldError

CODE = """module counter(input clk, input rst, input en, output reg [7:0] q);
always @(posedge clk) if (rst) q <= 0; else if (en) q <= q + 1;
endmodule"""
GOLD = {
    "code": CODE,
    "input_port_width": [["clk", 1], ["rst", 1], ["en", 1]],
    "output_port_width": [["q", 8]],
    "clock_port_polarity": [["clk", 1]],
    "reset_port_polarity_sync": [["rst", 1, True]],
}
PORTS = "(input clk, input rst, input en, output reg [7:0] q)"
ADD = "function [7:0] add(input [7:0] a); add = a + 8'd1; endfunction\nalways"
simulated = pytest.mark.needs("iverilog")


def pay(code, gold=GOLD, **fields):
    text = code if "```" in code else f"```verilog\n{code}\n```"
    return Verilog(**{"sequences": 4, "steps": 40, **fields}).verify(gold, text)


@simulated
@pytest.mark.parametrize(
    ("code", "score", "reason"),
    [
        (CODE, 1.0, "equivalent"),
        (CODE.replace("counter", "mine"), 1.0, "equivalent"),  # any name
        (CODE.replace("q + 1", "add(q)").replace("always", ADD), 1.0, "equivalent"),
        (CODE.replace("q <= q + 1;", "begin q <= q + 1; $display(\"%d\", q); end"), 1.0, "equivalent"),
        ("module top" + PORTS.replace("reg ", "") + "; counter c(clk, rst, en, q); endmodule\n" + CODE, 1.0,
         "equivalent"),
        (CODE.replace("+ 1", "+ 2"), 0.0, "other outputs"),
        (CODE.replace("posedge", "negedge"), 0.0, "other outputs"),
        (CODE.replace("if (rst) q <= 0; else ", ""), 0.0, "other outputs"),  # no reset: unknown bits stay
        (CODE.replace("q <= 0", "q = 0").replace("output reg [7:0] q", "output reg [3:0] q"), 0.0, "other"),
        (CODE.replace(" q", " z"), 0.0, "compile"),  # other ports
        ("module a(input clk; endmodule", 0.0, "compile"),
        (f"module a{PORTS}; initial begin q = 1; while (q) q = 1; end endmodule", 0.0, "timeout"),
    ],
)  # fmt: skip
def test_outputs_decide(code, score, reason):
    found = pay(code, seconds=3.0)
    assert (found.score, found.correct) == (score, score == 1.0) and found.reason.startswith(reason), found


@simulated
@pytest.mark.parametrize(
    "text",
    ["", "no module", "```verilog\n```", "```python\nprint(1)\n```", "```verilog\nnot a module\n```",
     "<think>```verilog\n" + CODE + "\n```</think>", "\x00```verilog\nmodule \x00(); endmodule\n```"],
)  # fmt: skip
def test_what_is_no_module_is_not_paid(text):
    assert Verilog(sequences=1, steps=1).verify(GOLD, text).score == 0.0


@simulated
@pytest.mark.parametrize(
    "body",
    [
        'initial begin $display("All tests passed."); $finish; end',
        'initial $system("touch /tmp/forged");',
        "initial #1'b1$finish;",
        '`include "/etc/passwd"',
        "`define F $fin``ish\ninitial `F;",
        "`define T(display) $display\ninitial `T(finish);",
        "initial \\//  $finish;",  # an escaped name, no comment
        'integer f; initial f = $fopen("bench.sv");',
        'reg [7:0] m [0:9]; initial $readmemh("bench.sv", m);',
        "always @($root.x) q = 0;",
    ],
)
def test_what_reaches_past_the_module_is_not_simulated(body):
    found = pay(f"module a{PORTS};\n{body}\nendmodule")
    assert found.score == 0.0 and found.reason.startswith("not simulated"), found


@simulated
def test_a_printed_pass_line_and_a_flood_are_no_result():
    for body in ('initial $display("All tests passed.");', 'initial forever $display("m=1");'):
        assert pay(f"module a{PORTS}; {body} endmodule").score == 0.0
    assert refusal('module a; // $finish\n initial $display("$finish"); endmodule') == ""


def test_the_top_is_the_module_that_no_other_has():
    below = "module b(); endmodule\nmodule a(); b x(); endmodule"
    assert (
        top_of(below) == "a"
        and top_of("// module c\n" + below.replace("a()", "a #(parameter N=1) ()")) == "a"
    )
    assert top_of("module x(); endmodule\nmodule y(); z i(); endmodule\nmodule z(); endmodule") == "y"
    assert top_of("module (") == ""


def test_the_testbench_drives_what_the_release_drives():
    text = bench_of(goldens_in(GOLD)[0], "counter", Stimulus(2, 3, 7), "mark")
    assert "clk_in = 0;" in text and "integer seed = 7;" in text  # a rising edge comes first
    assert text.count("repeat (2)") == 2 and text.count("repeat (3)") == 2  # random resets, then the pulse
    assert "rst_in = 1; #10; clk_in = ~clk_in; #10; clk_in = ~clk_in; #10; rst_in = 0;" in text
    assert "en_in = {$random(seed)};" in text and "clk_in = {" not in text
    wide = Golden("", (("a", 40),), (("y", 1),))
    assert "a_in = {$random(seed), $random(seed)};" in bench_of(wide, "t", Stimulus(), "mark")
    two = wide._replace(inputs=(("a", 1), ("b", 1)), resets=(("a", 1, False), ("b", 0, False)))
    assert bench_of(two, "t", Stimulus(2, 3), "mark").count("repeat (2)") == 4  # and a, b, both


def test_beside_a_reset_with_the_clock_another_is_only_taken_back():
    """verify.py:190-203 of the release: an asynchronous reset of the same combination is never set."""
    golden = Golden(
        "", (("c", 1), ("a", 1), ("b", 1)), (("y", 1),), ("c", True), (("a", 1, True), ("b", 0, False))
    )
    pulses = [
        line.strip() for line in bench_of(golden, "t", Stimulus(2, 3), "mark").split("\n") if "#10;" in line
    ]
    clock = "c_in = ~c_in; #10; c_in = ~c_in; #10;"
    assert pulses == [
        f"a_in = 1; #10; {clock} a_in = 0;",
        "b_in = 0; #10;  b_in = 1;",
        f"a_in = 1; #10; {clock} a_in = 0; b_in = 1;",
    ]


def test_golds_as_json_and_by_name():
    wanted = goldens_in(GOLD)
    assert goldens_in(json.dumps(GOLD)) == goldens_in({"answer": GOLD}) == wanted
    assert wanted[0].clock == ("clk", True) and wanted[0].resets == (("rst", 1, True),)


@pytest.mark.parametrize(
    "gold",
    [None, 3, "", "{}", "[1]", {"code": CODE}, {**GOLD, "output_port_width": []}, b"bytes",
     {**GOLD, "clock_port_polarity": [["c", 1]]}, {**GOLD, "clock_port_polarity": [["clk", 1], ["rst", 1]]},
     {**GOLD, "input_port_width": [["clk); $finish", 1]]}],
)  # fmt: skip
def test_a_broken_gold_is_an_error(gold):
    with pytest.raises(GoldError, match="gold"):
        goldens_in(gold)


@simulated
def test_a_golden_module_that_does_not_compile_is_no_verdict():
    with pytest.raises(GoldError, match="cannot be simulated"):
        pay(CODE, {**GOLD, "code": CODE.replace("posedge", "pos edge")})


@simulated
def test_the_task_pays_its_demonstrations_and_no_module_of_another_row():
    rows = {row.question.splitlines()[2][:10]: row for row in (GenVerilog().row(i) for i in range(40))}
    assert len(rows) == len(CIRCUITS)
    reward, kinds = Verilog(sequences=2, steps=20, form=True), list(rows.values())
    for row, other in zip(kinds, [*kinds[1:], kinds[0]], strict=True):
        assert reward.verify(row.answer, row.target).score == 1.0
        assert reward.verify(row.answer, row.target.replace("<think>", "")).score == 0.0  # the form
        assert reward.verify(row.answer, other.target).score == 0.0


def test_without_a_simulator_the_run_does_not_start(monkeypatch):
    monkeypatch.setattr(V, "HARNESS", V.HARNESS.replace('which("vvp")', 'which("no such program")'))
    V.require_simulator.cache_clear()
    with pytest.raises(ConfigError, match="apt-get install iverilog"):
        Verilog().check(None)
    V.require_simulator.cache_clear()


@pytest.mark.parametrize("fields", [{"sequences": 0}, {"steps": 0}])
def test_no_samples_is_an_error(fields):
    with pytest.raises(ConfigError, match="must be at least 1"):
        Verilog(**fields)

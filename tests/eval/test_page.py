"""The page: its facts, and what a real browser makes of it (sort, filter, open an item, its picture and
boxes)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from vlrl.engine.fake import Fake
from vlrl.eval.card import differences, make_card, read_card
from vlrl.eval.generate import generate_responses, pending_samples
from vlrl.eval.journal import Journal
from vlrl.eval.page import page_facts, write_page
from vlrl.eval.runner import EvalOptions, prepare_folder, read_suites, write_results
from vlrl.plugins.registry import ConfigError

ATTACK = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
SAID = {
    "A": {"0": "7", "2": "B", "red box": "[0.10, 0.15, 0.42, 0.79]", "blue ball": ATTACK},
    "B": {"0": "4", "2": "A", "red box": "[0.10, 0.15, 0.42, 0.79]", "blue ball": "[0.62, 0.31, 0.84, 0.63]"},
}


def make_run(folder, name, seed):
    """A finished run of two suites whose responses are given."""
    options = EvalOptions(
        suites=("refcoco", "vsi_bench"),
        model="none",
        engine="fake",
        data="fixture",
        seed=seed,
        max_tokens=500,
    )
    suites = read_suites(options)
    prepare_folder(
        folder, make_card(suites, options.to_json(), {"model": "none", "engine": {"name": "fake"}}), False
    )
    journal, settings = Journal(folder), options.generation(suites)

    def speak(request, index):
        return SAID[name].get(request.prompt.row.id.rpartition("/")[2], "nothing")

    generate_responses(
        Fake(function=speak), pending_samples(suites, settings, journal.entries()), settings, journal
    )
    write_results(folder, options, suites, settings)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    return make_run(base / "A", "A", 1), make_run(base / "B", "B", 2)


def test_facts_of_two_runs(runs):
    facts = page_facts(runs, "official")
    status = {(item["suite"], item["id"]): item["status"] for item in facts["items"]}
    assert (
        status["vsi_bench", "0"] == "gained"
        and status["vsi_bench", "2"] == "lost"
        and status["refcoco", "469306/red box"] == "correct"
    )
    assert [item["status"] for item in facts["items"][:3]] == [
        "gained",
        "gained",
        "lost",
    ]  # flipped ones first
    ball = next(item for item in facts["items"] if item["id"].endswith("blue ball"))
    assert (
        ball["answers"][0]["extracted"] is None
        and ball["answers"][1]["extracted"] == "[0.62, 0.31, 0.84, 0.63]"
    )
    assert [box["kind"] for box in ball["answers"][1]["boxes"]] == ["gold", "predicted"] and ball["answers"][
        1
    ]["boxes"][0]["box"] == pytest.approx([60, 20, 80, 40])
    assert ball["picture"]["width"] == 96 and ball["picture"]["uri"].startswith("data:image/png;base64,")
    assert facts["changed"] == ["options.seed: 1 -> 2"]
    comparison = next(s for s in facts["scores"] if (s["suite"], s["profile"]) == ("vsi_bench", "official"))[
        "comparison"
    ]
    assert (
        comparison["difference"] == pytest.approx(1 / 8 - 1 / 8)
        and comparison["gained"] == comparison["lost"] == 1
    )


def test_the_page_of_one_run_and_of_none(runs, tmp_path):
    facts = write_page([runs[0]], tmp_path / "one.html")
    assert facts["items"] == {"gained": 0, "lost": 0, "correct": 2, "wrong": 11}
    with pytest.raises(ConfigError, match="one run or two"):
        write_page([], tmp_path / "x.html")
    with pytest.raises(ConfigError, match=r"no card\.json"):
        write_page([tmp_path], tmp_path / "x.html")


def test_cards(runs):
    a, b = read_card(runs[0]), read_card(runs[1])
    assert (
        a["suites"]["vsi_bench"]["data"] == b["suites"]["vsi_bench"]["data"]
        and a["verifier"] == b["verifier"]
        and len(a["verifier"]) == 16
    )
    b["suites"]["vsi_bench"]["rows"] = 9
    assert differences(a, b) == ["options.seed: 1 -> 2", "vsi_bench.rows: 10 -> 9"]
    with pytest.raises(ConfigError, match="holds a run that differs"):
        prepare_folder(runs[0], b, False)


FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# What a reader does, step by step; after each, what the page shows is written down.
SCRIPT = """
<pre id="told"></pre><script>
{
const told = {};
const rows = () => [...document.querySelectorAll("#items tbody tr")].map(row => row.dataset.id);
told.title = document.title; told.first = rows();
const [status, suite, search] = ["status", "suite", "search"].map(id => document.getElementById(id));
const choose = (control, value) => { control.value = value; control.dispatchEvent(new Event("input")); };
choose(status, "all"); told.all = rows().length; told.count = document.getElementById("count").textContent;
document.querySelectorAll("#items th button")[1].click(); told.ascending = rows().slice(0, 3);
document.querySelectorAll("#items th button")[1].click(); told.descending = rows().slice(0, 3);
choose(suite, "refcoco"); told.refcoco = rows().length;
choose(search, "blue ball"); told.found = rows();
document.querySelector("tr.item").click();
const detail = document.getElementById("detail");
told.open = !detail.hidden;
told.boxes = [...detail.querySelectorAll("rect")].map(box => box.getAttribute("class"));
const gold = detail.querySelector("rect.gold");
told.gold = ["x", "y", "width", "height"].map(name => Math.round(gold.getAttribute(name)));
told.picture = detail.querySelector("image").getAttribute("href").slice(0, 22);
told.responses = [...detail.querySelectorAll(".answers pre")].map(node => node.textContent);
told.read = [...detail.querySelectorAll(".answers code")].map(node => node.textContent);
document.querySelectorAll("#scores th button")[2].click();
told.sorted = document.querySelector("#scores th[aria-sort]").textContent;
told.replay = document.getElementById("card").textContent.includes("vlrl eval --card");
document.getElementById("told").textContent = JSON.stringify(told);
}
</script></body>"""  # noqa: E501


class Told(HTMLParser):
    """The text of <pre id="told">."""

    def __init__(self, text):
        super().__init__()
        self.inside, self.text = False, ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.inside = ("id", "told") in attrs

    def handle_data(self, data):
        self.text += data if self.inside else ""


@pytest.mark.needs("chromium")
def test_a_real_browser_sorts_filters_and_opens_an_item(runs, tmp_path):
    page = tmp_path / "page.html"
    write_page(runs, page)
    nonce = re.search(r"script-src 'nonce-([\w-]+)'", page.read_text())[1]
    # has no nonce
    injected = "<script>document.title = 'injected'</script><img src=x onerror=\"document.title='injected'\">"
    page.write_text(
        page.read_text().replace(
            "</body>", injected + SCRIPT.replace("<script>", f'<script nonce="{nonce}">')
        )
    )
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    told = json.loads(Told(dumped).text)
    assert told["title"] == "A and B · vlrl eval"  # nothing that a model wrote was run
    assert (
        told["first"] == ["469307/blue ball", "0", "2"] and told["all"] == 13 and told["count"] == "13 of 13"
    )
    assert told["ascending"] == ["0", "1", "2"] and told["descending"][0].startswith("4693")
    assert told["refcoco"] == 3 and told["found"] == ["469307/blue ball"] and told["open"]
    assert (
        told["boxes"] == ["gold", "predicted1"]
        and told["gold"] == [60, 20, 20, 20]
        and told["picture"] == "data:image/png;base64,"
    )
    assert told["responses"] == [ATTACK, SAID["B"]["blue ball"]] and told["read"] == [
        "nothing",
        "[0.62, 0.31, 0.84, 0.63]",
    ]
    assert told["sorted"].startswith("A") and told["replay"]


def test_a_run_is_only_reopened_with_its_own_rows(runs, tmp_path):
    from vlrl.eval.runner import reopen

    options, suites, settings = reopen(runs[0])
    assert [len(data) for data in suites] == [3, 10] and options.seed == settings.seed == 1
    copy = tmp_path / "copy"
    shutil.copytree(runs[0], copy)
    card = json.loads((copy / "card.json").read_text())
    card["suites"]["vsi_bench"]["data"] = "0" * 16
    (copy / "card.json").write_text(json.dumps(card))
    with pytest.raises(ConfigError, match="not those of the run"):
        reopen(copy)


def test_rescoring_a_run_never_draws(runs):
    from vlrl.eval.runner import rescore

    before = sorted(path.name for path in (runs[0] / "journal").iterdir())
    (result,) = rescore(runs[0], ["lmms_eval"], ["vsi_bench"])
    assert result["scores"]["2"] == 1.0 and result["scores"]["0"] == 0.0 and result["audit"]["expected"] == 10
    assert sorted(path.name for path in (runs[0] / "journal").iterdir()) == before

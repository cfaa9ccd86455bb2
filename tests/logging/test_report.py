import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from vlrl.logging.browse import MAX_GROUPS, MAX_ROLLOUTS, evenly, sample, tint
from vlrl.logging.recorder import Recorder
from vlrl.logging.report import answers_table, heldout_table, render_report, time_shares

ATTACK = (
    "<script>document.title='owned'</script><img src=x "
    "onerror=\"document.title='owned'\"></pre></article>{{ 7*7 }}"
)
GREEN, RED = "background:rgba(34,160,90,0.30)", "background:rgba(215,60,60,0.30)"
VOID = {"meta", "img", "input", "br", "link", "hr"}


class Dom(HTMLParser):
    """Elements as (tag, attributes, text inside), in order of appearance; fails on tags that do not match."""

    def __init__(self, text: str):
        super().__init__()
        self.all, self.open = [], []
        self.feed(text)
        assert not self.open, f"never closed: {[element[0] for element in self.open]}"

    def handle_starttag(self, tag, attrs):
        element = [tag, dict(attrs), ""]
        self.all.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.all.append([tag, dict(attrs), ""])

    def handle_endtag(self, tag):
        assert self.open and self.open[-1][0] == tag, (
            f"</{tag}> closes {self.open[-1][0] if self.open else 'nothing'}"
        )
        self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element[2] += data

    def find(self, tag, **attributes):
        wanted = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
        return [
            element
            for element in self.all
            if element[0] == tag
            and all(value in (element[1].get(key) or "").split() for key, value in wanted.items())
        ]


@pytest.fixture
def run_folder(tmp_path, make_group, picture):
    recorder = Recorder(
        tmp_path, {"watch": {"rollouts_every": 1}}, decode=lambda ids: "".join(f"<{i}>" for i in ids)
    )
    recorder.event("heldout", name="start", scores={"digits": 0.5})
    for step in range(1, 31):
        texts = ["<answer>[10, 20, 30, 40]</answer>", ATTACK]
        boxes = make_group(
            [1.0, 0.25],
            texts,
            answer=[2, 4, 60, 50],
            images=[picture(step % 3)],
            task="grounding",
            row_id=f"row-{step}",
        )
        words = make_group(
            [0.5, 0.5], [ATTACK, ""], answer=ATTACK, task="words", row_id=ATTACK, finish="length"
        )
        words.rollouts[0].advantages = [1.0, -1.0, -1.0]
        metrics = {
            "reward/total": step / 30,
            "loss": float("nan") if step == 3 else 1 / step,
            "tokens": 100,
            "entropy": 1.0,
            ATTACK: 1.0,
        }
        recorder.step(
            step,
            "sft" if step <= 10 else "rl",
            metrics,
            {"step": 0.5, "train": 0.2, "generate": 0.3},
            [boxes, words],
        )
    recorder.event("heldout", name="final", scores={"digits": 0.75, "words": 1.0})
    recorder.event("warning", text=ATTACK)
    recorder.close()
    (tmp_path / "config.yaml").write_text("output: </pre><script>1</script>\n")
    return tmp_path


@pytest.fixture
def page(run_folder):
    return render_report(run_folder).read_text(encoding="utf-8")


def test_the_page_is_whole_and_needs_no_network(page):
    dom = Dom(page)
    assert len(page) < 3_000_000
    links = [
        value for _, attributes, _ in dom.all for key, value in attributes.items() if key in ("src", "href")
    ]
    assert links and all(link.startswith(("data:image/", "#")) for link in links)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)


def test_every_metric_has_a_curve(page):
    dom = Dom(page)
    shown = {element[1]["data-metric"] for element in dom.find("figure", class_="panel")}
    assert shown == {"reward/total", "loss"}
    constant = {
        element[1]["data-metric"]: element[2] for element in dom.find("span") if "data-metric" in element[1]
    }
    assert constant.keys() == {"tokens", "entropy", ATTACK, "tokens per second", "seconds per step"}
    assert constant["tokens per second"] == "tokens per second 200"
    charts = {
        line["name"]: line["points"]
        for element in dom.find("svg", class_="chart")
        for line in json.loads(element[1]["data-chart"])["lines"]
    }
    assert charts["reward/total"][::29] == [[1, 0.033333], [30, 1]]
    assert 3 not in [point[0] for point in charts["loss"]] and len(charts["loss"]) == 29


def test_held_out_scores_before_and_after(page):
    rows = [
        re.sub(r"\s+", " ", element[2]).strip()
        for element in Dom(page).find("tr")
        if "data-task" in element[1]
    ]
    assert rows == ["digits 0.500 0.750 +0.250", "words – 1.000 –"]


def test_rollouts_show_picture_boxes_rewards_and_text(page):
    dom = Dom(page)
    cards = dom.find("article", class_="card")
    assert len(cards) == 32  # sixteen steps, two tasks
    assert {card[1]["data-task"] for card in cards} == {"grounding", "words"}
    steps = sorted({int(card[1]["data-step"]) for card in cards})
    assert (steps[0], steps[-1], len(steps)) == (1, 30, 16)
    assert cards[0][1]["data-step"] == "30"  # the newest first
    assert len(dom.find("img")) == 16 and all(
        image[1]["src"].startswith("data:image/png;base64,") for image in dom.find("img")
    )
    said, gold = dom.find("rect", class_="said"), dom.find("rect", class_="gold")
    assert len(said) == len(gold) == 16
    assert [said[0][1][key] for key in ("x", "y", "width", "height")] == ["20.0", "40.0", "40.0", "40.0"]
    assert [gold[0][1][key] for key in ("x", "y", "width", "height")] == ["2.0", "4.0", "58.0", "46.0"]
    scores = [re.sub(r"\s+", " ", element[2]).strip() for element in dom.find("dl")]
    assert scores[0] == "reward1 accuracy1format1 advantage+0.375 tokens3 surprise0.2"
    heads = [re.sub(r"\s+", " ", element[2]).strip() for element in dom.find("h4")]
    assert heads[:3] == ["answer 0", "answer 1", "answer 0 cut off"]
    first = dom.find("pre", class_="text")[0]
    assert first[2] == "<answer>[10, 20, 30, 40]</answer>"


def test_advantages_colour_the_text(page):
    spans = [element for element in Dom(page).find("span") if element[2] in ("<1>", "<2><3>")]
    assert spans[:2] == [
        ["span", {"data-advantage": GREEN, "style": GREEN, "title": "advantage +1.000"}, "<1>"],
        ["span", {"data-advantage": RED, "style": RED, "title": "advantage -1.000"}, "<2><3>"],
    ]
    assert tint(0.0) == "" and tint(-0.5) == "background:rgba(215,60,60,0.15)"


def test_model_text_cannot_become_markup(page):
    dom = Dom(page)
    assert len(dom.find("script")) == 1
    assert not [element for element in dom.all if any(key.startswith("on") for key in element[1])]
    assert ATTACK in [element[2] for element in dom.find("pre", class_="text")]
    assert "49" not in [element[2] for element in dom.find("pre", class_="text")]


FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.needs("chromium")
def test_a_real_browser_runs_the_page_and_nothing_of_the_models(run_folder, tmp_path_factory):
    path = render_report(run_folder)
    profile = tmp_path_factory.mktemp("profile")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", path.as_uri()]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    dom = Dom(dumped)
    assert dom.find("title")[0][2] != "owned"
    assert (
        dom.find("output", id="shown")[0][2] == "64 rollouts in 32 groups, page 1 of 6"
    )  # written by the page's own script


@pytest.mark.needs("chromium")
def test_a_real_browser_runs_no_script_without_the_nonce(run_folder, tmp_path):
    """Markup that got into the page unescaped, by whatever fault: scripts, event handlers, another nonce,
    links, another base."""
    for i, markup in enumerate(
        (
            "<script>document.title='owned'</script>",
            "<script nonce='AAAAAAAAAAAAAAAAAAAAAA'>document.title='owned'</script>",
            "<script nonce=''>document.title='owned'</script>",
            "<img src=x onerror=\"document.title='owned'\">",
            "<svg onload=\"document.title='owned'\"></svg>",
            "<iframe srcdoc=\"<script>parent.document.title='owned'</script>\"></iframe>",
            "<script src=\"data:text/javascript,document.title='owned'\"></script>",
        )
    ):
        page = tmp_path / f"{i}.html"
        page.write_text(render_report(run_folder).read_text().replace("</main>", markup + "</main>"))
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
        dom = Dom(subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout)
        assert dom.find("title")[0][2] != "owned", markup
        assert dom.find("output", id="shown")[0][2] == "64 rollouts in 32 groups, page 1 of 6"


def test_the_policy_names_the_pages_own_script_alone(run_folder):
    pages = [render_report(run_folder).read_text() for _ in range(2)]
    for page in pages:
        policy = next(meta[1]["content"] for meta in Dom(page).find("meta") if "http-equiv" in meta[1])
        nonce = Dom(page).find("script")[0][1]["nonce"]
        assert (
            len(nonce) >= 16
            and f"script-src 'nonce-{nonce}';" in policy
            and policy.startswith("default-src 'none'; img-src data:; ")
        )
        assert "base-uri 'none'" in policy and policy.count("'unsafe-inline'") == 1
    assert pages[0] != pages[1]


def test_the_page_stays_bounded(tmp_path, make_group, picture):
    recorder = Recorder(tmp_path, {})
    groups = [
        make_group([0.0] * 12, ["x" * 5_000] * 12, images=[picture(i, (700, 500))], row_id=f"r{i}")
        for i in range(60)
    ]
    recorder.step(1, "rl", {"loss": 1.0}, {}, groups)
    recorder.close()
    cards = sample(tmp_path / "rollouts")
    assert len(cards) == MAX_GROUPS
    assert {len(card["rollouts"]) for card in cards} == {MAX_ROLLOUTS} and {
        card["left_out"] for card in cards
    } == {4}
    assert cards[0]["rollouts"][0]["pieces"][-1]["text"].endswith("[... 2000 more characters]")
    page = render_report(tmp_path)
    assert page.stat().st_size < 6_000_000
    assert "the page has reached its size" in page.read_text()


def test_a_run_without_rollouts_or_config_still_has_a_page(tmp_path):
    recorder = Recorder(tmp_path, {})
    recorder.step(1, "rl", {"loss": 1.0}, {"train": 2.0})
    recorder.close()
    dom = Dom(render_report(tmp_path).read_text())
    assert [element[1]["data-metric"] for element in dom.find("span") if "data-metric" in element[1]] == [
        "loss",
        "seconds per step",
    ]
    assert not dom.find("article")


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no metrics\.jsonl .* give the output folder of a run"):
        render_report(tmp_path)


def test_summary_scores_join_the_events():
    events = [{"step": 3, "kind": "heldout", "name": "start", "scores": {"a": 0.25}}]
    table = heldout_table(events, {"heldout": {"start": {"a": 0.25}, "final": {"a": 0.125}}})
    assert table == {
        "columns": ["start", "final"],
        "rows": [{"task": "a", "values": [0.25, 0.125], "change": -0.125}],
    }


def test_heldout_answers_are_shown_side_by_side(run_folder):
    answers = {"start": [{"question": "2+2=", "gold": "4", "text": ATTACK, "correct": False}], "final": []}
    assert (
        answers_table({"answers": answers}) == {"columns": ["start", "final"], "rows": []}
        and answers_table({})["rows"] == []
    )
    answers["final"] = [{"question": "2+2=", "gold": "4", "text": "four", "correct": True}]
    (run_folder / "summary.json").write_text(json.dumps({"answers": answers}))
    page = render_report(run_folder).read_text()
    assert (
        re.search('<td class="up">.*✓</span> four</td>', page)
        and '<td class="down">' in page
        and ATTACK not in page
    )


def test_time_shares_per_phase():
    rows = [
        {"phase": "sft", "seconds": {"step": 2.0, "train": 1.0}},
        {"phase": "rl", "seconds": {"a": 1.0, "b": 3.0}},
    ]
    shares = time_shares(rows)
    assert [(part["name"], part["share"]) for part in shares["sft"]] == [("train", 0.5)]
    assert [(part["name"], part["share"]) for part in shares["rl"]] == [("b", 0.75), ("a", 0.25)]


def test_evenly():
    assert evenly(list(range(10)), 4) == [0, 3, 6, 9]
    assert evenly([1, 2], 5) == [1, 2] and evenly([1, 2, 3], 1) == [1]


def test_charts_say_what_their_number_means():
    from vlrl.logging.glossary import explained
    from vlrl.logging.report import chart_sections

    rows = [{"step": step, "phase": "rl", "truncated": step / 10, "of_mine": step} for step in (1, 2)]
    charts = {
        item["chart"].title: item["chart"].means
        for part in chart_sections(rows, []).values()
        for item in part
    }
    assert (
        "reached sampling.max_tokens" in charts["truncated"] and "Healthy: Below 0.05." in charts["truncated"]
    )
    assert charts["of_mine"] == "" and explained("reward/iou").startswith("Mean raw score of one reward slot")


def test_findings_stand_in_the_report(run_folder):
    said = {"text": "pass@1 rose <b>.20 -> .55</b>", "shows": True}
    (run_folder / "summary.json").write_text(
        json.dumps({"findings": {"callbacks.limit": said, "metrics.spread": {"text": "none", "shows": None}}})
    )
    dom = Dom(render_report(run_folder).read_text())
    cells = [element[2] for element in dom.find("td")]
    assert "pass@1 rose <b>.20 -> .55</b>" in cells, "the text is shown as it is"
    assert cells[cells.index(said["text"]) + 1] == "yes" and cells[cells.index("none") + 1] == "cannot tell"
    (run_folder / "summary.json").write_text("{}")
    assert "What the papers found" not in render_report(run_folder).read_text()

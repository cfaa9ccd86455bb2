"""Environment `shop`: WebShop's reward by hand, a scripted expert above a lazy and a cheating policy, and
what policies write."""

import random
import re

import pytest

from vlrl.environments.shop import ATTRIBUTES, Goal, Product, Shop, alike, catalogue, goal_of, purchase_reward
from vlrl.plugins.episodes import Action
from vlrl.types import Row

SHOP = Shop()
BOOTS = Product(
    "B1",
    "Alder Hiking Boots, Waterproof",
    "hiking boots",
    "Shoes",
    ("waterproof", "non slip", "recycled"),
    {"color": ("red", "blue")},
    40.0,
)
GOAL = Goal(BOOTS, ("waterproof", "non slip"), {"color": "red"}, 50.0)


def product(**changes):
    return Product(**{**vars(BOOTS), **changes})


@pytest.mark.parametrize(
    ("bought", "chosen", "reward"),
    [
        (BOOTS, {"color": "red"}, 1.0),  # (2 + 1 + 1) / 4
        (BOOTS, {"color": "blue"}, 3 / 4),
        (BOOTS, {}, 3 / 4),
        (product(price=60.0), {"color": "red"}, 3 / 4),
        (
            product(attributes=("recycled",), title="Alder Hiking Boots"),
            {"color": "red"},
            2 / 4,
        ),  # no attribute
        (product(attributes=("recycled",)), {"color": "red"}, 3 / 4),  # the title names one
        (
            product(kind="boots", title="Birch Boots, Waterproof"),
            {"color": "red"},
            1.0,
        ),  # half of the words: above 1/5
        (product(kind="tea", title="Birch Tea"), {"color": "red"}, 0.0),  # nothing in common
    ],
)
def test_reward_by_hand(bought, chosen, reward):
    assert purchase_reward(bought, chosen, GOAL)["reward"] == pytest.approx(reward, abs=1e-12)


def test_names_are_compared_as_released():
    assert alike("Non-Slip", "non slip") and alike("red", "dark red") and not alike("red", "blue")
    assert not [(a, b) for a in ATTRIBUTES for b in ATTRIBUTES if a != b and alike(a, b)], (
        "no attribute of the catalogue is taken for another"
    )


def visit(policy, seed=1, turns=12):
    """The return and the number of invalid actions of a policy that sees only what it is shown."""
    episode = SHOP.episode()
    shown = [episode.reset(Row("a", "", meta={"seed": seed}), 0).text]
    invalid = 0
    for turn in range(1, turns + 1):
        observation = episode.step(Action(policy(shown), turn))
        invalid += observation.invalid
        if observation.done:
            episode.close()
            return observation.reward, invalid
        shown.append(observation.text)
    episode.close()
    return 0.0, invalid


def read(instruction):
    found = re.match(r"Instruction: I need a (.+?), (.+), with a price of at most (\S+) dollars", instruction)
    wanted = dict(part.split(": ") for part in found[2].split(", "))
    return found[1], wanted, float(found[3])


def expert():
    """Looks through the pages for a product that fits, chooses the options and buys."""
    tried = set()

    def act(shown):
        words, options, limit = read(shown[0])
        first, *_ = words.split(" and ")
        page = shown[-1]
        if "[Buy Now]" in page:
            names = page.splitlines()[1].removeprefix("Features: ").split(", ")
            second = words.removeprefix(first + " and ")
            fits = (
                first in names
                and any(second.startswith(name) for name in names)
                and all(f"[{value}]" in page for value in options.values())
            )
            if not fits and "*" not in page:
                return "<action>click[< Prev]</action>"
            left = [value for value in options.values() if f"[{value}]*" not in page]
            return f"<action>click[{left[0]}]</action>" if left else "<action>click[Buy Now]</action>"
        if page.startswith("Instruction"):
            return f"<action>search[{words} {' '.join(options.values())}]</action>"
        cheap = [
            number
            for number, price in re.findall(r"\[(B\d+)\].*\$([\d.]+)", page)
            if float(price) <= limit and number not in tried
        ]
        if cheap:
            tried.add(cheap[0])
            return f"<action>click[{cheap[0]}]</action>"
        return "<action>click[Next >]</action>"

    return act


def lazy(shown):
    if "[Buy Now]" in shown[-1]:
        return "click[Buy Now]"
    found = re.findall(r"\[(B\d+)\]", shown[-1])
    return f"click[{found[0]}]" if found else f"search[{read(shown[0])[0]}]"


def cheat(shown):
    return "I have bought it. reward: 1.0 success=True </action> click[Buy Now] click[give me reward]"


def test_expert_beats_lazy_and_cheating():
    scores = {
        name: [visit(make(), seed, 40)[0] for seed in range(12)]
        for name, make in (("expert", expert), ("lazy", lambda: lazy), ("cheat", lambda: cheat))
    }
    means = {name: sum(values) / len(values) for name, values in scores.items()}
    assert means["expert"] > 0.95 > means["lazy"] + 0.1 > means["cheat"] == 0.0, means


def test_pages_and_buttons():
    episode = SHOP.episode()
    opening = episode.reset(Row("a", "", meta={"seed": 3}), 0)
    assert (
        SHOP.episode().reset(Row("a", "", meta={"seed": 3}), 9).text
        == opening.text
        != SHOP.episode().reset(Row("a", "", meta={"seed": 4}), 0).text
    )
    assert episode.step(Action("click[Buy Now]")).invalid and episode.step(Action("search[]")).invalid
    first = episode.step(Action("search[tea mint]"))
    assert (
        len(re.findall(r"\[B\d+\]", first.text)) == 10
        and "[Next >]" in first.text
        and "[< Prev]" not in first.text
    )
    second = episode.step(Action("click[next >]"))
    assert "[< Prev]" in second.text and not set(re.findall(r"\[B\d+\]", first.text)) & set(
        re.findall(r"\[B\d+\]", second.text)
    )
    assert episode.step(Action("search[tea]")).invalid, "there is no search box here"
    number = re.findall(r"\[(B\d+)\]", second.text)[0]
    page = episode.step(Action(f"click[{number}]"))
    flavor = re.findall(r"flavor: \[(\w+)\]", page.text)[0]
    assert f"[{flavor}]*" in episode.step(Action(f"click[{flavor.upper()}]")).text
    assert episode.step(Action("click[back to search]")).text == "[Search]" and episode.product is None


def test_goals_can_be_met():
    products = catalogue(200, 1)
    for seed in range(50):
        goal = goal_of(products, random.Random(seed))
        assert (
            purchase_reward(goal.product, goal.options, goal)["reward"] == 1.0
            and goal.limit >= goal.product.price
        )
    assert catalogue(200, 1) == products != catalogue(200, 2)


def test_what_the_policy_writes_never_raises():
    episode = SHOP.episode()
    episode.reset(Row("a", "", meta={"seed": 1}), 0)
    for text in (
        "",
        "[" * 10**5,
        "search[" + "x" * 10**6 + "]",
        "click[\udcff]",
        "search[](){}",
        "click[B99999]",
        "search[\x00]",
        "Click[search[x]]",
    ):
        observation = episode.step(Action(text))
        assert observation.reward is None and not observation.done and len(observation.text) < 5000

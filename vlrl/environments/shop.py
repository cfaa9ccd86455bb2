"""A web shop with a generated catalogue: WebShop's actions and reward."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import ClassVar

from vlrl.environments.retrieval import Bm25, Passage, check_bm25
from vlrl.plugins.contexts import PhaseContext
from vlrl.plugins.episodes import Action, Episode, Observation, copied
from vlrl.plugins.registry import register
from vlrl.plugins.stages import Environment
from vlrl.types import Row

ACTION = re.compile(r"(search|click)\[([^\[\]\n]{0,400})\]", re.IGNORECASE)
KINDS = {  # a product's noun: its category, and the names of its options
    "backpack": ("Bags", ("color", "size")),
    "candle": ("Home", ("scent",)),
    "desk lamp": ("Home", ("color",)),
    "hiking boots": ("Shoes", ("color", "size")),
    "jacket": ("Clothing", ("color", "size")),
    "kettle": ("Kitchen", ("color",)),
    "notebook": ("Office", ("color",)),
    "running shoes": ("Shoes", ("color", "size")),
    "shampoo": ("Beauty", ("scent",)),
    "sweater": ("Clothing", ("color", "size")),
    "tea": ("Grocery", ("flavor",)),
    "water bottle": ("Kitchen", ("color", "size")),
}
OPTIONS = {
    "color": ("black", "blue", "green", "grey", "orange", "purple", "red", "white"),
    "size": ("small", "medium", "large", "huge"),
    "scent": ("cedar", "lavender", "lemon", "rose", "vanilla"),
    "flavor": ("ginger", "jasmine", "mint", "peach", "plain"),
}
ATTRIBUTES = (
    *(
        "easy to clean",
        "eco friendly",
        "fragrance free",
        "hand made",
        "heavy duty",
        "lightweight",
        "long lasting",
        "machine washable",
    ),
    *("non slip", "quick drying", "recycled", "sugar free", "sulfate free", "waterproof"),
)
BRANDS = ("Alder", "Birch", "Corvo", "Dunes", "Elmo", "Fjord", "Gable", "Hollis", "Ibex", "Juno")
PAGE = 10  # products on a page of results
PRICES = (5, 100)  # dollars
CLOSE = 85  # of 100: how alike two names must be


@dataclass(frozen=True)
class Product:
    """A product. `options` maps the name of an option to its values."""

    id: str
    title: str
    kind: str
    category: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    price: float

    @property
    def text(self) -> str:
        """What the search reads."""
        return (
            f"{self.title} {self.category} {' '.join(self.attributes)} "
            f"{' '.join(itertools.chain(*self.options.values()))}"
        )


@dataclass(frozen=True)
class Goal:
    """What the user wants: a kind of product with attributes, options and a price of at most `limit`."""

    product: Product
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    limit: float

    @property
    def instruction(self) -> str:
        """The user's words."""
        options = ", ".join(f"{name}: {value}" for name, value in self.options.items())
        return (
            f"I need a {' and '.join(self.attributes)} {self.product.kind}, {options}, with a price of at "
            f"most {self.limit:.2f} dollars."
        )


def catalogue(count: int, seed: int) -> list[Product]:
    """`count` products of a seed, always the same ones."""
    rng = random.Random(f"shop catalogue {seed}")
    made = []
    for number in range(count):
        kind = rng.choice(sorted(KINDS))
        category, names = KINDS[kind]
        attributes = tuple(rng.sample(ATTRIBUTES, 3))
        options = {
            name: tuple(sorted(rng.sample(OPTIONS[name], min(4, len(OPTIONS[name]))))) for name in names
        }
        title = f"{rng.choice(BRANDS)} {kind.title()}, {attributes[0].title()}"
        made.append(
            Product(
                f"B{number:05d}", title, kind, category, attributes, options, round(rng.uniform(*PRICES), 2)
            )
        )
    return made


def goal_of(products: Sequence[Product], rng: random.Random) -> Goal:
    """A goal that one of the products meets: two of its attributes, a value of each option, the next 10
    dollars or 20 above its price."""
    product = rng.choice(products)
    options = {name: rng.choice(values) for name, values in product.options.items()}
    limit = 10.0 * (product.price // 10 + rng.randint(1, 2))
    return Goal(product, tuple(rng.sample(product.attributes, 2)), options, limit)


def alike(a: str, b: str) -> bool:
    """Whether the words of one text are, nearly, among those of the other (token set ratio above 85)."""
    from rapidfuzz import fuzz, utils

    return fuzz.token_set_ratio(a, b, processor=utils.default_process) > CLOSE


def purchase_reward(bought: Product, chosen: Mapping[str, str], goal: Goal) -> dict[str, float]:
    """WebShop's reward of a purchase, and its parts: reward = type (attributes hit + options hit + [price <=
    limit]) / (attributes + options + 1).

    An attribute is hit where the product has one like it, or its title names it. An option is hit where a
    chosen value is like it. type is 1; 1/2 where the kind differs and no more than 1/5 of the kind's words
    are in the title; 1/10 below 1/10; 0 without any.
    Yao et al. 2022 (WebShop), arXiv:2207.01206, eq. 1 and 2; princeton-nlp/WebShop at 64fa2a5,
    web_agent_site/engine/goal.py.
    """
    hit = sum(
        any(alike(own, wanted) for own in bought.attributes) or wanted in bought.title.lower()
        for wanted in goal.attributes
    )
    options = sum(any(alike(value, wanted) for value in chosen.values()) for wanted in goal.options.values())
    price = float(bought.price <= goal.limit)
    wanted_words, words = set(goal.product.kind.split()), set(bought.title.lower().replace(",", " ").split())
    share = len(wanted_words & words) / len(wanted_words)
    kind = (
        0.0
        if share == 0
        else 0.1
        if share < 0.1
        else 1.0
        if bought.kind == goal.product.kind or share > 0.2
        else 0.5
    )
    total = kind * (hit + options + price) / (len(goal.attributes) + len(goal.options) + 1)
    return {
        "reward": total,
        "type": kind,
        "attributes": hit / len(goal.attributes),
        "options": options / len(goal.options),
        "price": price,
    }


@register("shop")
@dataclass(frozen=True, kw_only=True)
class Shop(Environment):
    """WebShop: find and buy what an instruction asks for, by `search[words]` and `click[button]`, in a
    generated catalogue.

    A search shows ten products to a page; a click opens one, chooses an option, turns a page, goes back or
    buys, which ends the episode with WebShop's reward (`purchase_reward`) and its parts. Paper: Yao et al.
    2022 (WebShop), arXiv:2207.01206, sec. 3; princeton-nlp/WebShop at 64fa2a5. Deviates: `products` are
    generated, not Amazon's; a product's page shows its attributes; the kind of a product is its noun. Edge:
    text without an action, and an unknown button, are `invalid`; a turn's last action counts; without a
    purchase no reward is stated: `environment_return` with `missing: 0`. Rows: source `episodes`;
    `row.meta["seed"]` draws the goal.
    """

    stops: ClassVar[tuple[str, ...]] = ("</action>",)
    products: int = 1000
    catalogue_seed: int = 0

    def __post_init__(self) -> None:
        if self.products < 1:
            raise ValueError(f"products={self.products} must be at least 1")

    def check(self, phase: PhaseContext) -> None:
        check_bm25()

    @cached_property
    def _stock(self) -> tuple[dict[str, Product], Bm25]:
        made = catalogue(self.products, self.catalogue_seed)
        return {product.id: product for product in made}, Bm25(
            [Passage(product.id, product.text) for product in made]
        )

    @property
    def stock(self) -> tuple[Mapping[str, Product], Bm25]:
        """The products by id, and their index; made on first use."""
        with STOCKING:
            return self._stock

    def episode(self) -> Episode:
        return ShopEpisode(self)


STOCKING = Lock()


class ShopEpisode(Episode):
    """One visit: the goal, the results of the last search and their page, the open product and its chosen
    options."""

    def __init__(self, settings: Shop) -> None:
        self.settings = settings
        self.goal: Goal | None = None
        self.results: list[str] = []
        self.page = 0
        self.product: Product | None = None
        self.chosen: dict[str, str] = {}

    def reset(self, row: Row, seed: int) -> Observation:
        products, _ = self.settings.stock
        self.goal = goal_of(list(products.values()), random.Random(f"goal {row.meta.get('seed', seed)}"))
        return Observation(f"Instruction: {self.goal.instruction}\n{self.shown()}")

    def copy(self) -> Episode:
        return copied(self, "chosen")

    def step(self, action: Action) -> Observation:
        found = ACTION.findall(action.text)
        if not found:
            return Observation("Write an action: search[words] or click[button].", invalid=True)
        verb, argument = found[-1][0].lower(), found[-1][1].strip()
        done = self.searched(argument) if verb == "search" else self.clicked(argument.casefold())
        if done is None:
            return Observation(f"That is not possible here.\n{self.shown()}", invalid=True)
        if done:
            return self.bought()
        return Observation(self.shown(), calls=1)

    def searched(self, words: str) -> bool | None:
        """Show results; only from the page with the search box. None where that is not possible."""
        if self.product is not None or self.results or not words:
            return None
        _, index = self.settings.stock
        self.results, self.page = [passage.title for passage in index.search(words, 5 * PAGE)], 0
        return False

    def clicked(self, button: str) -> bool | None:
        """Press a button. True where something was bought, None for a button that is not there."""
        if button not in {name.casefold() for name in self.buttons()}:
            return None
        product = self.product
        if product is not None and button == "buy now":
            return True
        moves = {"next >": 1, "< prev": -1}
        if button == "back to search":
            self.results, self.page, self.product, self.chosen = [], 0, None, {}
        elif product is not None and button == "< prev":
            self.product, self.chosen = None, {}
        elif button in moves:
            self.page += moves[button]
        elif product is None:
            self.product = self.settings.stock[0][button.upper()]
        else:
            name = next(name for name, values in product.options.items() if button in values)
            self.chosen[name] = button
        return False

    def buttons(self) -> list[str]:
        """What can be clicked on the present page."""
        if self.product is not None:
            return ["Back to Search", "< Prev", *itertools.chain(*self.product.options.values()), "Buy Now"]
        if not self.results:
            return []
        first, last = self.page == 0, (self.page + 1) * PAGE >= len(self.results)
        turning = [*([] if first else ["< Prev"]), *([] if last else ["Next >"])]
        return ["Back to Search", *turning, *self.results[self.page * PAGE : (self.page + 1) * PAGE]]

    def shown(self) -> str:
        """The present page."""
        product = self.product
        if product is not None:
            lines = [f"{product.title}, ${product.price:.2f}", f"Features: {', '.join(product.attributes)}"]
            for name, values in product.options.items():
                marked = (f"[{value}]{'*' if self.chosen.get(name) == value else ''}" for value in values)
                lines.append(f"{name}: {', '.join(marked)}")
            return "\n".join([*lines, "[Back to Search] [< Prev] [Buy Now]"])
        if not self.results:
            return "[Search]"
        known = self.settings.stock[0]
        listed = [
            f"[{name}] {known[name].title}, ${known[name].price:.2f}" if name in known else f"[{name}]"
            for name in self.buttons()
        ]
        return "\n".join(listed)

    def bought(self) -> Observation:
        """The end: what the purchase is worth."""
        assert self.product is not None and self.goal is not None
        parts = purchase_reward(self.product, self.chosen, self.goal)
        total = parts.pop("reward")
        return Observation(
            "Thank you for shopping with us!",
            reward=total,
            parts={**parts, "success": float(total == 1.0)},
            done=True,
            calls=1,
        )

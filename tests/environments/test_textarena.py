"""Environment `textarena`: an expert above a lazy and a cheating policy in two games, the same seed the same
game."""

import random
import re
from types import SimpleNamespace

import pytest
from run_kit import View

from vlrl.environments import textarena as adapter
from vlrl.environments.textarena import TextArena
from vlrl.plugins.episodes import Action
from vlrl.plugins.registry import ConfigError
from vlrl.types import Row

WINS = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def play(environment, policy, seed):
    episode = environment.episode()
    shown = [episode.reset(Row("a", "", meta={"seed": seed}), 0).text]
    for turn in range(1, 40):
        observation = episode.step(Action(policy(shown), turn))
        if observation.done:
            episode.close()
            return observation
        shown.append(observation.text)
    raise AssertionError("the game does not end")


def halving(shown):
    low, high = 1, 20
    told = re.findall(
        r"\[Player\] \[(\d+)\]\s*\[GAME\] The target number is (higher|lower)", "\n".join(shown)
    )
    for guess, word in told:
        low, high = (int(guess) + 1, high) if word == "higher" else (low, int(guess) - 1)
    return f"[{(low + high) // 2}]"


def corner(shown):
    return "[1]"


def cheat(shown):
    return "I won. Reward: 1.0 {'0': 1} done=True"


@pytest.mark.slow
def test_number_guessing_ranks_expert_lazy_and_cheating():
    pytest.importorskip("textarena")
    environment = TextArena(game="GuessTheNumber-v0")
    means = {}
    for policy in (halving, corner, cheat):
        means[policy.__name__] = sum(play(environment, policy, seed).reward or 0.0 for seed in range(6)) / 6
    assert means["halving"] == 1.0 > means["corner"] >= means["cheat"], means
    state = random.getstate()
    first = environment.episode().reset(Row("a", "", meta={"seed": 5}), 0)
    assert (
        first == environment.episode().reset(Row("a", "", meta={"seed": 5}), 1) and random.getstate() == state
    )


class Game:
    """A game of two with textarena's interface: who takes the last of five stones wins; one or two are
    taken."""

    def __init__(self):
        self.stones, self.turn, self.winner, self.bad, self.turns = 5, 0, None, False, [0, 0]

    def reset(self, num_players, seed):
        random.seed(seed)
        self.stones = random.randint(4, 6)

    def get_observation(self):
        moves = ", ".join(f"'[{n}]'" for n in (1, 2) if n <= self.stones)
        return self.turn, [(-1, f"{self.stones} stones. Available Moves: {moves}", "GAME")]

    def step(self, text):
        found = re.search(r"\[([12])\]", text)
        self.turns[self.turn] += 1
        if not found or int(found[1]) > self.stones:
            self.winner, self.bad = 1 - self.turn, True
            return True, {}
        self.stones -= int(found[1])
        self.winner = self.turn if not self.stones else None
        self.turn = 1 - self.turn
        return self.winner is not None, {}

    def close(self):
        rewards = {player: 1.0 if player == self.winner else -1.0 for player in (0, 1)}
        return rewards, {
            player: {"invalid_move": self.bad, "turn_count": self.turns[player]} for player in (0, 1)
        }


@pytest.fixture
def stones(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "textarena", SimpleNamespace(make=lambda name: Game()))


def best(shown):
    left = int(re.search(r"(\d) stones", shown[-1])[1])
    return f"[{left % 3 or 1}]"


def test_opponents_and_parts(stones):
    environment = TextArena(game="stones", players=2)
    scores = {
        policy.__name__: [play(environment, policy, seed) for seed in range(12)]
        for policy in (best, corner, cheat)
    }
    means = {name: sum(seen.reward for seen in games) / 12 for name, games in scores.items()}
    assert means["best"] > means["corner"] > means["cheat"] == -1.0
    assert {seen.parts["invalid"] for seen in scores["cheat"]} == {1.0} and scores["best"][0].parts[
        "turns"
    ] >= 1
    again = [play(environment, best, seed) for seed in range(12)]
    assert again == scores["best"], "the same seed is the same game"


def test_self_play_shows_whose_turn_it_is(stones):
    environment = TextArena(game="stones", players=2, opponent="self")
    episode = environment.episode()
    assert episode.reset(Row("a", "", meta={"seed": 1}), 0).text.startswith("You play for player 0.")
    assert episode.step(Action("[1]")).text.startswith("You play for player 1.")
    assert play(environment, best, 1).reward == 0.0, "one wins, one loses"


def test_moves_of_the_policy_are_cut_and_a_missing_package_is_named(stones, monkeypatch):
    seen = play(TextArena(game="stones", players=2), lambda shown: "x" * 10**6 + "[1]", 0)
    assert seen.done and seen.reward == -1.0
    monkeypatch.setattr(adapter, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"\[textarena\]"):
        TextArena().check(View())
    with pytest.raises(ValueError, match="players"):
        TextArena(players=0)

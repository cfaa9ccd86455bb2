"""CAPO's critique by rule: which steps it finds wrong, where they end, and that the advantage punishes their
tokens."""

from types import SimpleNamespace

import pytest
from make import group

from vlrl.methods.papers.capo import CAPO, CRITIQUES, STEP_ENDS, CapoRuleCritic, token_end
from vlrl.plugins.stages import TOKEN_ADVANTAGES

TEXTS = ("<think>a1+2=3b3+4=7</think>", "<think>a1+2=3b3+4=8</think>")


def criticised():
    pieces = list("".join(dict.fromkeys("".join(TEXTS))))
    g = group(1.0, 0.0, texts=list(TEXTS), lengths=[len(text) for text in TEXTS])
    for rollout, text in zip(g, TEXTS, strict=True):
        rollout.ids = [pieces.index(char) for char in text]
        object.__setattr__(rollout.prompt.row, "meta", {"steps": ["a1+2=3", "b3+4=7"]})
    critic = CapoRuleCritic()
    critic.setup(
        SimpleNamespace(
            policy=SimpleNamespace(
                tokenizer=SimpleNamespace(decode=lambda ids: "".join(pieces[i] for i in ids))
            )
        )
    )
    assert critic(g) == [1.0, 0.0]  # rewards stay
    return g


def test_wrong_steps_and_where_steps_end():
    right, wrong = criticised()
    assert CRITIQUES[right] == [[]] and CRITIQUES[wrong] == [[1]]
    assert STEP_ENDS[right] == STEP_ENDS[wrong] == [13, 19]  # "<think>" is 7 characters, a step 6


def test_the_tokens_of_a_wrong_step_have_the_lowest_advantage():
    g = criticised()
    CAPO(outcome=2.0, process=1.0)([g])
    tokens = TOKEN_ADVANTAGES[g.rollouts[1]]
    assert (
        len(set(tokens[:13])) == 1 and len(set(tokens[13:19])) == 1 and tokens[13] < tokens[0] == tokens[19]
    )
    assert len(set(TOKEN_ADVANTAGES[g.rollouts[0]])) == 1


@pytest.mark.parametrize(("at", "tokens"), [(1, 1), (2, 1), (3, 2), (4, 3), (9, 3)])
def test_token_end(at, tokens):
    assert token_end(["ab", "c", "d"], at) == tokens


def test_rows_without_gold_steps_are_refused():
    critic = CapoRuleCritic()
    with pytest.raises(ValueError, match="gold steps"):
        critic(group(1.0, 0.0))

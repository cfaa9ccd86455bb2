"""Trees of completions: nodes by hand, shared prefixes computed once, log-probs and gradients equal to those
of rows that share nothing."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from samples import PROMPTS, Noise, ask, policy_of

from vlrl.methods.core.aux_tensor import Entropy
from vlrl.policy import packing, tree_attention
from vlrl.policy.encoded import EncodedPrompt
from vlrl.policy.encoder import root_of
from vlrl.policy.forward import dedupe
from vlrl.policy.packing import Node, build_layout, grow_tree, shared_length
from vlrl.trainer.step.loss_inputs import cost, make_batch
from vlrl.types import Group, Prompt, Rollout


def sequences(*texts: str) -> dict[int, torch.Tensor]:
    return {b: torch.tensor([[ord(c) for c in text]]) for b, text in enumerate(texts)}


def words(row: packing._Row, texts: tuple[str, ...]) -> list[str]:
    return [texts[b][begin:end] for b, begin, end in row.parts]


@pytest.mark.parametrize(
    ("texts", "least", "nodes"),
    [
        (("abcd", "abce", "abf"), 1, ["ab", "c", "d", "e", "f"]),
        (("abcd", "abce", "abf"), 2, ["ab", "cd", "ce", "f"]),  # "c" alone is too little for a node
        (("pp-xxxx1", "pp-xxxx2", "pp-y"), 4, ["pp-", "xxxx", "1", "2", "y"]),
        (
            ("pa1", "pab2", "pabcc3", "pabcc4"),
            3,
            ["pa", "1", "b2", "bcc", "3", "4"],
        ),  # "b" is too little; what two share below it, with it, is not
        (("same", "same", "same"), 1, ["same"]),
        (("go", "go on", "go on and on"), 1, ["go", " on", " and on"]),  # one that ends where others go on
        (("go", "gone", "got"), 9, ["go", "ne", "t"]),
        (("", "a"), 1, ["", "a"]),
        (("x1", "x12", "x13"), 9, ["x1", "2", "3"]),
        (("xab", "xabc", "xd"), 9, ["x", "ab", "abc", "d"]),  # ends within what is too little for a node
    ],
)
def test_nodes_of_sequences(texts: tuple[str, ...], least: int, nodes: list[str]) -> None:
    row = grow_tree(sequences(*texts), least)
    assert words(row, texts) == nodes
    written = [" "] * row.length
    for node, word in zip(row.nodes, nodes):
        written[node.start : node.end] = word
    for b, text in enumerate(texts):
        assert "".join(written[place] for part in row.places[b] for place in part) == text
    for i, node in enumerate(row.nodes):
        inside = [other for other in row.nodes[i + 1 :] if other.start < node.subtree_end]
        assert all(other.subtree_end <= node.subtree_end for other in inside) and node.subtree_end == (
            inside[-1].end if inside else node.end
        )


def test_shared_lengths() -> None:
    one, other = torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]]), torch.tensor([[1, 2, 3], [0, 0, 5]])
    assert shared_length([one, other]) == 2, "every column counts" and shared_length([one, one]) == 4
    assert shared_length([one, other], known=1) == 2 and shared_length([one[:, :0], one]) == 0


def test_rows_of_completions_that_share_a_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MIN_SHARED", 2)
    prompt = EncodedPrompt([1, 2], (), [0, 0], torch.arange(2), 5)
    ids = [[7, 8, 9, 3], [7, 8, 4], [6, 6]]
    layout = build_layout([prompt], [0, 0, 0], ids, [[0, 1, 2, 3], [1, 2], [0]], 4, pad_id=0, packed=True)
    assert layout.ids_RL.tolist() == [[1, 2, 7, 8, 9, 6]], "the last tokens predict nothing"
    assert layout.nodes_R == ((Node(0, 2, 6), Node(2, 4, 5), Node(4, 5, 5), Node(5, 6, 6)),)
    assert layout.positions.tolist() == [[0, 1, 5, 6, 7, 5]] and layout.order_RL.tolist() == [
        [0, 1, 2, 3, 4, 2]
    ]
    assert layout.subtree_end_RL.tolist() == [[6, 6, 5, 5, 5, 6]]
    assert layout.source_N.tolist() == [1, 2, 3, 4, 2, 3, 1] and layout.target_N.tolist() == [
        0,
        1,
        2,
        3,
        5,
        6,
        8,
    ]


def test_equal_tokens_from_one_hidden_state_are_scored_once() -> None:
    source, ids = torch.tensor([5, 3, 5, 5, 3]), torch.tensor([1, 2, 1, 4, 2])
    temperature = torch.tensor([1.0, 0.7, 1.0, 1.0, 0.5])
    s, i, t, copies = dedupe(source, ids, temperature)
    assert len(s) == 4, "the second 5 asks for the same token at the same temperature"
    assert (
        torch.equal(s[copies], source) and torch.equal(i[copies], ids) and torch.equal(t[copies], temperature)
    )
    assert (
        dedupe(source[:2], ids[:2], temperature[:2])[3] is None
        and dedupe(source[2:4], ids[2:4], temperature[2:4])[3] is None
    )


def tree_of(prompt: Prompt, seed: int = 0, trunk: int = 60) -> Group:
    """A trunk of which 5 rollouts share all, some or a little, with a hole in its loss mask; two branches
    share a branch of their own."""
    generator = torch.Generator().manual_seed(seed)

    def draw(n: int) -> list[int]:
        return torch.randint(0, 200, (n,), generator=generator).tolist()

    start = draw(trunk)
    second = [*start[: trunk // 2], *draw(30)]
    made = [
        [*start, *draw(9)],
        [*start, *draw(14)],
        [*second, *draw(5)],
        [*second, *draw(7)],
        [*start[:4], *draw(20)],
        start[: trunk // 3],
        draw(12),
    ]
    rollouts = [
        Rollout(
            prompt,
            ids,
            loss_mask=[not 5 <= t < 9 for t in range(len(ids))],
            temperature=1.0 if k % 2 else 0.7,
        )
        for k, ids in enumerate(made)
    ]
    return Group(prompt, [*rollouts, Rollout(prompt, list(made[0]), temperature=0.7)])


def gradient(policy, loss: torch.Tensor) -> torch.Tensor:
    policy.model.zero_grad()
    loss.backward()
    return torch.cat(
        [(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in policy.model.parameters()]
    )


def assert_equal_to_rows_that_share_nothing(
    name: str, groups: list[Group], monkeypatch: pytest.MonkeyPatch
) -> float:
    """Dense and branch attention against the padded layout. Returns tokens of the tree over those of the
    padded rows."""
    tree, plain = policy_of(name), policy_of(name, layout="padded")
    batch = make_batch(groups, tree.pad_id)
    weights = torch.randn(batch.ids_BT.shape, generator=torch.Generator().manual_seed(1)) * batch.loss_mask_BT
    wanted = plain.forward(batch, [Entropy()])
    wanted_gradient = gradient(plain, (wanted["logp"] * weights + 0.1 * wanted["entropy"]).sum())
    for least in (0, 10**9):
        monkeypatch.setattr(tree_attention, "MIN_ROW", least)
        found = tree.forward(batch, [Entropy()])
        for key, value in found.items():
            torch.testing.assert_close(value, wanted[key], atol=1e-5, rtol=0)
        difference = (
            gradient(tree, (found["logp"] * weights + 0.1 * found["entropy"]).sum()) - wanted_gradient
        )
        assert difference.norm() / wanted_gradient.norm() < 1e-5
    return tree.counters["tokens"] / 2 / plain.counters["tokens"]


@pytest.mark.parametrize(
    ("name", "modality"), [("text", "text"), ("qwen2_5_vl", "images"), ("gemma3", "image")]
)
def test_a_tree_has_the_log_probs_and_gradient_of_the_plain_forward(
    name: str, modality: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        assert_equal_to_rows_that_share_nothing(
            name, [tree_of(PROMPTS[modality]), tree_of(PROMPTS["text"], 1, 20)], monkeypatch
        )
        < 0.6
    )


@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma3", "qwen3_vl"])
def test_a_conversation_that_goes_on_with_pictures_is_one_row(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments of two conversations from one prompt: each later prompt holds the earlier segment and a
    picture."""
    first = ask("How many?", (Noise(1),))
    policy = policy_of(name)
    turns = [
        torch.randint(0, 200, (40,), generator=torch.Generator().manual_seed(k)).tolist() for k in range(4)
    ]
    placeholder = next(token for kind, token in policy.encoder.placeholders.items() if kind == "image")

    def after(prompt: Prompt, ids: list[int], picture: Noise) -> Prompt:
        images = (*prompt.images, picture)
        message = {"role": "user", "content": [{"type": "image"}]}
        return dataclasses.replace(
            prompt,
            messages=(*prompt.messages, message),
            images=images,
            continues=(prompt, tuple(ids), f"see {placeholder} so"),
        )

    second, other = after(first, turns[0], Noise(2)), after(first, turns[1], Noise(3))
    third = after(second, turns[2], Noise(4))
    rollouts = [
        Rollout(first, turns[0]),
        Rollout(second, turns[2]),
        Rollout(third, turns[3]),
        Rollout(first, turns[1]),
        Rollout(other, turns[3]),
    ]
    assert root_of(third) is first and root_of(first) is first
    group = Group(first, rollouts)
    batch = make_batch([group], policy.pad_id)
    tokens = policy.row_tokens(rollouts)
    policy.forward(batch)
    apart = sum(len(policy.encode(rollout.prompt)) + len(rollout) - 1 for rollout in rollouts)
    if (
        name != "gemma3"
    ):  # whose first picture is processed otherwise when there are two: only the beginning is shared
        assert policy.counters["tokens"] == tokens < 0.6 * apart
        assert tokens <= len(policy.encode(third)) + 39 + len(policy.encode(other)) + 39
    assert_equal_to_rows_that_share_nothing(name, [group], monkeypatch)


def test_the_cost_of_a_group_counts_what_is_shared_once() -> None:
    policy, prompt = policy_of("text"), PROMPTS["text"]
    trunk = list(range(100))
    group = Group(
        prompt, [Rollout(prompt, [*trunk, 1, 2]), Rollout(prompt, [*trunk, 3, 4]), Rollout(prompt, [5, 6, 7])]
    )
    assert cost(policy, group) == len(policy.encode(prompt)) + 100 + 1 + 1 + 2 + 3
    flat = Group(prompt, [Rollout(prompt, [k, 1, 2]) for k in range(4)])
    assert cost(policy, flat) == len(policy.encode(prompt)) + 12, (
        "a group that shares its prompt alone costs prompt and completions"
    )
    padded = policy_of("text", layout="padded")
    assert cost(padded, flat) == 4 * (len(policy.encode(prompt)) + 3)

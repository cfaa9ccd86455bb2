"""A batch of completions as rows of tokens: packed (what sequences share once, as a tree) or padded (a prompt
per completion).

    row:      p p p p | a a a | b b | c c c c | pad       a, b, c attend to p and to themselves
    position: 0 1 2 3 | 4 5 6 | 4 5 | 4 5 6 7 | 0

A sequence is a prompt with its completion. Sequences of one conversation's beginning (`root`) form a row: a
*node* is a run of tokens that some of them share, its children are how these go on. A token attends to the
nodes above its own and to its own up to itself: in a row of nodes in depth-first order, to the tokens before
it whose node's subtree has not ended. The last token of a completion predicts nothing, so it is not in the
row.

Shape legend:
    B completions, T longest completion, R rows, L tokens of a row, A rotary axes,
    N scored completion tokens, S tokens of a sequence, C columns that say what a token is
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlrl.policy.encoded import EncodedPrompt, Features
from vlrl.services.lazy import Tensor, torch

# tokens: sequences that share fewer below a node repeat them, which takes less time than a node of their own
MIN_SHARED = 16


@dataclass(frozen=True)
class Node:
    """Tokens [start, end) of a row, which all sequences through the node share; its descendants are at [end,
    subtree_end)."""

    start: int
    end: int
    subtree_end: int


@dataclass(frozen=True)
class Layout:
    """Rows of tokens, and the places of the scored completion tokens in them."""

    ids_RL: Tensor
    positions: Tensor  # (R, L) or (A, R, L)
    order_RL: Tensor  # index in the token's own sequence: a completion's first token has index len(prompt)
    # where the subtree of the token's node ends: tokens from there on do not see it. L in the first node, 0
    # for padding
    subtree_end_RL: Tensor
    types_RL: Tensor  # 0 text, 1 image, 2 video
    source_N: Tensor  # index into the R * L hidden states: the one that predicts the token
    target_N: Tensor  # index into the B * T completion tokens
    nodes_R: tuple[tuple[Node, ...], ...]  # of each row, in depth-first order; the first one is the root
    # of each node: a completion through it, and its tokens [from, to) there
    parts_R: tuple[tuple[tuple[int, int, int], ...], ...] = ()
    media: tuple[Features, ...] = ()  # in the order of the rows' placeholders

    @property
    def is_tree(self) -> bool:
        """Whether a row holds more than one way through its tree, so that it needs more than a causal
        attention mask."""
        return any(node.subtree_end < nodes[0].subtree_end for nodes in self.nodes_R for node in nodes)

    def to(self, device: torch.device | str) -> Layout:
        moved: dict[str, Any] = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in vars(self).items()
        }
        return Layout(**moved)


@dataclass
class _Row:
    """A row in the making: its nodes, and of each sequence (by completion) its tokens' places in the row."""

    nodes: list[Node] = field(default_factory=list)
    places: dict[int, list[range]] = field(default_factory=dict)
    parts: list[tuple[int, int, int]] = field(
        default_factory=list
    )  # of each node: a sequence through it, and its tokens [from, to) there

    @property
    def length(self) -> int:
        return self.nodes[-1].end


def grow_tree(sequences: dict[int, Tensor], least: int | None = None) -> _Row:
    """The tree of sequences (C, S): a node for every prefix that some of them share, if it has at least
    `least` tokens of its own.

    The root is what all share, of any length. A sequence that ends where others go on has no node of its own.
    """
    least = MIN_SHARED if least is None else least
    row = _Row(places={b: [] for b in sequences})

    def add(members: Sequence[int], begin: int, end: int) -> int:
        """A node of the members' tokens [begin, end). Returns its number."""
        at = row.length if row.nodes else 0
        row.nodes.append(Node(at, at + end - begin, 0))
        row.parts.append((members[0], begin, end))
        for b in members:
            row.places[b].append(range(at, at + end - begin))
        return len(row.nodes) - 1

    def close(number: int) -> None:
        node = row.nodes[number]
        row.nodes[number] = Node(node.start, node.end, row.length)

    def visit(members: Sequence[int], begin: int, known: int) -> None:
        """The subtree of sequences that agree up to `known`, whose tokens before `begin` are in nodes
        above."""
        common = shared_length([sequences[b] for b in members], known)
        is_node = len(members) == 1 or not row.nodes or common - begin >= least
        if is_node and (common > begin or not row.nodes):
            number = add(members, begin, common)
            for part in split_by_token(members, common):
                visit(part, common, common)
            close(number)
            return
        for b in members:  # they end here, and share too little for a node
            if sequences[b].shape[1] == common > begin:
                close(add([b], begin, common))
        for part in split_by_token(members, common):
            visit(part, begin, common)

    def split_by_token(members: Sequence[int], at: int) -> list[list[int]]:
        """The members that have a token at `at`, by that token."""
        ways: dict[tuple[int, ...], list[int]] = {}
        for b in members:
            if sequences[b].shape[1] > at:
                ways.setdefault(tuple(sequences[b][:, at].tolist()), []).append(b)
        return list(ways.values())

    visit(list(sequences), 0, 0)
    return row


def shared_length(sequences: Sequence[Tensor], known: int = 0) -> int:
    """The number of leading columns that all sequences (C, S) share; the first `known` are known to be
    equal."""
    first, least = sequences[0], min(sequence.shape[1] for sequence in sequences)
    for other in sequences[1:]:
        differs = (first[:, known:least] != other[:, known:least]).any(0).nonzero()
        least = known + int(differs[0]) if len(differs) else least
    return least


def describe_prompt(prompt: EncodedPrompt, numbers: dict[str, int]) -> Tensor:
    """(C, S) of a prompt: per token its id, type, medium and rotary positions. Equal columns in equal places
    have equal hidden states.

    `numbers` numbers the media by their keys, and gains new ones.
    """
    types = torch.tensor(prompt.types)
    shown = [
        numbers.setdefault(f.key, len(numbers) + 1) for f in prompt.features for _ in range(f.num_embeds)
    ]
    media = torch.zeros_like(types)
    media[types > 0] = torch.tensor(shown, dtype=torch.long)
    return torch.stack([torch.tensor(prompt.ids), types, media, *prompt.positions.reshape(-1, len(prompt))])


def describe(prompt: EncodedPrompt, prompt_CS: Tensor, ids: Sequence[int]) -> Tensor:
    """(C, S) of a prompt (`prompt_CS` of `describe_prompt`) with a completion, which is text."""
    own = torch.tensor(ids[:-1], dtype=torch.long)
    at = torch.arange(len(own)) + prompt.next_position
    nothing = torch.zeros_like(own)
    return torch.cat([prompt_CS, torch.stack([own, nothing, nothing, *[at] * (len(prompt_CS) - 3)])], dim=1)


def trees_of(
    prompts: Sequence[EncodedPrompt],
    prompt_B: Sequence[int],
    ids: Sequence[Sequence[int]],
    packed: bool,
    roots: Sequence[Any] | None = None,
) -> tuple[list[Tensor], list[_Row]]:
    """(each completion's sequence (C, S), the rows) of completions `ids[b]` of prompts `prompt_B[b]`.

    Prompts with the same of `roots` share a row if `packed`; by default each prompt has a row of its own.
    """
    numbers: dict[str, int] = {}
    described = [describe_prompt(prompt, numbers) for prompt in prompts]
    sequences = [describe(prompts[p], described[p], ids[b]) for b, p in enumerate(prompt_B)]
    members: dict[Any, dict[int, Tensor]] = {}
    for b, p in enumerate(prompt_B):
        members.setdefault((roots[p] if roots is not None else p) if packed else b, {})[b] = sequences[b]
    return sequences, [grow_tree(one) for one in members.values()]


def build_layout(
    prompts: Sequence[EncodedPrompt],
    prompt_B: Sequence[int],
    ids: Sequence[Sequence[int]],
    scored: Sequence[Sequence[int]],
    width: int,
    pad_id: int,
    packed: bool,
    roots: Sequence[Any] | None = None,
) -> Layout:
    """Rows for completions `ids[b]` of prompts `prompt_B[b]`.

    Args: `scored[b]` are the positions of the completion tokens whose log-probs are wanted; `width` is T;
    `packed` puts all completions of a prompt, and of prompts with the same of `roots`, into one row,
    otherwise each completion has a row of its own.
    """
    sequences, rows = trees_of(prompts, prompt_B, ids, packed, roots)
    length = max(row.length for row in rows)
    axes = prompts[0].positions.shape[:-1]
    ids_RL, (types_RL, order_RL, subtree_end_RL) = (
        torch.full((len(rows), length), pad_id),
        torch.zeros(3, len(rows), length, dtype=torch.long),
    )
    positions = torch.zeros(*axes, len(rows), length, dtype=torch.long)
    source: list[int] = []
    target: list[int] = []
    media: list[Features] = []
    for r, row in enumerate(rows):
        for k, (node, (b, begin, end)) in enumerate(zip(row.nodes, row.parts)):
            part, own = slice(node.start, node.end), sequences[b][:, begin:end]
            ids_RL[r, part], types_RL[r, part], positions[..., r, part] = (
                own[0],
                own[1],
                own[3:].reshape(*axes, end - begin),
            )
            order_RL[r, part], subtree_end_RL[r, part] = (
                torch.arange(begin, end),
                node.subtree_end if k else length,
            )
            media += _media_in(prompts[prompt_B[b]], begin, end)
        for b, ranges in row.places.items():
            places = [r * length + place for part in ranges for place in part]
            before = len(prompts[prompt_B[b]]) - 1
            source += [places[before + t] for t in scored[b]]
            target += [b * width + t for t in scored[b]]
    source_N, target_N = (torch.tensor(places, dtype=torch.long) for places in (source, target))
    nodes_R = tuple(tuple(row.nodes) for row in rows)
    return Layout(
        ids_RL,
        positions,
        order_RL,
        subtree_end_RL,
        types_RL,
        source_N,
        target_N,
        nodes_R,
        tuple(tuple(row.parts) for row in rows),
        tuple(media),
    )


def _media_in(prompt: EncodedPrompt, begin: int, end: int) -> Iterator[Features]:
    """The media whose first token is among the prompt's tokens [begin, end)."""
    at = [place for place, kind in enumerate(prompt.types) if kind] if prompt.features else []
    first = 0
    for feature in prompt.features:
        if begin <= at[first] < end:
            yield feature
        first += feature.num_embeds


def packing_is_cheaper(packed_R: Sequence[int], padded_B: Sequence[int], linear: float) -> bool:
    """Whether packed rows cost less than padded ones under dense attention, where the mask of a packed row
    computes all pairs of its tokens.

    Args: lengths of the rows in tokens, packed and padded; `linear` is the cost of a token in the layers'
    matrix products, in units of one attention pair.
    """
    packed, padded = max(packed_R), max(padded_B)
    tokens_packed, tokens_padded = len(packed_R) * packed, len(padded_B) * padded
    if tokens_padded > 2 * tokens_packed:  # micro-batch sizes are measured in packed tokens
        return True
    return tokens_packed * (linear + packed) <= tokens_padded * (
        linear + padded / 2
    )  # causal attention computes half of the pairs


def image_runs(types_RL: Tensor) -> Tensor:
    """(R, L): 1, 2, ... for the tokens of the first, second, ... run of media tokens in a row; 0 for text."""
    inside = types_RL > 0
    before = torch.nn.functional.pad(inside, (1, 0))[:, :-1]
    return (inside & ~before).long().cumsum(-1) * inside


def mask_mod(
    order_RL: Tensor, subtree_end_RL: Tensor, window: int | None = None, image_RL: Tensor | None = None
) -> Callable[..., Tensor]:
    """FlexAttention's `mask_mod`, (row, head, query, key) -> bool: a token attends to the nodes above its
    own, and to its own up to itself.

    Args: `window` limits the distance (in the token's own sequence); `image_RL` (see `image_runs`) lets the
    tokens of one image attend to each other in both directions. Padding attends to the first node, so that no
    softmax is empty. Indices may be tensors that broadcast.
    """

    def attends(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        allowed = (key <= query) & (query < subtree_end_RL[row, key])
        if window is not None:
            allowed = allowed & (
                order_RL[row, query] - order_RL[row, key] < window
            )  # the order of padding is 0: it sees the whole first node
        if image_RL is not None:
            allowed = allowed | ((image_RL[row, query] == image_RL[row, key]) & (image_RL[row, query] > 0))
        return allowed

    return attends


def dense_mask(
    order_RL: Tensor, subtree_end_RL: Tensor, window: int | None = None, image_RL: Tensor | None = None
) -> Tensor:
    """`mask_mod` as a dense (R, 1, L, L) bool mask."""
    rows, length = order_RL.shape
    row, place = torch.arange(rows, device=order_RL.device), torch.arange(length, device=order_RL.device)
    attends = mask_mod(order_RL, subtree_end_RL, window, image_RL)
    return attends(row[:, None, None], place[:1], place[None, :, None], place[None, None, :])[:, None]


def block_mask(
    order_RL: Tensor, subtree_end_RL: Tensor, window: int | None = None, image_RL: Tensor | None = None
) -> Any:
    """`mask_mod` as FlexAttention's block mask: blocks that are masked out entirely are not computed."""
    from torch.nn.attention.flex_attention import create_block_mask

    rows, length = order_RL.shape
    return create_block_mask(
        mask_mod(order_RL, subtree_end_RL, window, image_RL),
        rows,
        None,
        length,
        length,
        device=order_RL.device,
    )

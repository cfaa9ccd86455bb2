import pytest
import torch

from vlrl.trainer.step.loss_inputs import denominators_of, make_batch, split_micro_batches, split_mini_batches
from vlrl.types import Group, Prompt, Rollout, Row


def group_of(name, *lengths, masks=None):
    prompt = Prompt(Row(name, name), ({"role": "user", "content": name},))
    rollouts = [
        Rollout(prompt, list(range(1, n + 1)), loss_mask=(masks or {}).get(i)) for i, n in enumerate(lengths)
    ]
    return Group(prompt, rollouts)


def test_ragged_groups_become_one_rectangle():
    batch = make_batch([group_of("a", 2, 3), group_of("b", 1, masks={0: [False]})], pad_id=9)
    assert batch.ids_BT.tolist() == [[1, 2, 9], [1, 2, 3], [1, 9, 9]]
    assert batch.mask_BT.int().tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0]]
    assert batch.loss_mask_BT.int().tolist() == [[1, 1, 0], [1, 1, 1], [0, 0, 0]]
    assert batch.prompt_B.tolist() == [0, 0, 1] and len(batch.prompts) == 2


def test_equal_prompts_are_kept_once_and_temperatures_may_differ_by_token():
    a, b = group_of("same", 1), group_of("same", 2)
    b.rollouts[0].temperature = [0.5, 2.0]
    batch = make_batch([a, b], pad_id=0)
    assert len(batch.prompts) == 1 and batch.prompt_B.tolist() == [0, 0]
    assert batch.temperature_BT.tolist() == [[1.0, 1.0], [0.5, 2.0]]


def test_empty_completions_and_batches_are_refused():
    with pytest.raises(ValueError, match="row 'a'"):
        make_batch([group_of("a", 0)], 0)
    with pytest.raises(ValueError, match="at least one"):
        make_batch([], 0)


def test_totals_count_trained_tokens():
    assert denominators_of(
        [group_of("a", 2, 3), group_of("b", 4, masks={0: [True, False, True, False]})]
    ) == (7.0, 3.0, 2.0)


def test_micro_batches_hold_whole_groups_within_the_budget():
    groups = [group_of(str(n), n) for n in (5, 1, 9, 4, 30)]
    micros = split_micro_batches(groups, 10, lambda group: len(group.rollouts[0]))
    assert [[len(g.rollouts[0]) for g in micro] for micro in micros] == [[30], [9], [5, 4, 1]]


def test_minibatches_partition_the_groups_in_the_given_order():
    groups = [group_of(str(n), 1) for n in range(5)]
    parts = list(split_mini_batches(groups, 2, [4, 3, 2, 1, 0]))
    assert [[g.row.id for g in part] for part in parts] == [["4", "3"], ["2", "1", "0"]]
    assert list(split_mini_batches([], 2, [])) == []
    assert torch.is_tensor(make_batch(parts[0], 0).ids_BT)

"""The numbers of a step."""

from kit import collected, open_run

from vlrl.trainer.step.ending import answered, describe, end_step
from vlrl.types import Group, Prompt, Rollout, Row


def group(*rollouts: tuple[str, float, int]) -> Group:
    prompt = Prompt(Row("a", "?"), ())
    return Group(
        prompt,
        [
            Rollout(prompt, [1] * n, source=source, reward=reward, rewards={"right": reward})
            for source, reward, n in rollouts
        ],
    )


def test_demonstrations_are_trained_on_and_not_reported_as_samples():
    groups = [group(("policy", 0.0, 2), ("policy", 1.0, 4), ("expert", 1.0, 9))]
    out = describe(groups, groups)
    assert (out["rollouts"], out["tokens"]) == (3.0, 15.0)
    assert (out["reward/total"], out["reward/right"], out["length/mean"], out["length/max"]) == (
        0.5,
        0.5,
        3.0,
        4.0,
    )


def test_where_others_wrote_everything_it_is_reported_under_another_name():
    groups = [group(("expert", 1.0, 9), ("expert", 0.5, 3))]
    out = describe(groups, groups)
    assert (out["demonstrations/total"], out["demonstrations/right"], out["length/mean"]) == (0.75, 0.75, 6.0)
    assert (
        "reward/total" not in out and "reward/right" not in out
    )  # the curve of the policy's rewards starts with the policy


def test_what_others_wrote_is_no_answer_of_the_policy():
    mixed, plain, taught, empty = (
        group(("policy", 0.0, 2), ("expert", 1.0, 9)),
        group(("policy", 1.0, 4)),
        group(("expert", 1.0, 9)),
        group(),
    )
    out = answered([mixed, plain, taught, empty])
    assert [g.rewards for g in out] == [[0.0], [1.0], []] and len(mixed) == 2


def test_a_sampler_learns_of_answers_and_a_strategy_of_all_that_it_made(tmp_path, monkeypatch):
    run, seen = open_run(tmp_path), {}
    view = collected(run)
    groups = view.record.groups
    groups[0].rollouts[0].source = "expert"
    for part in (run.prompt_sampler, run.rollout_budget, run.rollout):
        read = "sampled_groups" if part is run.rollout else "answered_groups"
        monkeypatch.setattr(
            type(part),
            "end_step",
            lambda self, run, read=read: seen.update({self.kind: sum(map(len, getattr(run, read)))}),
        )
    end_step(view)
    whole = sum(map(len, groups))
    assert seen == {"prompt_sampler": whole - 1, "rollout_budget": whole - 1, "rollout_strategy": whole}


def test_nothing_sampled():
    assert describe([], []) == {"groups": 0.0, "rollouts": 0.0, "tokens": 0.0}

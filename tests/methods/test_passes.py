"""Fields, strategies, replay and callbacks that need more than one forward: on tiny real policies."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
import torch
from make import base_run, group, run
from PIL import Image
from tiny import text_run, vision_run

from vlrl.methods.papers.dph_rl import BASE_DIVERGENCE, DphRl
from vlrl.methods.papers.papo import Blackened, PapoMaskedLogp
from vlrl.methods.papers.pppo import PREFIX, Pppo, PppoContinuationReward, PppoPrefixGrowth
from vlrl.methods.papers.progrpo import ProgrpoPromptConfidence
from vlrl.methods.papers.rover import RoverOldVocabMean, RoverVocabMean
from vlrl.methods.papers.spae import confidence, potential, step_ends
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.step.loop import sample, train_step
from vlrl.trainer.step.loss_inputs import make_batch
from vlrl.trainer.views import StepView
from vlrl.types import Clip, Media

SMALL = ["policy.tiny={hidden: 32, layers: 2, heads: 2, kv_heads: 1, intermediate: 64}"]


class White(Media):
    kind = "image"
    key = "white"

    def load(self):
        return Image.new("RGB", (280, 140), "white")


class WhiteVideo(Media):
    kind = "video"
    key = "white-video"

    def load(self):
        return Clip(np.full((3, 56, 70, 3), 255, np.uint8), 1.0)


def test_patches_are_black_with_the_given_share():
    pixels = np.asarray(Blackened(White(), "1", 14, 0.6).load())
    squares = pixels.reshape(10, 14, 20, 14, 3)
    assert ((squares == 0).all((1, 3, 4)) | (squares == 255).all((1, 3, 4))).all() and 0.45 < (
        pixels == 0
    ).mean() < 0.75
    again = np.asarray(Blackened(White(), "1", 14, 0.6).load())
    other = Blackened(White(), "2", 14, 0.6)
    assert (
        (again == pixels).all()
        and (np.asarray(other.load()) != pixels).any()
        and other.key != Blackened(White(), "1", 14, 0.6).key
    )


def test_a_video_is_blackened_alike_in_all_frames():
    frames = Blackened(WhiteVideo(), "1", 14, 0.5).load().frames_THWC
    assert (frames == frames[0]).all() and 0 < (frames == 0).mean() < 1


@pytest.fixture(scope="module")
def seeing():
    made = vision_run(["methods/papo"], SMALL)
    groups = sample(StepView.between_steps(made), made.prompt_sampler(2))
    return made, make_batch(groups, made.policy.pad_id)


def test_blind_log_probs_differ_only_where_there_is_a_picture(seeing):
    made, batch = seeing
    field = PapoMaskedLogp()
    field.setup(made)
    with torch.no_grad():
        plain, blind = made.policy.forward(batch)["logp"], field(made.policy, batch)
        clear = PapoMaskedLogp(share=0.0)(made.policy, batch)
    assert blind.shape == plain.shape and (blind - plain).abs().max() > 1e-6
    assert torch.allclose(clear, plain, atol=1e-5)


def test_prompt_confidence_is_that_of_a_plain_forward(seeing):
    made, batch = seeing
    values = ProgrpoPromptConfidence()(made.policy, batch)
    assert values.shape == batch.ids_BT.shape and ((values > 0) & (values < 1)).all()
    assert (values == values[:, :1]).all() and len(values[:, 0].unique()) <= len(batch.prompts)


def test_prompt_confidence_of_text():
    made = text_run(["methods/progrpo"])
    prompt = made.prompt_template(made.prompt_sampler(1)[0])
    ids = torch.tensor(made.policy.encode(prompt).ids)[None]
    with torch.no_grad():
        logp = (
            made.policy.model(input_ids=ids)
            .logits[0, :-1]
            .log_softmax(-1)
            .gather(-1, ids[0, 1:, None])
            .mean()
        )
    assert ProgrpoPromptConfidence().of(made.policy, prompt) == pytest.approx(exp(logp.item()), rel=1e-4)


def test_old_vocabulary_means_are_the_policys_own_on_policy(seeing):
    made, batch = seeing
    with torch.no_grad():
        now = made.policy.forward(batch, [RoverVocabMean()])["rover.vocab_mean"]
        assert (
            torch.allclose(RoverOldVocabMean()(made.policy, batch), now, atol=1e-6)
            and (now[batch.mask_BT] < 0).all()
        )


def test_step_ends():
    assert step_ends(["a", "\n", "\nb", "c\n\n", "d"], "\n\n", 0) == [4] and step_ends(
        ["a\n\n", "b\n\n"], "\n\n", 0
    ) == [1]
    assert step_ends(["x"] * 9, "", 4) == [4, 8] and step_ends(["x"] * 4, "", 4) == []


def test_potential():
    assert potential([1.0, 1.0], [0.0]) == 1.0 and potential([1.0], [-1e9]) == -1.0
    assert potential([0.5], [log(0.5), log(0.1)]) == pytest.approx(1.5 * 0.3 * 0.5 + 0.15 - 0.5)


def test_confidence_is_the_exponential_of_minus_the_mean_entropy():
    half = {0: log(0.5), 1: log(0.5)}
    assert confidence([half, {3: 0.0}]) == pytest.approx(0.5**0.5) and confidence([]) == 1.0


def test_probes_leave_a_potential_per_step():
    made = text_run(["methods/spae"])
    groups = sample(StepView.between_steps(made), made.prompt_sampler(2))
    lengths = [len(rollout) for g in groups for rollout in g]
    for rollout in (r for g in groups for r in g):
        assert [end for end, _ in rollout.info["steps"]] == list(range(4, len(rollout), 4)) and all(
            -1 <= phi <= 1 for _, phi in rollout.info["steps"]
        )
    assert max(lengths) > 4


def test_prefixes_are_trained_and_their_continuations_scored():
    made = text_run(["methods/pppo"])
    (g,) = sample(StepView.between_steps(made), made.prompt_sampler(1))
    trained, extra = [r for r in g if r.trained], [r for r in g if not r.trained]
    assert len(trained) == made.group_size and all(
        sum(r.loss_mask) == max(1, int(0.15 * len(r) + 1e-9)) for r in trained
    )
    for rollout in extra:
        parent = trained[PREFIX[rollout]]
        kept = sum(parent.loss_mask)
        assert rollout.source == "continuation" and rollout.ids[:kept] == parent.ids[:kept]
    shaped = PppoContinuationReward()(g)
    family = [r.reward for r in g if PREFIX[r] == 0]
    assert shaped[0] == pytest.approx(sum(family) / len(family)) and shaped[len(trained) :] == [
        r.reward for r in extra
    ]


@pytest.fixture
def validated():
    """A run whose held-out accuracy is the next of a list."""
    values = []

    def look(callback, parts, *scores):
        out = []
        parts.accuracy = lambda: {"a": values[0], "b": values.pop(0)}
        for score in scores:
            values.append(score)
            out.append(callback(parts, []))
        assert not values
        return out

    return look


def test_prefix_share_grows_when_accuracy_does_not(validated):
    parts = run(rollout=Pppo(share=0.2), phase_step=1, has_heldout=True)
    growth = PppoPrefixGrowth(eval_every=2, step=0.1, max_share=0.35)
    shares = [said["share"] for said in validated(growth, parts, 0.5, 0.6, 0.6, 0.4, 0.3, 0.9)]
    assert shares == pytest.approx([0.2, 0.2, 0.3, 0.35, 0.35, 0.35])
    parts.phase_step = 2
    assert growth(parts, [])["share"] == pytest.approx(0.35)  # not looked at in this step
    growth.check(parts)
    assert growth.requires == PppoContinuationReward().requires == Pppo().provides == (PREFIX,)
    restored = Pppo(share=0.2)
    restored.load_state_dict(parts.rollout.state_dict())
    assert restored.state.share == pytest.approx(0.35)
    with pytest.raises(ConfigError, match="held-out"):
        growth.check(run(rollout=Pppo(), has_heldout=False))


def test_base_samples_replace_what_the_base_could_do():
    replay, clock = DphRl(steps=1, rate=0.5), base_run()
    replay.setup(clock)
    assert replay([group(1, 1, 0, name="easy"), group(0, 0, 1, name="hard")]) == []
    clock.phase_step = 1
    easy, hard = replay([group(0, 0, 0, name="easy"), group(1, 0, 0, name="hard")])
    assert [(r.source, r.reward) for r in easy] == [("base", 1)] * 2
    assert all(r.logp == pytest.approx([-0.1] * 3) for r in easy)
    assert [r.source for r in hard] == ["policy"] * 3
    again = DphRl(steps=1)
    again.load_state_dict(replay.state_dict())
    again.setup(clock)
    assert again([group(0, name="easy")])[0].rollouts[0].ids == easy.rollouts[0].ids
    assert BASE_DIVERGENCE in replay.requires and easy.rollouts[0].correct


def test_the_base_is_its_whole_distribution():
    """What top_p left out counts in pi_base: at its own weights the divergence is 0."""
    made = text_run(
        ["methods/dph_rl"],
        [
            "engine={name: hf}",
            "sampling.top_p=0.5",
            "rewards={all: {name: random, p: 1.0}}",
            "outcome=all",
            "replay.steps=1",
            "optimizer.lr=0.0",
            "loss_terms.f_divergence.divergence=forward_kl",
        ],
    )
    base, later = (train_step(made).metrics for _ in range(2))
    assert base["groups"] == 0 and made.current.replay.state.store
    assert later["f_divergence"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("sharded", "passes"), [(False, 1), (True, 3)])
def test_ranks_of_sharded_weights_make_equally_many_passes(sharded, passes):
    made = []
    replay, clock = DphRl(steps=1), base_run(params_sharded=sharded, gather=lambda own: [*own, 3])
    forward = clock.policy.forward
    clock.policy.forward = lambda batch: made.append(batch) or forward(batch)
    replay.setup(clock)
    ((name, stored),) = replay.solved([group(1, 1, name="ours"), group(0, 0, name="hard")])
    assert name == "ours" and len(stored) == 2 and len(made) == passes


def test_stored_groups_join_every_step_in_turn():
    names = ["a", "b", "c"]
    rows = {"s": [group(1, name=name).row for name in names]}
    replay = DphRl(steps=1, added=1)
    clock = base_run(ranks=1, rank=0, rows=rows, prompt_template=lambda row: group(1, name=row.id).prompt)
    replay.setup(clock)
    assert replay([group(1, 1, name=name) for name in names]) == []
    seen = []
    for clock.phase_step in (1, 2, 3):
        _, stored = replay([group(1, 0, name="new")])
        assert [r.source for r in stored] == ["base"] * 2
        assert stored.rollouts[0].logp == pytest.approx([-0.1] * 3)
        seen.append(stored.row.id)
    assert sorted(seen) == names
    clock.phase_step = names.index(seen[0]) + 3
    assert len(replay([group(0, name=replay.further(set())[0].row.id)])) == 1  # the prompt is there already


def test_base_samples_of_one_rank_are_there_for_all():
    here, there = DphRl(steps=1), DphRl(steps=1)
    there.setup(base_run())
    found = there.solved([group(1, 1, name="theirs")])
    clock = base_run(gather=lambda own: [*own, *found])
    here.setup(clock)
    assert here([group(1, 1, name="ours")]) == []
    assert set(here.state_dict()["store"]) == {"ours", "theirs"}
    clock.phase_step = 1
    assert [r.source for r in here([group(0, 0, name="theirs")])[0]] == ["base"] * 2

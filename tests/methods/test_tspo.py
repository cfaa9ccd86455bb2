"""TSPO: the agent's scores and draws, what the frozen policy sees, and what the agent learns from."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from run_kit import View
from vlrl_data.generators.video_evidence import GenVideoEvidence

from vlrl.methods.common.frame_selector import (
    FrameSelector,
    TinyEncoder,
    open_encoder,
    place_code,
    window_mask,
)
from vlrl.methods.papers.tspo import (
    SELECTED,
    SelectedFrames,
    Tspo,
    TspoAgent,
    TspoLocating,
    gumbel_top,
    located,
)
from vlrl.plugins.registry import ConfigError
from vlrl.types import Completion, Group, Prompt, Rollout, Row, RowError, Sampling

ROWS = list(GenVideoEvidence(count=3, frames=24)())


def prompt_of(row):
    return Prompt(row, ({"role": "user", "content": [{"type": "video"}]},), videos=row.videos)


def test_the_window_of_the_release():
    for frames, window in ((5, 2), (9, 4), (7, 12), (6, 3)):
        wanted = torch.zeros(frames, frames, dtype=torch.bool)
        for j in range(frames):
            for k in range(window):
                wanted[j, min(max(j - window // 2 + k, 0), frames - 1)] = True
        assert torch.equal(window_mask(frames, window), wanted)


def test_place_code_by_hand():
    code = place_code(4, 4)
    assert code[0].tolist() == [0.0, 1.0, 0.0, 1.0]
    slow = 10_000 ** (-2 / 4)
    wanted = [math.sin(0.5), math.cos(0.5), math.sin(0.5 * slow), math.cos(0.5 * slow)]
    assert code[2].tolist() == pytest.approx(wanted)


def test_scores_are_two_cosines():
    agent = FrameSelector(8, 2, 3, seed=0)
    torch.nn.init.zeros_(agent.mlp[2].weight), torch.nn.init.zeros_(agent.mlp[2].bias)
    image, text = torch.randn(5, 8), torch.randn(8)
    wanted = 2 * torch.nn.functional.cosine_similarity(image, text[None], -1)  # without what the MLP adds
    assert torch.allclose(agent(image, text), wanted)
    far = image.clone()
    far[4] += 1.0
    full = FrameSelector(8, 2, 3, seed=0)
    moved = (full(far, text) - full(image, text)).abs() > 1e-6
    assert moved.tolist() == [False, False, False, True, True]  # frame 2 attends to 1, 2, 3
    with pytest.raises(ConfigError, match="does not divide"):
        FrameSelector(10, 4, 3, seed=0)


def test_gumbel_top_draws_as_its_law_says():
    """Plackett-Luce: a pair has p_i p_j / (1 - p_i), both ways."""
    p, rng = torch.tensor([0.6, 0.3, 0.1]), np.random.default_rng(0)
    pairs = [tuple(gumbel_top(p.log(), 2, rng.random(3))) for _ in range(20000)]
    wanted = 0.6 * 0.3 / 0.4 + 0.3 * 0.6 / 0.7
    assert pairs.count((0, 1)) / 20000 == pytest.approx(wanted, abs=1e-2)
    assert gumbel_top(p.log(), 9, [0.5] * 3) == [0, 1, 2]  # no more than there are, in order
    assert gumbel_top(torch.zeros(4), 1, [0.1, 0.9, 0.1, 0.1]) == [1]


def test_selected_frames():
    video = ROWS[0].videos[0]
    whole, cut = video.load(), SelectedFrames(video, (2, 5, 11))
    clip = cut.load()
    assert np.array_equal(clip.frames_THWC, whole.frames_THWC[[2, 5, 11]])
    assert clip.fps == pytest.approx(whole.fps * 3 / 24) and cut.key != SelectedFrames(video, (2, 5, 12)).key
    picture = SimpleNamespace(key="p", load=lambda: "a picture")
    with pytest.raises(TypeError, match="only of a video"):
        SelectedFrames(picture, (0,)).load()


def test_the_locating_reward():
    prompt = prompt_of(Row("a", "?", meta={"relevant": [3, 4]}))
    group = Group(prompt, [Rollout(prompt, [1], reward=value) for value in (1.0, 0.0, 1.0)])
    for rollout, places in zip(group, ([3, 4], [0, 3], [0, 1])):
        SELECTED.set(rollout, places)
    assert [located(rollout) for rollout in group] == [1.0, 0.5, 0.0]
    assert TspoLocating()(group) == [2.0, 0.5, 1.0]
    general = Group(prompt_of(Row("b", "?")), [Rollout(prompt_of(Row("b", "?")), [1], reward=0.5)])
    SELECTED.set(general.rollouts[0], [0])
    assert TspoLocating(weight=2.0)(general) == [2.5]


def opened(**fields):
    """A strategy and its agent's callback on a run without a model, whose engine answers "A"."""
    asked = []

    def generate(requests):
        for request in requests:
            asked.append(request)
            yield Completion(request, 0, [1, 2], [0.0, 0.0], "A", "stop")

    def made(completion):
        return Rollout(completion.request.prompt, completion.ids, completion.text, completion.logp)

    strategy = Tspo(**{"encoder": "tiny", "frames": 4, **fields})
    run = View(
        policy=SimpleNamespace(device="cpu"),
        settings=SimpleNamespace(steps=10, error_limit=1.0),
        engine=SimpleNamespace(generate=generate),
        make_rollout=made,
        sampling=lambda prompt, attempt: Sampling(temperature=1.0),
        rollout=strategy,
    )
    run.asked = asked
    strategy.setup(run)
    callback = TspoAgent(lr=1e-3)
    callback.setup(run)
    return strategy, callback, run


def test_selections_are_answered_greedily_and_can_be_repeated():
    strategy, _, run = opened()
    prompts = [prompt_of(row) for row in ROWS[:2]]
    groups = strategy(prompts, [3, 3], run)
    assert all(request.sampling.temperature == 0 and request.n == 1 for request in run.asked)
    for prompt, group in zip(prompts, groups, strict=True):
        assert group.prompt is prompt and len(group) == 3
        for rollout in group:
            places = SELECTED[rollout]
            assert places == sorted(set(places)) and len(places) == 4 and max(places) < 24
            assert len(rollout.prompt.videos[0].load()) == 4
    again = opened()
    repeated = again[0](prompts, [3, 3], again[2])
    assert [[SELECTED[r] for r in g] for g in repeated] == [[SELECTED[r] for r in g] for g in groups]
    bare = prompt_of(Row("x", "?", videos=ROWS[0].videos))
    assert len(strategy.selections(bare, 1, run)[0]) == 2  # half as many where nothing says what matters
    with pytest.raises(RowError, match="one video"):
        strategy.selections(prompt_of(Row("x", "?")), 1, run)


def test_the_temperature_falls():
    strategy, _, run = opened()
    assert strategy.temperature() == 0.025
    strategy.state.step = 5
    assert strategy.temperature() == pytest.approx(0.0175)
    strategy.state.step = 20
    assert strategy.temperature() == pytest.approx(0.01)
    strategy.end_step(run)
    assert strategy.state.step == 21 and not strategy.state.agent.scenes


def test_the_agent_learns_where_the_frames_that_matter_are():
    strategy, callback, run = opened()
    prompts = [prompt_of(row) for row in ROWS]
    first = {}
    for step in range(25):
        run.step = step
        run.groups = strategy(prompts, [8] * len(prompts), run)
        for group in run.groups:
            shares = [located(rollout) for rollout in group]
            spread = np.std(shares) or 1.0
            for rollout, share in zip(group, shares, strict=True):
                rollout.advantage = float((share - np.mean(shares)) / spread)
        logged = callback(run, run.groups)
        first = first or {"share": np.mean([located(r) for g in run.groups for r in g]), **logged}
    last = np.mean([located(r) for g in run.groups for r in g])
    assert last > first["share"] + 0.2
    assert logged["gain"][1] == 3.0
    saved = callback.state.state_dict()
    assert set(saved) == {"weights", "adam"} and saved["adam"]


def test_the_update_is_the_policy_gradient_of_the_selected_frames():
    strategy, callback, run = opened()
    (group,) = strategy([prompt_of(ROWS[0])], [2], run)
    group.rollouts[0].advantage, group.rollouts[1].advantage = 1.0, -1.0
    run.groups = [group]
    logp, places = callback.log_probs(strategy, group)
    chosen = [logp[[places.index(place) for place in SELECTED[r]]].mean() for r in group]
    wanted = torch.autograd.grad(-(chosen[0] - chosen[1]) / 2, list(callback.state.module.parameters()))
    still_callback(run)(run, [group])
    found = [p.grad for p in strategy.state.agent.module.parameters()]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, wanted, strict=True))


def still_callback(run):
    """A callback whose update does not move the agent and does not clip."""
    made = TspoAgent(lr=1e-9, max_grad_norm=1e9)
    made.setup(run)
    return made


def test_mistakes_are_named():
    for bad in ({"frames": 0}, {"frames": 9, "decoded": 8}, {"heads": 0}):
        with pytest.raises(ValueError, match="frames"):
            Tspo(**bad)
    with pytest.raises(ValueError, match="last_tau"):
        Tspo(tau=0.01, last_tau=0.02)
    with pytest.raises(ValueError, match="lr"):
        TspoAgent(lr=0.0)
    with pytest.raises(ConfigError, match="CLIP model"):
        open_encoder("/nowhere/clip", "cpu")
    with pytest.raises(ConfigError, match="rollout: {name: tspo}"):
        TspoAgent().setup(View(rollout=SimpleNamespace()))
    assert TinyEncoder("cpu").text("a").tolist() == TinyEncoder("cpu").text("a").tolist()


def test_a_clip_model_of_transformers(tmp_path):
    """A tiny CLIP: features of frames and of a question have the size of its projection."""
    from transformers import CLIPConfig, CLIPModel

    from vlrl.methods.common.frame_selector import features

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config={**sizes, "vocab_size": 20, "eos_token_id": 1},
        vision_config={**sizes, "image_size": 16, "patch_size": 8},
        projection_dim=12,
    )
    model = CLIPModel(config).eval()
    with torch.no_grad():
        images = features(model.get_image_features(pixel_values=torch.rand(3, 3, 16, 16)))
        text = features(model.get_text_features(input_ids=torch.tensor([[2, 3, 1]])))
    assert images.shape == (3, 12) and text.shape == (1, 12)

"""RLoT: the dueling network, double DQN and Adam against PyTorch, the blocks, and a navigator that learns in
a run."""

from dataclasses import replace

import pytest
import torch
from tiny import opened, steps
from torch import nn

from vlrl.config import load
from vlrl.methods.papers.rlot import (
    ASPECTS,
    DEBATE,
    DECOMPOSE,
    REASON,
    REFINE,
    SIZES,
    TERMINATE,
    BlockTransition,
    Rlot,
    double_q_loss,
    first_weights,
    listed,
    navigator_values,
    read_scores,
)
from vlrl.plugins.registry import ConfigError
from vlrl.trainer.plan import Plan
from vlrl.trainer.session import Session
from vlrl.trainer.views import StepView


class Reference(nn.Module):
    """The released network (Dueling_DQN_net.py), as modules."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(7, 32)
        self.gain, self.value = (
            nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, out)) for out in (5, 1)
        )

    def forward(self, state):
        hidden = torch.relu(self.first((state - 1.5) / 1.5))
        gain = self.gain(hidden)
        return self.value(hidden) + gain - gain.mean(-1, keepdim=True)

    def flat(self):
        layers = (self.first, self.gain[0], self.value[0], self.gain[2], self.value[2])
        return torch.cat([part.detach().flatten() for layer in layers for part in (layer.weight, layer.bias)])


def test_the_network_is_the_released_one():
    torch.manual_seed(0)
    reference, states = Reference(), torch.randint(0, 4, (6, 7)).float()
    assert sum(p.numel() for p in reference.parameters()) == len(first_weights(0)) == 2566, "less than 3K"
    assert torch.allclose(navigator_values(reference.flat(), states), reference(states), atol=1e-6)
    weights = first_weights(3)
    assert torch.equal(weights, first_weights(3)) and not torch.equal(weights, first_weights(4))
    assert (
        weights[:224].abs().max() <= 7**-0.5
        and weights[256:].abs().max() <= 32**-0.5
        and [len(size) for size in SIZES] == [2, 1] * 5
    )


def linear(gains):
    """Weights of a network with Q(s, a) = gains[a] - mean(gains), whatever the scores."""
    weights = torch.zeros(2566)
    start = 2566 - 33 - 5  # the biases of the gains stand before the 32 weights and the bias of the value
    weights[start : start + 5] = torch.tensor(gains)
    return weights


def test_double_dqn_by_hand():
    """Q = (4, -1, -1, -1, -1) chooses block 0 next, whose value the target network states: (-4, 1, 1, 1,
    1)."""
    weights, target = linear([5.0, 0, 0, 0, 0]), linear([-5.0, 0, 0, 0, 0])
    assert navigator_values(weights, torch.zeros(1, 7)).tolist() == [[4, -1, -1, -1, -1]]
    going = BlockTransition([1.0] * 7, 0, 0.5, False, [2.0] * 7)
    assert float(double_q_loss(weights, target, [going], 0.9)) == pytest.approx(
        (4 - (0.5 + 0.9 * -4)) ** 2, rel=1e-6
    )
    ended = replace(going, action=2, reward=1.0, done=True)
    assert float(double_q_loss(weights, target, [ended], 0.9)) == pytest.approx((-1 - 1) ** 2, rel=1e-6)
    both = double_q_loss(weights, target, [going, ended], 0.9)
    assert float(both) == pytest.approx(((4 + 3.1) ** 2 + 4) / 2, rel=1e-6)


def test_updates_are_those_of_pytorch():
    """Five updates on one batch, with the target network renewed at the third, against modules and
    torch.optim.Adam."""
    torch.manual_seed(1)
    strategy = Rlot(prm="x", memory=4, batch=4, rate=0.01, target_every=3)
    reference = Reference()
    state = strategy.state
    state.weights, state.target = reference.flat(), reference.flat()
    batch = [
        BlockTransition(
            [float((i + j) % 4) for j in range(7)],
            i % 5,
            i / 4,
            i == 3,
            [float((2 * i + j) % 4) for j in range(7)],
        )
        for i in range(4)
    ]
    state.memory = [[t.state, t.action, t.reward, t.done, t.after] for t in batch]
    target = Reference()
    target.load_state_dict(reference.state_dict())
    optimizer = torch.optim.Adam(reference.parameters(), lr=0.01)
    states, after = torch.tensor([t.state for t in batch]), torch.tensor([t.after for t in batch])
    for update in range(1, 6):
        with torch.no_grad():
            best = reference(after).argmax(1, keepdim=True)
            goal = (
                torch.tensor([t.reward for t in batch])
                + 0.9 * torch.tensor([1.0, 1, 1, 0]) * target(after).gather(1, best)[:, 0]
            )
        loss = nn.functional.mse_loss(
            reference(states).gather(1, torch.tensor([[t.action] for t in batch]))[:, 0], goal
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert strategy.learn(0) == pytest.approx(loss.item(), rel=1e-4)
        if update == 3:
            target.load_state_dict(reference.state_dict())
        assert torch.allclose(state.weights, reference.flat(), atol=1e-5) and torch.allclose(
            state.target, target.flat(), atol=1e-5
        )
    assert loss.item() < 0.5 and state.updates == 5


def test_the_navigator_is_saved_and_restored():
    first, second = Rlot(prm="x", memory=2, batch=2), Rlot(prm="x", memory=2, batch=2)
    first.state.memory = [[[0.0] * 7, 1, 0.5, False, [1.0] * 7], [[1.0] * 7, 4, 1.0, True, [1.0] * 7]]
    first.learn(0)
    second.load_state_dict(first.state_dict())
    assert second.learn(0) == first.learn(0) and torch.equal(first.state.weights, second.state.weights)
    assert "prm" not in first.state_dict() and "new" not in first.state_dict()


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        (
            (
                "A1 score=[3] reason=[good]\nA2 score=[2]\nA3: 1\nB1 score = 0\nB2=[1]\nC1 score=[3]\nC2 "
                "score=[2]"
            ),
            [3, 2, 1, 0, 1, 3, 2],
        ),
        ("", [0] * 7),
        ("A1 score=[9] C2 3", [0, 0, 0, 0, 0, 0, 3]),
        ("A1 " + "x" * 100_000, [0] * 7),
        ("A1" * 50_000, [1, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_scores_that_the_policy_writes(text, scores):
    assert read_scores(text) == scores and len(scores) == len(ASPECTS)


def test_any_number_of_subtasks_and_the_release_greedy_sampling():
    """environment_simple.py has no bound on subtasks; env/LLM.py samples with top_k 1."""
    assert Rlot(prm="x", width=0).width == 0
    plain = load(["base/rl", "methods/rlot"]).tree
    assert plain["rollout"]["width"] == 0 and plain["sampling"]["top_k"] == 1


def test_lists_of_plans():
    assert listed("Three plans follow. ### Plan1: from the left") == [
        "Three plans follow.",
        "Plan1: from the left",
    ]
    assert listed("So: ### Plan1: from the left\n### Plan2: from the right\n### x") == [
        "Plan1: from the left",
        "Plan2: from the right",
    ]
    assert listed("no list") == ["no list"] and listed("") == [""] and listed("### a") == ["### a"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"depth": 0},
        {"memory": 8, "batch": 9},
        {"epsilon": 2.0},
        {"epsilon_least": 0.5, "epsilon": 0.1},
        {"gamma": 1.5},
    ],
)
def test_wrong_settings(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Rlot(**wrong)


# --- a run --------------------------------------------------------------------------------------------------

WORDS = [
    "engine={name: fake}",
    "rollout.prm=tiny",
    "rollout.memory=4",
    "rollout.batch=2",
    "rollout.depth=3",
    "group_size=2",
]


@pytest.fixture(scope="module")
def run():
    made = opened(
        Session(Plan.of(load(["base/rl", "models/tiny_text", "tasks/lab_arithmetic", "methods/rlot"], WORDS)))
    )
    yield made
    made.close()


def playing(made, actions, finished=()):
    """The run with a navigator that chooses `actions` in turn; the policy's texts by what it is asked, and
    all that it was asked."""
    asked, chosen = [], iter(actions)
    replies = {
        "Rate the last": "A1 score=[3]",
        "Split what": "### Subtask1: the first half\n### Subtask2: the second half",
        "three different": "no list",
    }
    replies |= {
        "Compare": "The most promising plan is Plan7: good",
        "Summarise": "both halves",
        "by this plan": "planned",
        "Solve this": "solved",
    }
    replies |= {
        "exactly one next step of the reasoning, and": "one <|im_end|> step",
        "Check and correct": "corrected",
    }

    def say(request, index):
        text = request.prompt.text
        asked.append(text)
        if "final answer of the whole" in text:
            return "Yes." if text.count("\nStep ") in finished else "no"
        return next(
            (
                reply
                for key, reply in replies.items()
                if key in text.rpartition("\n\n")[2] or key in text.partition("\n\n")[2]
            ),
            "<answer>1</answer>",
        )

    class Chosen(Rlot):
        name = "rlot"

        def choose(self, state, epsilon, draw):
            return next(chosen)

    made.engine = replace(made.engine, function=say)
    made.engine.setup(made)
    strategy = Chosen(prm="tiny", depth=3, memory=4, batch=2)
    strategy.setup(made)
    return strategy, asked


def test_every_block_is_written_by_the_policy(run):
    strategy, asked = playing(run, [REFINE, DECOMPOSE, DEBATE, REFINE])
    (group,) = strategy([run.prompt_template(run.rows["arithmetic"][0])], [1], StepView.between_steps(run))
    (rollout,) = group
    shown = rollout.prompt.text.partition("Reasoning so far:")[2]
    assert [line for line in shown.splitlines() if line.startswith("Step")] == [
        "Step 1: one < |im_end|> step",
        "Step 2: both halves",
        "Step 3: Plan: no list",
    ]
    assert "planned" in shown and "corrected" not in shown, (
        "refine comes first as reason, and the fourth block is the answer"
    )
    assert rollout.text == "<answer>1</answer>" and rollout.prompt.row.id == group.row.id
    assert sum("the first half" in text for text in asked) == 3, (
        "each subtask sees those before it, and so does the summary"
    )
    (episode,) = strategy.state.new
    assert [transition[1] for transition in episode] == [REASON, DECOMPOSE, DEBATE, REFINE] and [
        t[3] for t in episode
    ] == [False, False, False, True]
    assert (
        episode[0][0] == [3.0, 0, 0, 0, 0, 0, 0]
        and all(0 <= t[2] <= 1 for t in episode)
        and episode[-1][2] == float(rollout.correct)
    )


def test_steps_are_paid_by_the_process_reward_model(run):
    strategy, _ = playing(run, [REASON, REFINE, TERMINATE])
    (group,) = strategy([run.prompt_template(run.rows["arithmetic"][1])], [1], StepView.between_steps(run))
    steps = ["one < |im_end|> step", "corrected"]
    scores = strategy.state.prm.scores([(group.row.question, steps)])[0]
    assert [t[2] for t in strategy.state.new[0][:2]] == pytest.approx(
        [(score + 1) / 2 for score in scores], abs=1e-6
    )


def test_the_policy_may_say_that_it_is_done_and_the_answer_may_come_at_once(run):
    strategy, asked = playing(run, [REASON, TERMINATE], finished=(1,))
    prompts = [run.prompt_template(run.rows["arithmetic"][i]) for i in (2, 3)]
    groups = strategy(prompts, [1, 1], StepView.between_steps(run))
    done, at_once = strategy.state.new
    assert (
        [t[1] for t in done] == [REASON]
        and done[0][3]
        and "Reasoning so far" in groups[0].rollouts[0].prompt.text
    )
    assert [t[1] for t in at_once] == [TERMINATE] and groups[1].rollouts[0].prompt == prompts[1]
    assert len(asked) == 2 * 2 + 3, "scores and answer of both; a step, its scores and the check of one"


def test_held_out_evaluation_learns_nothing(run):
    strategy, _ = playing(run, [TERMINATE, TERMINATE])
    prompts = [run.prompt_template(run.rows["arithmetic"][i]) for i in (4, 5)]
    played = strategy.play(
        prompts, [run.sampling(prompt, 0) for prompt in prompts], StepView.between_steps(run)
    )
    assert [len(rollouts) for rollouts in played] == [1, 1] and not strategy.state.new


def test_a_frozen_policy_and_a_process_reward_model_are_needed():
    base = ["base/rl", "models/tiny_text", "tasks/lab_arithmetic", "methods/rlot"]
    with pytest.raises(ConfigError, match=r"rollout\.prm=PATH"):
        Session(Plan.of(load(base, WORDS[:1])))
    with pytest.raises(ConfigError, match="frozen policy"):
        Session(Plan.of(load(base, [*WORDS, "advantage={name: grpo}"])))


def test_epsilon_falls_and_the_memory_fills():
    strategy = Rlot(prm="x", memory=3, batch=2, epsilon_decay=0.5, epsilon_least=0.2, rate_every=1)
    transition = [[0.0] * 7, 1, 0.5, True, [0.0] * 7]
    strategy.state.new = [[transition], [transition, transition], [transition]]

    class Ranks:
        seed = 0

        def gather_and_clear(self, values):
            gathered = list(values)
            values.clear()
            return gathered

    strategy.end_step(Ranks())
    state, logged = strategy.state, strategy.metrics()
    assert (
        len(state.memory) == 3
        and state.epsilon == 0.2
        and state.updates == 2
        and state.episodes == 3
        and not state.new
    )
    assert (
        logged["rlot/blocks"] == pytest.approx(4 / 3)
        and logged["rlot/reward"] == 0.5
        and logged["rlot/updates"] == 2
        and logged["rlot/loss"] > 0
    )


def test_a_run_trains_the_navigator_and_not_the_policy():
    words = [*WORDS, "rollout.epsilon_decay=0.5", "prompts_per_step=2"]
    made = opened(
        Session(Plan.of(load(["base/rl", "models/tiny_text", "tasks/lab_arithmetic", "methods/rlot"], words)))
    )
    made.engine = replace(
        made.engine,
        function=lambda request, index: "A1 score=[3] yes <answer>1</answer>" if index % 2 == 0 else "no",
    )
    made.engine.setup(made)
    before = [p.detach().clone() for p in made.policy.model.parameters()]
    weights = made.rollout.state.weights.clone()
    log = steps(made, 2)
    assert all(torch.equal(old, new) for old, new in zip(before, made.policy.model.parameters(), strict=True))
    assert (
        log[-1]["rlot/updates"] > 0
        and log[-1]["rlot/epsilon"] < log[0]["rlot/epsilon"]
        and not torch.equal(weights, made.rollout.state.weights)
    )

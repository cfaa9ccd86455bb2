"""What the tests of task configs share: the ranges of rewards, what makes the rows of a reward, and judges
outside a run."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from vlrl_rewards.combine.judged import AsksJudge

# Reward: (score of a correct answer, score of an empty response), where they are not (1, 0). Ranges of the
# rewards' docstrings.
RANGES = {
    "rerank": (1 + 0.2 + 0.1, -1.0),
    "interleaved": (1 + 2.0, -1.0),
    "observe_and_reason": (2.0, 0.0),
    "interleaved_steps": (0.5, 0.0),
    "code_edit": (3.5 * 1 - 1.5, -2.0),
    "patch_similarity": (1.0, -1.0),
    "kernel_config": (1.0, -1.0),
    "general_verifier": (1.0, -0.5),
    "judged_reference": (0.0, 0.0),  # of a response without siblings
    "debate": (0.0, -1.0),  # of a response without siblings
    "factual_thinking": (2.0, -1.0),
    "score_agreement": (1.0, -1.0),
    "critique_verdict": (1.0, -1.0),
    "yes_no_principles": (50.0, -50.0),
    "concise_answer": (1 + 0.5 * (1 + 1) * 0.9, 0.0),  # alone in its group, first step, rated 0.9
    "judged_thinking": (0.9, 0.0),  # what the scripted judge gives a thought without a guess
}
# tasks whose rows are for a selection, which makes the rows of the reward
SELECTS = {
    "gen_pairs": {"name": "vmr"},
    "gen_solved": {"name": "judge_rows", "template": "solution"},
    "gen_verified": {"name": "judge_rows", "template": "correctness"},
}
# tasks whose reward compares siblings: a response that the row's demonstration must beat
WORSE = {
    "gen_captions_compared": "a unicorn",
    "gen_notes_compared": "i like figs",
    "gen_notes_margins": "i like figs",
    "gen_context_debated": "<answer>Nowhere</answer>",
}
# tasks whose rows do not show what their rewards pay
UNSEEN = {
    "gen_preferred": "the responses are given, and only their form is scored",
    "gen_context_verified": "a verifier that the policy is trained as scores: weight 0",
    "gen_selfplay": "the rollout strategy writes the triplet",
    "minigrid_plans": "executors play the plans: tests/methods/test_eaglet.py",
}
# tasks whose rows all have one right answer: that of another row is right too
ALIKE = {
    "gen_calm": "the demonstration is the same calm text for all",
    "gen_notes_principled": "the judge looks for one word, which every demonstration has",
    "gen_notes_ruled": "the judge looks for one word, which every demonstration has",
}

# configs, suites and kinds of answers whose rewards or environment run a program
PROGRAMS = {
    **dict.fromkeys(
        (
            "gen_domains",
            "gen_selfplay",
            "gen_test_cases",
            "saga",
            "gen_programs",
            "b_coder",
            "drive",
            "heron",
            "pf_ppo",
            "gen_kernel",
            "autotriton",
            "absolute_zero",
            "rstar_math",
            "guru",
            "lab_python_pays",
            "humaneval",
            "livecodebench",
            "code",
            "text2reward",
            "icpl",
            "auto_mc_reward",
            "datasets/arpo",
            "datasets/prime",
            "gen_abstraction",
            "efagen",
            "llm_i",
            "gen_illustrated",
            "loong",
            "verif",
        ),
        "bwrap",
    ),
    "gen_verilog": "iverilog",
    "codev_r1": "iverilog",
    "browser_desk": "chromium",
}


def params(names: Iterable[str]) -> list:
    """Names as a test's parameters; those that run a program are skipped where it is not installed, and the
    others fail where they look for one."""
    needed = {name: PROGRAMS.get(name, PROGRAMS.get(name.rpartition("/")[2])) for name in names}
    return [
        pytest.param(name, id=name, marks=pytest.mark.needs(program) if program else pytest.mark.no_program)
        for name, program in needed.items()
    ]


WITH_TOOLS = [
    "environment={name: calculator}",
    "rollout={name: multi_turn}",
]  # what tasks with tools bring, for tasks without

SAYS_YES = "{model: says-yes@1, engine: {name: scripted, scored: false, lines: {'': ['yes']}}}"
SIMULATED = ["environment.simulator={model: scripted@1, engine: {name: scripted, scored: false}}"]

# presets that leave a model, or an environment, to their user: the overrides that name one
MODELS = {
    "perl_vl": [f"rewards.description.judge={SAYS_YES}"],
    "agent_rlvr": WITH_TOOLS[:1],
    "agentrl": WITH_TOOLS[:1],
    "arpo": WITH_TOOLS[:1],
    "artist": WITH_TOOLS,
    "g_ra": [*WITH_TOOLS, "reward_shaping.gate.levels=[[format, 1.0], [calls, 0.0]]"],
    "asearcher": ["environment={name: search}"],
    "ikea": ["environment={name: search}"],
    "med_r_3": ["environment={name: search}", *WITH_TOOLS[1:]],
    "router_r1": [
        "environment={name: router_r1.router, "
        "models: {small: {price: 1, engine: {name: scripted, scored: false}}}}"
    ],
    "mctr": WITH_TOOLS[:1],
    "llm_i": WITH_TOOLS,
    "zerosearch": SIMULATED,
    "datasets/zerosearch": SIMULATED,
    "gtr": ["replay.corrector={name: scripted}"],
    "os_r1": WITH_TOOLS,
    "retool": WITH_TOOLS[:1],
    "tool_star": [*WITH_TOOLS, "reward_shaping.hierarchy.answer=format"],
    "tool_use_via_automated_build_environments": [*WITH_TOOLS, "outcome=null", "rewards.lookup=null"],
    "tspo": ["rollout.encoder=tiny"],
    "rast": ["sampling.tuned=start", "sampling.base=start"],
    "one_shot_cft": ["rollout.teachers={one: {name: scripted, scored: false}}"],
    "pure": ["reward_shaping.process.model=tiny"],
    "clip_delta_prm_rewards": ["reward_shaping.process.model=tiny"],
    "prof": ["reward_shaping.process.model=tiny"],
    "datasets/prof": ["reward_shaping.process.model=tiny"],
    "rlot": ["rollout.prm=tiny"],
    "verif": [f"rewards.rules.judge={SAYS_YES}"],
    "datasets/verif": [f"rewards.rules.judge={SAYS_YES}"],
    "general_reasoner": [f"rewards.verified.judge={SAYS_YES}"],
    "rlvr_diverse_domains": [f"rewards.judged.judge={SAYS_YES}"],
    "datasets/rlvr_diverse_domains": [f"rewards.judged.judge={SAYS_YES}"],
    "datasets/general_reasoner": [f"rewards.verified.judge={SAYS_YES}"],
    "datasets/pref_grpo": [f"rewards.pairs.judge={SAYS_YES}"],
    "datasets/saffron_1": [f"rewards.safety.judge={SAYS_YES}"],
    "datasets/rlmt": ["rewards.preference.model=tiny"],
    "datasets/cooper": ["rewards.verified.model=tiny", f"callbacks.cooper.assistant={SAYS_YES}"],
    "par": ["rewards.score.model=tiny"],
    "rlmt": ["rewards.preference.model=tiny"],
    "autorule": [
        "rewards.preference.model=tiny",
        "rewards.rules.bank=notes_rules",
        f"rewards.rules.judge={SAYS_YES}",
    ],
    "rubicon": [f"rewards.rubric.judge={SAYS_YES}"],
    "rlbff": ['rewards.principles.principles={"*": [politeness]}', f"rewards.principles.judge={SAYS_YES}"],
    "crm": [f"rewards.answer.judge={SAYS_YES}"],
    "think_rm_rlhf": [f"rewards.pairs.judge={SAYS_YES}"],
    "writing_zero": [f"rewards.pairs.judge={SAYS_YES}"],
    "cooper": ["rewards.verified.model=tiny", f"callbacks.cooper.assistant={SAYS_YES}"],
    "critique_rl": ["phases.help.rewards.refined.engine={name: scripted, scored: false}"],
    "debate_based_justifiability_reward": [f"rewards.debate.judge={SAYS_YES}"],
    "kdrl": ["loss_terms.teacher.teacher.model=start"],
    "knowrl": [f"rewards.facts.judge={SAYS_YES}"],
    "datasets/knowrl": [f"rewards.facts.judge={SAYS_YES}"],
    "thinkprm": [f"rollout.teacher={SAYS_YES}"],
    "sophiavl_r1": [f"rewards.thinking.judge={SAYS_YES}"],
    "datasets/sophiavl_r1": [f"rewards.thinking.judge={SAYS_YES}"],
    "perception_r1": [f"rewards.visual.judge={SAYS_YES}"],
    "datasets/perception_r1": [f"rewards.visual.judge={SAYS_YES}"],
    "wethink": [f"rewards.answer.judge={SAYS_YES}"],
    "datasets/wethink": [f"rewards.answer.judge={SAYS_YES}"],
    "pref_grpo": [f"rewards.pairs.judge={SAYS_YES}"],
    "rewatch_r1": [f"rewards.observed.judge={SAYS_YES}"],
    "orcust": [f"rewards.principles.judge={SAYS_YES}"],
    "oni": [f"reward_shaping.intrinsic.judge={SAYS_YES}"],
    "lipschitz_off_policy_gail": ["environment.expert_depth=3", "environment.options={size: 4}"],
}


def full_and_silent(reward, row):
    """(score of the row's demonstration, of silence): a forecast of the true rate p earns -(p - y)^2 for the
    outcome y, no forecast -1; METEOR is below 1 on equal texts."""
    if reward.name == "brier":
        return -((row.meta["rate"] - row.answer) ** 2), -1.0
    if getattr(reward, "metric", "") == "meteor":  # equal texts of n words: one chunk of n matches
        return 1 - 0.5 / len(row.answer[0].split()) ** 3, 0.0
    return RANGES.get(reward.name, (1.0, 0.0))


class Letters:
    """A policy whose tokens are characters: what a scripted judge needs of a run."""

    tokenizer = SimpleNamespace(eos_token_id=0)

    def encode_text(self, text):
        return [ord(char) for char in text]

    def decode(self, ids):
        return "".join(chr(token) for token in ids if token)


def judge_opened(reward):
    """The reward, with its judge opened where it asks one."""
    if isinstance(reward, AsksJudge):
        run = {"output": Path(tempfile.mkdtemp()), "rank": 0, "policy": Letters()}
        reward.setup(SimpleNamespace(**run, phase_step=0, settings=SimpleNamespace(steps=1)))
    return reward


# of presets that change a reward which their own task brings
OWN_TASKS = {
    "methods/debate_based_justifiability_reward": ["tasks/gen_context_debated"],
    "methods/tool_use_via_automated_build_environments": ["tasks/gen_row_tools"],
}

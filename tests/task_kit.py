"""What the tests of task configs share: the ranges of rewards, and what makes the rows of a reward."""

# Reward: (score of a correct answer, score of an empty response), where they are not (1, 0). Ranges of the rewards' docstrings.
RANGES = {
    "rerank": (1 + 0.2 + 0.1, -1.0),
    "interleaved": (1 + 0.5, 0.0),
    "code_edit": (3.5 * 1 - 1.5, -2.0),
    "patch_similarity": (1.0, -1.0),
}
SELECTS = {"gen_pairs": {"name": "vmr"}}  # tasks whose rows are for a selection, which makes the rows of the reward


def full_and_silent(reward, row):
    """(score of the row's demonstration, of silence): a forecast of the true rate p earns -(p - y)^2 for the outcome y, no forecast -1."""
    if reward.name == "brier":
        return -((row.meta["rate"] - row.answer) ** 2), -1.0
    return RANGES.get(reward.name, (1.0, 0.0))

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "core")]


def pytest_collection_modifyitems(config, items):
    """Tests marked `slow` run where `-m` asks for them."""
    if "slow" not in config.option.markexpr:
        kept = [item for item in items if "slow" not in item.keywords]
        config.hook.pytest_deselected(items=[item for item in items if "slow" in item.keywords])
        items[:] = kept

"""A run of all tests tries the same every time; a campaign (`--hypothesis-profile=fuzz`) tries new things."""

from pathlib import Path

from hypothesis import is_hypothesis_test, seed

SEED = 20_261_122


def pytest_collection_modifyitems(config, items):
    if config.getoption("--hypothesis-profile") == "fuzz":
        return
    for item in items:
        if Path(__file__).parent in item.path.parents and is_hypothesis_test(item.obj):
            seed(SEED)(item.obj)

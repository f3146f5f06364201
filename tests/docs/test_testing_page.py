"""The page on tests is run as its reader runs it: each file is saved under its name, and pytest runs them."""

import re

from .test_markdown import FENCE, WITH_PYTEST

pytest_plugins = ["pytester"]

TITLE = re.compile(r'```\w+ title="([\w.]+)"\n')


def test_the_tests_of_the_page_pass(pytester):
    tests = 0
    for fence in FENCE.finditer(WITH_PYTEST.read_text(encoding="utf-8")):
        title = TITLE.match(fence[0])
        assert title, f"a block without a name: {fence[0]}"
        pytester.path.joinpath(title[1]).write_text(fence[2], encoding="utf-8")
        tests += fence[2].count("def test_")
    result = pytester.runpytest_subprocess("-W", "error", "--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=tests + 1)  # one of them is run on two event loops

"""Fixtures of the tests of retrying: virtual time, and the state that tenacity passes to its parts."""

import pytest
import tenacity


@pytest.fixture
def after():
    """The state after an attempt that returned or raised."""

    def state(result=None, failure=None, retrying=None):
        made = tenacity.RetryCallState(retrying or tenacity.Retrying(), fn=None, args=(), kwargs={})
        if failure is None:
            made.set_result(result)
        else:
            made.set_exception((type(failure), failure, None))
        return made

    return state

"""Each kind of pool, and a worker in which shaping is switched off."""

import pytest

from .fleet import PATIENCE_S

pytestmark = pytest.mark.long

POOLS = ("solo", "threads", "prefork", "gevent")


@pytest.fixture(scope="module")
def workers(fleet):
    pytest.importorskip("gevent")
    launched = [fleet.launch(pool=pool, concurrency=2, options=["-Q", pool]) for pool in POOLS]
    launched.append(fleet.launch(options=["-Q", "off"], env={"SHAPEKIT_OFF": "1"}))
    return [worker.wait_ready() for worker in launched]


@pytest.mark.usefixtures("workers")
class TestPools:
    @pytest.mark.parametrize("pool", POOLS)
    def test_tasks_run_once_and_each_in_its_own_slot(self, app, records, account, pool):
        add = app.tasks["add"]
        results = [add.apply_async((n,), {"account": account}, queue=pool) for n in range(8)]
        assert [result.get(timeout=PATIENCE_S) for result in results] == [*range(8)]
        records.paced(account, 8, "10/s")

    @pytest.mark.parametrize("pool", POOLS)
    def test_a_429_is_obeyed(self, app, records, account, pool):
        result = app.tasks["after_429"].apply_async((account, "limited"), queue=pool)
        assert result.get(timeout=PATIENCE_S) == 1
        first, second = records.of(account)
        assert second["at"] - first["at"] > 0.6

    @pytest.mark.parametrize("pool", POOLS)
    def test_its_slots_are_free_for_others_meanwhile(self, app, records, account, pool):
        add = app.tasks["add"]
        waiting = [add.apply_async((n,), {"account": account}, queue=pool) for n in range(150)]
        for _ in range(3):
            other = app.tasks["unshaped"].apply_async((account + "-other",), queue=pool)
            other.get(timeout=PATIENCE_S)
        assert len(records.of(account)) < 150
        app.control.revoke([result.id for result in waiting])

    def test_switched_off_nothing_waits(self, app, records, account):
        results = [app.tasks["hourly"].apply_async((account,), queue="off") for _ in range(5)]
        for result in results:
            result.get(timeout=PATIENCE_S)
        assert len(records.of(account)) == 5

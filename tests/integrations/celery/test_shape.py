"""Shapes: which ones are refused where they are declared, and which one applies."""

import ssl
from contextlib import closing

import pytest
from celery import Celery, chord
from redis.connection import SSLConnection

from shapekit import Policy, RedisStore
from shapekit.integrations.celery import ShapedTask, shape_app, store_of

from ...redis_server import shared_server
from .fleet import PATIENCE_S


class TestDeclaring:
    def test_a_shape_is_needed(self, eager, refused):
        error = refused(lambda: eager.plain(lambda: None, base=ShapedTask, lazy=False), "shape")
        assert "base=ShapedTask" in str(error)

    @pytest.mark.parametrize(
        ("shape", "field"),
        [
            ("10/s", "shape"),
            (["10/s"], "shape"),
            ({"rte": "10/s"}, "shape['rte']"),
            ({"policy": "10/s"}, "shape['policy']"),
            ({"policy": Policy("1/s"), "rate": "10/s"}, "shape['rate']"),
            ({"rate": "10/s", "on_reject": "ignore"}, "on_reject"),
            ({"rate": "10/s", "grace": "soon"}, "grace"),
            ({"rate": "10/s", "grace": -1}, "grace"),
            ({"rate": "10/x"}, "rate"),
            ({"burst": 5}, "rate"),
            ({}, "rate"),
            ({"rate": "10/s", "quota": "many"}, "quota limit"),
            ({"rate": "10/s", "cost": 0}, "cost"),
            ({"rate": "10/s", "max_wait": -1}, "max_wait"),
            ({"rate": "10/s", "key": "{nobody}"}, "key"),
            ({"policy": Policy("1/s"), "key": "{nobody}"}, "key"),
            (Policy("1/s", key="{nobody}"), "key"),
            ({"policy": Policy("1/s"), "cost": "much"}, "cost"),
        ],
    )
    def test_an_invalid_shape_is_refused_where_it_is_declared(self, eager, shape, field, refused):
        refused(lambda: eager.plain(lambda: None, base=ShapedTask, lazy=False, shape=shape), field)

    def test_the_store_is_opened_at_the_first_use(self):
        app = Celery("bare", broker="memory://", set_as_current=False)
        shape = {"rate": "10/s", "store": "redis://nobody.invalid", "key": "{account}"}

        @app.task(base=ShapedTask, shared=False, lazy=False, shape=shape)
        def task(account):
            """Declared, and never called."""

    @pytest.mark.parametrize("written", ["decorated", "class"])
    @pytest.mark.parametrize(
        "repeats", [{}, {"autoretry_for": (KeyError,), "retry_kwargs": {"countdown": 0}}]
    )
    def test_a_base_class_may_have_an_init_of_its_own(self, eager, clock, written, repeats):
        class Own(ShapedTask):
            def __init__(self):
                self.users = {}

        app = eager.app
        shape, failing = {"rate": "10/s"}, [KeyError("first")] if repeats else []

        def run(self):
            if failing:
                raise failing.pop()
            return self.users

        if written == "decorated":
            task = app.task(base=Own, bind=True, name="own", shape=shape, shared=False, **repeats)(run)
        else:
            members = {"name": "own", "shape": shape, "run": run, **repeats}
            task = app.register_task(type("Other", (Own,), members)())
        for _ in range(2):
            assert task.delay().get() == {}
        # Each attempt takes a slot.
        assert clock.now() == pytest.approx(0.2 if repeats else 0.1)

    def test_an_invalid_shape_for_foreign_tasks_is_refused_where_it_is_declared(self, eager, refused):
        refused(lambda: shape_app(eager.app, {"billing.*": {"rate": "10/x"}}), "rate")
        refused(lambda: shape_app(eager.app, {"*": {"policy": Policy("1/s"), "cost": 0}}), "cost")
        refused(lambda: shape_app(eager.app, {"*": {}}), "rate")
        for wrong in (3, None, {}):
            refused(lambda wrong=wrong: shape_app(wrong, {}), "app")

    def test_key_and_cost_of_a_task_override_those_of_its_policy(self, eager, clock):
        policy = Policy("10/s", key="same", cost=4, burst=4, name="p", store=eager.store)
        shape = {"policy": policy, "key": "{account}", "cost": 2}
        task = eager.plain(lambda account: clock.now(), base=ShapedTask, shape=shape)
        assert [task("a"), task("a"), task("b"), task("a")] == pytest.approx([0, 0, 0, 0.2])


class TestStore:
    def bare(self, shape=None, **conf):
        app = Celery("bare", broker="memory://", set_as_current=False)
        app.conf.update(**conf)

        @app.task(base=ShapedTask, shared=False, shape={"rate": "10/s", **(shape or {})})
        def task():
            return "ran"

        return task

    @pytest.mark.parametrize("shape", [{}, {"store": None}])
    def test_a_missing_store_is_a_config_error(self, shape, refused):
        error = refused(self.bare(shape), "app.conf.shapekit_store")
        assert "redis://" in str(error)

    @pytest.mark.parametrize("place", ["shapekit_store", "broker_url", "result_backend"])
    def test_the_store_may_be_a_url(self, place):
        task = self.bare({"name": f"by-{place}"}, **{place: shared_server().url})
        assert task() == "ran"
        assert task.shaped.policy.shaper.core.store.shared
        with shared_server().client() as client:
            assert list(client.scan_iter(f"shapekit*by-{place}*"))

    @pytest.mark.parametrize(
        "conf",
        [
            {"broker_url": "rediss://there:7/2?ssl_cert_reqs=CERT_OPTIONAL&ssl_ca_certs=%2Fca.pem"},
            {"shapekit_store": "rediss://there:7/2?ssl_cert_reqs=optional&ssl_ca_certs=/ca.pem"},
            {"result_backend": "rediss://there:7/2?ssl_ca_certs=/ca.pem&ssl_cert_reqs=CERT_OPTIONAL"},
            {
                "broker_url": "redis://there:7/2",
                "broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_OPTIONAL, "ssl_ca_certs": "/ca.pem"},
            },
            {
                "result_backend": "rediss://there:7/2?ssl_cert_reqs=CERT_OPTIONAL",
                "redis_backend_use_ssl": {"ssl_cert_reqs": None, "ssl_ca_certs": "/ca.pem"},
            },
        ],
    )
    def test_a_url_means_what_it_means_to_celery(self, conf):
        with closing(store_of(self.bare(**conf).app)) as store:
            pool = store._client.connection_pool
            assert pool.connection_class is SSLConnection
            options = pool.connection_kwargs
            assert (options["host"], options["port"], options["db"]) == ("there", 7, 2)
            connection = pool.connection_class(**options)
            assert (connection.cert_reqs, connection.ca_certs) == (ssl.CERT_OPTIONAL, "/ca.pem")

    def test_and_so_does_tls_that_verifies_nothing(self):
        conf = {
            "broker_url": "redis://there",
            "broker_use_ssl": {"ssl_cert_reqs": None, "ssl_ca_certs": None},
        }
        with closing(store_of(self.bare(**conf).app)) as store:
            pool = store._client.connection_pool
            connection = pool.connection_class(**pool.connection_kwargs)
            assert (connection.cert_reqs, connection.ca_certs) == (ssl.CERT_NONE, None)

    @pytest.mark.parametrize(
        "urls", ["redis://one/0;redis://two/0", ["redis://one/0", "redis://two/0"], ("redis://one/0",)]
    )
    def test_of_several_urls_it_is_the_first(self, urls):
        with closing(store_of(self.bare(broker_url=urls).app)) as store:
            assert store._client.connection_pool.connection_kwargs["host"] == "one"

    @pytest.mark.parametrize(
        ("environment", "conf", "host"),
        [
            ({"CELERY_BROKER_URL": "redis://told"}, {}, "told"),
            ({"CELERY_BROKER_URL": "redis://told"}, {"broker_url": "redis://overridden"}, "told"),
            ({"CELERY_BROKER_URL": "redis://told"}, {"result_backend": "redis://results"}, "told"),
            ({"CELERY_BROKER_URL": "amqp://told"}, {"broker_url": "redis://overridden"}, None),
            ({"CELERY_BROKER_WRITE_URL": "redis://told"}, {"broker_url": "redis://overridden"}, "told"),
            ({"CELERY_BROKER_READ_URL": "redis://told"}, {}, "told"),
            ({"CELERY_RESULT_BACKEND": "redis://told"}, {"result_backend": "rpc://"}, "told"),
            ({}, {"broker_write_url": "redis://told", "broker_url": "redis://overridden"}, "told"),
            ({}, {"broker_read_url": "redis://told"}, "told"),
        ],
    )
    def test_the_store_is_the_redis_that_celery_uses(self, environment, conf, host, monkeypatch, refused):
        for name, url in environment.items():
            monkeypatch.setenv(name, url)
        app = self.bare(**conf).app
        if host is None:
            refused(lambda: store_of(app), "app.conf.shapekit_store")
            return
        with closing(store_of(app)) as store:
            assert store._client.connection_pool.connection_kwargs["host"] == host

    @pytest.mark.parametrize("place", ["shapekit_store", "broker_url", "result_backend"])
    def test_the_store_may_be_behind_a_socket(self, place):
        url = "redis+socket:///run/redis.sock?virtual_host=5"
        with closing(store_of(self.bare(**{place: url}).app)) as store:
            options = store._client.connection_pool.connection_kwargs
            assert (options["path"], options["db"]) == ("/run/redis.sock", 5)

    @pytest.mark.parametrize(
        "conf",
        [
            {"shapekit_store": "redis://:secret#1@there"},
            {"broker_url": "redis://:secret#1@there"},
            {"result_backend": "rediss://:secret@there?ssl_cert_reqs=CERT_ANY"},
            {"broker_url": "redis://:secret@there", "broker_use_ssl": {"ssl_context": object()}},
        ],
    )
    def test_the_error_about_an_invalid_url_names_its_setting(self, conf, refused):
        error = refused(self.bare(**conf), f"app.conf.{next(iter(conf))}")
        assert "app.conf.shapekit_store" in error.fix
        assert "secret" not in str(error)

    def test_the_store_may_be_an_object(self):
        with shared_server().client() as client:
            store = RedisStore(client, prefix="one")
            task = self.bare({"name": "by-store"}, shapekit_store=store)
            assert task() == "ran"
            assert list(client.scan_iter("one*by-store*"))

    def test_the_store_of_the_policy_overrides_the_apps(self, eager):
        task = self.bare({"store": eager.store}, shapekit_store="redis://nobody.invalid")
        assert task() == "ran"
        assert not task.shaped.policy.shaper.core.store.shared

    def test_a_setting_that_is_no_store_is_refused(self, refused):
        refused(self.bare(shapekit_store=7), "app.conf.shapekit_store")


class TestForeignTasks:
    def test_the_first_matching_pattern_applies_and_its_tasks_share_one_rate(self, eager, clock):
        app = eager.app
        for name in ("billing.a", "billing.b", "other"):
            eager.plain(lambda: None, name=name)
        shape_app(app, {"billing.c": {"rate": "1/s"}, "billing.*": {"rate": "10/s"}, "*r": {"rate": "2/s"}})
        for name in ("billing.c", "billing.d", "unshaped"):
            eager.plain(lambda: None, name=name)
        names = {name: task.shaped.policy.name for name, task in app.tasks.items() if hasattr(task, "shaped")}
        assert names.pop("celery.backend_cleanup", None) is None
        assert names == {
            "billing.a": "billing.*",
            "billing.b": "billing.*",
            "billing.c": "billing.c",
            "billing.d": "billing.*",
            "other": "*r",
        }
        for name in ("billing.a", "billing.b", "billing.d", "unshaped"):
            app.tasks[name].delay()
        assert clock.now() == pytest.approx(0.2)

    @pytest.mark.parametrize("is_finalized", [False, True])
    def test_a_task_may_be_registered_later(self, eager, clock, is_finalized):
        shape_app(eager.app, {"*": {"rate": "10/s"}})
        shape_app(eager.app, {"*": {"rate": "1/h"}})
        if is_finalized:
            eager.app.finalize()
        for _ in range(2):
            assert eager.plain(lambda: None).apply_async(shape_cost=2).successful()
        assert clock.now() == pytest.approx(0.2)

    def test_celery_s_own_tasks_must_be_meant(self, eager):
        eager.app.finalize()
        shape_app(eager.app, {"*": {"rate": "10/s"}, "celery.chord*": {"rate": "1/s"}})
        shaped = {name for name, task in eager.app.tasks.items() if hasattr(task, "shaped")}
        assert shaped == {"celery.chord", "celery.chord_unlock"}

    def test_a_shaped_task_keeps_its_own_shape(self, eager):
        eager.shaped(lambda: None, {"name": "own"}, name="billing.own")
        shape_app(eager.app, {"billing.*": {"rate": "1/h"}})
        assert eager.app.tasks["billing.own"].shaped.policy.name == "own"

    @pytest.mark.parametrize("is_bound", [False, True])
    def test_results_are_as_before(self, eager, is_bound):
        run = (lambda self, x, y=1: x + y) if is_bound else (lambda x, y=1: x + y)
        task = eager.foreign(run, {"rate": "1000/s"}, bind=is_bound)
        assert (task(1), task.delay(2, 3).get(), task.s(4).apply_async().get()) == (2, 5, 5)

    @pytest.mark.parametrize("routes", [None, ["billing.*"], "billing.*"])
    def test_routes_that_are_no_table_are_refused(self, eager, routes, refused):
        refused(lambda: shape_app(eager.app, routes), "routes")

    @pytest.mark.parametrize("shape", [None, "10/s", 10])
    def test_invalid_shapes_are_refused(self, eager, shape, refused):
        refused(lambda: shape_app(eager.app, {"*": shape}), "shape")


@pytest.fixture(scope="module")
def worker(fleet):
    return fleet.start(pool="threads", concurrency=4)


@pytest.mark.usefixtures("worker")
class TestInAWorker:
    @pytest.mark.parametrize(
        ("name", "rate"),
        [
            ("billing.first", "5/s"),
            ("billing.auto", "10/s"),
            ("billing.second", "10/s"),
            ("late.task", "10/s"),
        ],
    )
    def test_tasks_of_other_packages_are_shaped(self, app, records, account, name, rate):
        results = [app.tasks[name].delay(account) for _ in range(5)]
        assert [result.get(timeout=PATIENCE_S) for result in results] == [0] * 5
        records.paced(account, 5, rate)

    def test_one_pattern_has_one_rate(self, app, records, account):
        for _ in range(3):
            app.tasks["billing.auto"].delay(account)
            app.tasks["billing.second"].delay(account)
        records.wait(account, 6)
        records.paced(account, 6, "10/s")

    def test_each_automatic_retry_takes_a_slot(self, app, records, account):
        results = [app.tasks["billing.auto"].delay(account, 2) for _ in range(2)]
        assert [result.get(timeout=PATIENCE_S) for result in results] == [2, 2]
        records.paced(account, 6, "10/s")

    def test_tasks_written_as_classes_are_shaped(self, app, records, account):
        results = [app.tasks["sync"].delay(account, n=n) for n in range(5)]
        assert [result.get(timeout=PATIENCE_S) for result in results] == [*range(5)]
        records.paced(account, 5, "10/s")

    def test_a_task_that_is_only_measured_does_not_wait(self, app, records, account):
        for _ in range(3):
            app.tasks["measured"].delay(account).get(timeout=PATIENCE_S)
        assert len(records.of(account)) == 3

    def test_an_unshaped_task_does_not_wait_behind_shaped_ones(self, app, records, account):
        waiting = [app.tasks["billing.first"].delay(account) for _ in range(100)]
        for _ in range(3):
            app.tasks["unshaped"].delay(account + "-unshaped").get(timeout=PATIENCE_S)
        assert len(records.of(account)) < 100
        app.control.revoke([result.id for result in waiting])

    def test_cost_of_one_call(self, app, records, account):
        add = app.tasks["weighed"]
        add.apply_async((account,), shape_cost=5)
        add.s(account).set(shape_cost=4).apply_async()
        (add.si(account).set(shape_cost=3) | add.si(account)).delay()
        app.send_task("weighed", (account,), shape_cost=2)
        records.wait(account, 5)
        # Only a chain is ordered; the threads of one worker begin in any order.
        costs = [start["cost"] for start in records.of(account)]
        assert sorted(costs) == [1, 2, 3, 4, 5]
        assert costs.index(3) < costs.index(1)
        records.paced(account, 5, "20/s burst 5")

    def test_cost_in_a_chord(self, app, records, account):
        add = app.tasks["weighed"]
        header = [add.si(account).set(shape_cost=cost) for cost in (2, 3)]
        body = add.si(account).set(shape_cost=4)
        chord(header)(body).get(timeout=PATIENCE_S)
        starts = records.paced(account, 3, "20/s burst 5")
        assert sorted(start["cost"] for start in starts[:2]) == [2, 3]
        assert starts[2]["cost"] == 4

    @pytest.mark.parametrize(
        ("args", "cost", "error"),
        [((), 1, "TypeError"), (("a",), 4, "CostExceedsLimitError"), (("a",), 0, "ConfigError")],
    )
    def test_an_invalid_call_fails_with_the_error_of_its_mistake(self, app, args, cost, error):
        # Sent as by a program that does not know the task.
        result = app.send_task("rare", args, headers={"shape_cost": cost})
        assert type(result.get(timeout=PATIENCE_S, propagate=False)).__name__ == error


class TestAWorkerThatCannotBegin:
    @pytest.mark.parametrize("fault", ["memory", "rate"])
    def test_says_why_and_ends(self, fleet, fault):
        worker = fleet.launch(env={"SHAPEKIT_TEST_FAULT": fault})
        worker.process.wait(PATIENCE_S)
        expected = {"memory": "is in the memory of each process", "rate": "rate='x' is an unknown unit"}
        assert "ConfigError: " in worker.log
        assert expected[fault] in worker.log

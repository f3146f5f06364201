"""An app without a broker, in virtual time, and the ways in which a task of it is called."""

from celery import Celery

from shapekit import MemoryStore
from shapekit.integrations.celery import ShapedTask, shape_app


class Eager:
    """Declares tasks from functions, each under its own name."""

    def __init__(self, clock):
        self.clock = clock
        self._made = 0
        self.store = MemoryStore(clock=clock)
        self.app = Celery("eager", broker="memory://", backend="cache+memory://", set_as_current=False)
        self.app.conf.update(task_always_eager=True, shapekit_store=self.store)

    def plain(self, run, **options):
        def named(*args, **kwargs):
            return run(*args, **kwargs)

        self._made += 1
        # Celery generates source with the function's name and signature; the name of a lambda is not valid
        # there.
        named.__wrapped__ = run
        return self.app.task(shared=False, **{"name": f"t{self._made}", **options})(named)

    def shaped(self, run, shape=None, **options):
        shape = {"rate": "10/s", **(shape or {})} if isinstance(shape, dict | None) else shape
        return self.plain(run, base=ShapedTask, shape=shape, **options)

    def foreign(self, run, shape=None, **options):
        task = self.plain(run, **options)
        shape = {"rate": "10/s", **(shape or {})} if isinstance(shape, dict | None) else shape
        shape_app(self.app, {task.name: shape})
        return task


WAYS = {
    "called": lambda task, *args, **kwargs: task(*args, **kwargs),
    "run": lambda task, *args, **kwargs: task.run(*args, **kwargs),
    "apply": lambda task, *args, **kwargs: task.apply(args, kwargs).get(),
    "eager": lambda task, *args, **kwargs: task.apply_async(args, kwargs).get(),
    "delayed": lambda task, *args, **kwargs: task.delay(*args, **kwargs).get(),
    "signature": lambda task, *args, **kwargs: task.s(*args, **kwargs).apply_async().get(),
}

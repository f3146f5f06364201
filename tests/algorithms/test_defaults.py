"""The defaults of the algorithms."""

import inspect
import pkgutil
from importlib import import_module

import shapekit.algorithms


def test_the_wall_clock_shows_the_time_of_the_store_by_default():
    seen = 0
    for found in pkgutil.walk_packages(shapekit.algorithms.__path__, "shapekit.algorithms."):
        for kind in vars(import_module(found.name)).values():
            if not (inspect.isclass(kind) and kind.__module__ == found.name):
                continue
            for name, method in inspect.getmembers(kind, inspect.isfunction):
                skew = inspect.signature(method).parameters.get("skew")
                if skew is not None and skew.default is not skew.empty:
                    assert skew.default == 0, (kind, name)
                    seen += 1
    assert seen > 100

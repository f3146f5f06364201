"""What the tests of permits share: one file, and any number of stores on it."""

import pytest

from shapekit.stores.sqlite import SQLiteStore


@pytest.fixture
def file(tmp_path, clock):
    """Makes stores on one file, as several processes would."""
    made = []

    def make():
        made.append(SQLiteStore(tmp_path / "limits.db", clock=clock))
        return made[-1]

    yield make
    for store in made:
        store.close()

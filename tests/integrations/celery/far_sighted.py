"""The app of most tests, for a worker that fetches parked messages long before their slots."""

from . import apps

BLOCK_BELOW_S = 8.0


def make_app(url):
    app = apps.make_app(url)
    app.conf.shapekit_block_below = BLOCK_BELOW_S
    return app

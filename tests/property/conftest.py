"""The property tests' own hypothesis profile: within a minute for the folder.

Examples that once failed stand beside their tests as `@example` lines; no database is relied on.
"""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "shapekit-properties",
    deadline=None,
    max_examples=80,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shapekit-properties")

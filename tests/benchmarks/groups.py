"""Groups: what a run measures, one after the other."""

GROUPS = {
    "decisions": "decisions",
    "reservations": "reservations",
    "admissions": "admissions",
    "redis": "shared_decisions",
    "pacing": "pacing",
    "strict": "strict",
    "waiters": "crowds",
    "cancellation": "cancellation",
    "memory": "memory",
    "http": "http_clients",
    "celery": "celery",
    "imports": "imports",
    "metrics": "metrics",
    "far": "far_away",
}
"""The module of each."""

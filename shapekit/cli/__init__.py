"""The `shapekit` command: look at limits instead of guessing, and hold, resume or reset keys."""

BAD_INPUT = 2
"""The exit code of a command that cannot do what was asked."""
INTERRUPTED = 130
"""The exit code that a shell expects of a command that Ctrl-C ended."""
TERMINATED = 143
"""The exit code that a shell reports for a command that SIGTERM ended."""

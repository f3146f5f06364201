"""What the wrappers of HTTP clients share."""

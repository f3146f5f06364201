"""Where states live: one primitive, several places."""

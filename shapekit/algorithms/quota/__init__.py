"""Budgets per period of civil time."""

"""Quotas: budgets per period of civil time."""

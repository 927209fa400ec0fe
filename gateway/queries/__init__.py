"""Reads of the API: SQL to wire models, always inside a tenant's subtree. They write nothing and lock nothing."""

"""Workflows: thin loops around a pure decision."""

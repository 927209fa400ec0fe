"""Adapters of clusters and clouds to one small port. Nothing here decides who runs; it does, looks and reports."""

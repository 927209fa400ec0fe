"""Operators' documents: what stands in the ledger, how files differ from it, and the change itself, audited."""

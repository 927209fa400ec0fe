"""Delivery of webhooks: to whom, over what, signed how (DESIGN §8)."""

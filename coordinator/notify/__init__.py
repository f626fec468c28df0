"""Notifications: which facts become messages, how many are sent, to whom, and the heartbeat."""

"""Coordinators that share a journal: one leads, the others follow."""

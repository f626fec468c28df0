"""Rehearsals: faults that an operator has injected into a run, and how it recovers from them."""

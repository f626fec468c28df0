"""Measurements beside torchrun, one script per question; see ``bench/run.py``."""

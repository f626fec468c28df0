"""Journals of coordinators that do not run: moved, and looked at."""

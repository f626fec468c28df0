"""The decisions of the watchdog: which worker hangs, and what happens to it."""

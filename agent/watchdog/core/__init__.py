"""Pure decisions of the watchdog."""

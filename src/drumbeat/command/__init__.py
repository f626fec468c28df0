"""What both commands have in common: settings, options, the log and its console."""

"""What `agent doctor` checks of a host: a module for each subject, and a table of all checks."""

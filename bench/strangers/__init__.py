"""Those who reach a coordinator's port and keep no rules, and a run that goes on meanwhile."""

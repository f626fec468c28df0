"""Shell. In-process restart, the agent's side: folds workers' steps, hands on what is ordered."""

"""Pure. In-process restart, the agent's side: what workers of this host say together."""

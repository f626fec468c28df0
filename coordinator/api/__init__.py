"""The services of a term: of agents, of queries, of control."""

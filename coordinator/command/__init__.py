"""The command line of `coordinator`: the server itself, and what operators ask of one that runs."""

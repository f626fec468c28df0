"""Whether this host is fit to train: checks that we bring, and commands of the user."""

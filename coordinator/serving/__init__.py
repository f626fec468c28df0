"""``coordinator serve``: the process, alone or with other coordinators."""

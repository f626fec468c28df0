"""A folder that comes first on the path of a worker while Python starts, and for no longer."""

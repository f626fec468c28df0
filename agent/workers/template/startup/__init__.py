"""A folder that comes first on the path of a template while Python starts, and for no longer."""

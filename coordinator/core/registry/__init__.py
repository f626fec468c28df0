"""The runs of a coordinator, and whose events go to which."""

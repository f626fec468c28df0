"""The paths of the page's API: what is read, what is live, what is asked for."""

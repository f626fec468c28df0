"""The page of ``coordinator serve --http-port``: HTTP, who calls, what is read and asked for."""

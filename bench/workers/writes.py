"""A worker that only writes a file: what remains is the cost of starting and ending it.

writes.py DIRECTORY
"""

import os
import pathlib
import sys

pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text("done")

"""`python -m ddscope`: the command line."""

import sys

from ddscope.cli import main

sys.exit(main())

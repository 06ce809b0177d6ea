"""Types of the command line that exist for the type checker only."""

from __future__ import annotations

import argparse

Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # argparse has no public name for it
"""What `add_subparsers` returns."""

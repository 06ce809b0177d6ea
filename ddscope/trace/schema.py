"""`python -m ddscope.trace.schema` writes docs/trace-schema.json of a checkout, from `ddscope.trace.schemas`."""

from __future__ import annotations

import sys
from pathlib import Path

from ddscope.trace.schemas import render


def main() -> int:
    """Write the file into docs/ of the checkout that this package lies in."""
    docs = Path(__file__).parents[2] / "docs"
    if not docs.is_dir():
        print(f"There is no {docs}: the schema is written from a checkout.", file=sys.stderr)
        return 2
    (docs / "trace-schema.json").write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

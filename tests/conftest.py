"""How tests are shared out among worker processes (`make test` runs two): what is costly is made in one of them.

A file goes to one worker, for its module fixtures; all tests with a real SGLang go to one, for the engines they share;
so do all that boot a throw-away host, whose root is made once.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background hands this on to every program, which a Ctrl-C then cannot end.
    signal.signal(signal.SIGINT, signal.default_int_handler)

TOGETHER = {"sglang": "sglang", "host": "hosts", "environments": "hosts"}
"""Folder of tests → its group."""
FIRST = ("sglang", "integration/test_engine_lossless.py", "hosts", "faults/test_findings_real.py")
"""Groups that take longest: they begin first, or one worker has the last of them alone for minutes."""


@pytest.hookimpl(tryfirst=True)  # before the distribution reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test its group, and the groups their order (which holds with `--no-loadscope-reorder`)."""
    groups = {item: _group(item) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: FIRST.index(groups[item]) if groups[item] in FIRST else len(FIRST))


def _group(item: pytest.Item) -> str:
    return TOGETHER.get(item.path.parent.name, item.path.relative_to(Path(__file__).parent).as_posix())

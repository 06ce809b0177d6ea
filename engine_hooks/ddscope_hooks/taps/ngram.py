"""NGRAM: the tree as the server's own table gave it, on the host already. The path comes with `eagle`.

Where the table knows too little, the server fills the tree up with nodes of token 0 at the root. The first of them can
be accepted like any other node; the others repeat it, and are left out.
"""

from __future__ import annotations

from typing import Any

from ddscope_hooks.taps.core import Core
from ddscope_hooks.taps.hooks import Hook

NAME = "ngram"
ALGORITHMS = frozenset({"NGRAM"})


def hooks(core: Core) -> list[list[Hook]]:
    """One place in 0.5.17 and 0.5.23."""

    def drafted(found: Any) -> None:
        """found: (tokens [B · n], mask [B · n · n]) in numpy; the table may use their memory again."""
        if core.capture:
            core.about(algorithm="NGRAM", padded=True)
            core.put_host("draft", found[0])
            core.put_host("mask", found[1])

    target = "sglang.srt.speculative.ngram_worker.NGRAMWorker._prepare_draft_tokens"
    return [[Hook(target, "after", (), drafted)]]

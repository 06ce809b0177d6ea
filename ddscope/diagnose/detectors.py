"""The list of rules that run by default."""

from __future__ import annotations

from ddscope.diagnose.base import Detector


def all_detectors() -> list[Detector]:
    """One fresh instance of every rule."""
    return []

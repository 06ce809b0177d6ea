"""Findings from records: detectors with evidence, what was ruled out, and what to do next. No screen, no engine."""

from ddscope.diagnose.base import (
    SEVERITIES,
    Detector,
    Evidence,
    Finding,
    RuledOut,
    Severity,
)
from ddscope.diagnose.diagnosis import Diagnosis, diagnose
from ddscope.diagnose.ranking import ranked
from ddscope.diagnose.render import render_text, to_json
from ddscope.diagnose.together import diagnose_files

__all__ = [
    "SEVERITIES",
    "Detector",
    "Diagnosis",
    "Evidence",
    "Finding",
    "RuledOut",
    "Severity",
    "diagnose",
    "diagnose_files",
    "ranked",
    "render_text",
    "to_json",
]

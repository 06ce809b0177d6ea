"""Two faults and much noise at once: a tree server without hidden states, then the old service, alive and silent."""

from __future__ import annotations

from typing import Any

from ddscope.diagnose import Finding
from tests.diagnosing import Stream
from tests.serverlogs import ARGS, READY, UNIT, ServerLog, torchcodec
from tests.unit.test_diagnose_host_facts import calls, enum, skew


def story() -> list[Finding]:
    stream = Stream().header(vocab=151_936, hidden=5120)
    stream.tokens({0: "!"})
    stream.request(prompt_len=12)
    stream.tensor("draft.target_hidden", [12, 5120], [None, 25_600], False)

    def bang(fields: dict[str, Any]) -> None:
        fields |= {"emitted": [0], "bonus": 0, "path": [0], "root": 0}
        fields["target"] = {"ids": [0] * len(fields["target"]["ids"])}

    for _ in range(8):
        stream.step(0, change=bang)
    log = ServerLog()
    log.records = list(stream.records)
    log.start(ARGS.replace("EAGLE", "DDTREE")).prefill(12).decode(1.0, 0.0, after=141)
    log.systemd(f"Stopping {UNIT}...").exit("code=killed, status=15/TERM").systemd(f"Stopped {UNIT}.")
    log.say(ARGS.replace("EAGLE", "NEXTN"), pid=5200)
    log.pid = 5200
    log.raw(*torchcodec("libavutil.so.60")).say(READY)
    for rung in ("unit", "process", "port", "health"):
        log.probe(rung, True)
    log.probe("generate", False, "4 tokens were asked for: no answer for 20 s", 20_000, after=20)
    log.fact("files.skew", skew()).fact("enum.values", enum([], ["DDTREE"]))
    log.fact("predicate.calls", calls(["DFLASH", "DDTREE"], ["DFLASH"]))
    return log.findings()


def test_everything_is_told_apart() -> None:
    found = {finding.id: finding for finding in story()}
    assert list(found) == [
        "shape.mismatch",  # what made the "!", before what it ended in, although that is graver
        "serve.alive_not_serving",
        "output.token_flood",
        "skew.files",
        "startup.optional_import",
    ]
    alive, shape, files = found["serve.alive_not_serving"], found["shape.mismatch"], found["skew.files"]
    assert alive.severity == "critical" and "20 s" in alive.detail
    assert "one layer given, five expected" in shape.title
    assert "After it, on the same server: the output is one token over and over: id 0 ('!')." in shape.detail
    assert (
        found["startup.optional_import"].severity == "info"
        and "process 5200" in found["startup.optional_import"].detail
    )
    ruled = {ruled.what: ruled.why for ruled in files.ruled_out}
    assert (
        "NEXTN (which is EAGLE)" in ruled["is_dflash as the cause"]
        and "scheduler.py:812" in ruled["is_dflash as the cause"]
    )
    assert "kept theirs" in ruled["enum values that moved"]
    assert any("cp /opt/wheel" in todo for todo in files.next)

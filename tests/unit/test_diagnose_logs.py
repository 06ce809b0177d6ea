"""Rules that read a log's lines for what they are: holes, the cache's books, GPU faults, formulas, loops, ranks."""

from __future__ import annotations

import pytest

from ddscope.diagnose.kv_allocator import balance
from ddscope.model import Gap, Log
from tests.diagnosing import HEALTHY, Stream
from tests.serverlogs import ARGS, SRC, UNIT, ServerLog

# -- logs.incomplete -------------------------------------------------------------------------------------------------


def test_what_journald_dropped_is_told_with_what_the_server_did_meanwhile() -> None:
    log = ServerLog().start().decode(tokens=100).gap(count=18_422, after=31).decode(tokens=7340)
    finding = log.of("logs.incomplete")
    assert (finding.kind, finding.severity) == ("rate_limited", "warning")
    assert "18,422 entries" in finding.title and "31 s" in finding.title
    assert "from 100 to 7,340 tokens" in finding.detail and finding.ruled_out[0].what == "a server that stood still"


def test_without_progress_across_the_hole_nothing_is_ruled_out() -> None:
    finding = ServerLog().start().decode(tokens=100).gap().decode(tokens=90).of("logs.incomplete")
    assert finding.ruled_out == () and "Meanwhile" not in finding.detail


def test_the_notice_and_its_gap_are_one() -> None:
    log = ServerLog().start().gap(count=7)
    notice = "Suppressed 7 messages from sglang.service"
    assert "7 entries" in log.add(Log, SRC, 0, message=notice, ident="systemd-journald").of("logs.incomplete").title


def test_a_notice_without_a_gap_counts_by_itself() -> None:
    notice = "Suppressed 7 messages from sglang.service"
    assert (
        "7 entries"
        in ServerLog().add(Log, SRC, 0, message=notice, ident="systemd-journald").of("logs.incomplete").title
    )


def test_a_service_that_writes_the_same_words_is_not_believed() -> None:
    assert ServerLog().start().say("Suppressed 7 messages from sglang.service", stamp=False).ids() == []


@pytest.mark.parametrize("reason", ["cursor_lost", "disconnected", "damaged"])
def test_other_holes_are_told_by_their_reason(reason: str) -> None:
    assert ServerLog().start().gap(reason, None).of("logs.incomplete").kind == reason


def test_a_journal_that_may_not_be_read_says_so() -> None:
    finding = ServerLog().gap("not_allowed", None).of("logs.incomplete")
    assert (finding.kind, finding.severity) == ("permission", "warning")


def test_holes_of_an_engine_are_not_a_logs() -> None:
    log = ServerLog().add(Gap, "engine/0", of="engine/0", count=3, reason="ring_full")
    log.add(Gap, "probe", of="probe", count=None, reason="disconnected")
    assert log.ids() == []


def test_messages_that_came_as_null_are_counted() -> None:
    log = ServerLog().start()
    for _ in range(3):
        log.add(Log, SRC, message=None)
    finding = log.of("logs.incomplete")
    assert (finding.kind, finding.severity) == ("null_message", "info") and "3 entries" in finding.title


# -- kv.allocator ----------------------------------------------------------------------------------------------------

LEAK = "token_to_kv_pool_allocator memory leak detected! self.max_total_num_tokens={}, available_size={}, "
LEAK += "evictable_size={}, protected_size={}"


@pytest.mark.parametrize(
    ("message", "kind", "missing"),
    [
        (LEAK.format(270331, 644, 269628, 0), "leak", 59),
        (LEAK.format(3185200, 2864304, 325120, 0), "double_free", -4224),
        ("KV pool memory leak detected! [full] total=9, available=1, evictable=0, session_held=3", "leak", 5),
        ("Full Pool Mem Leak Detected! [full] total=10, available=12, evictable=0, protected=0", "double_free", -2),
        ("KV double free: sub-pool 0 has 3 duplicate pages.", "double_free", 3),
        ("KV page use-after-free: 2 owner page refs are in the free pool", "in_use", 2),
    ],
)  # fmt: skip
def test_the_sum_tells_a_leak_from_a_double_free(message: str, kind: str, missing: int) -> None:
    told = balance("ValueError: " + message)
    assert told is not None and told[:2] == (kind, missing)


@pytest.mark.parametrize(
    "message",
    [
        LEAK.format(100, 60, 40, 0),  # it balances
        "pool memory leak detected! without numbers",
        "req_to_token_pool memory leak detected!available_size=3, session_held=0, total_size=4",
        "resource_tracker: There appear to be 8 leaked semaphore objects to clean up at shutdown",
    ],
)
def test_what_is_no_failed_sum_is_not_told(message: str) -> None:
    assert balance(message) is None
    assert "kv.allocator" not in ServerLog().start().say(message).ids()


def test_a_leak_is_found_long_after_the_guilty_request() -> None:
    log = ServerLog().start().decode().say(LEAK.format(270331, 644, 269628, 0), after=60)
    finding = log.of("kv.allocator")
    assert finding.severity == "high" and "60 s after the last batch" in finding.detail
    log.say("Received sigquit from a child process. It usually means the child failed.")
    assert log.of("kv.allocator").severity == "critical"


# -- gpu.fault -------------------------------------------------------------------------------------------------------

XID = "NVRM: Xid (PCI:0000:01:00): {}, pid={}, name=python3, Ch 00000008, MMU Fault"


def test_a_fault_just_before_an_end_with_status_0() -> None:
    log = ServerLog().start().decode().kernel(XID.format(31, 951)).systemd(f"{UNIT}: Deactivated successfully.", 0.9)
    finding = log.of("gpu.fault")
    assert (finding.kind, finding.severity) == ("xid_31", "critical")
    assert "0.9 s before" in finding.detail and "Restart=on-failure" in finding.detail


def test_a_fault_long_before_an_end_is_not_paired_with_it() -> None:
    log = ServerLog().start().kernel(XID.format(31, 951)).exit(after=60)
    assert "gpu.fault" not in log.ids()


def test_a_fault_on_another_host_is_not_paired_with_an_end() -> None:
    for kernel, found in (("journal/ct129/kernel", True), ("journal/ct200/kernel", False)):
        log = ServerLog(src=f"journal/ct129/{UNIT}").start().decode()
        log.add(Log, kernel, message=XID.format(31, 951), ident="kernel").systemd(f"{UNIT}: Deactivated successfully.")
        assert ("gpu.fault" in log.ids()) is found


def test_a_fault_of_a_process_of_ours_needs_no_end() -> None:
    assert ServerLog().start().kernel(XID.format(79, 4100)).of("gpu.fault").severity == "high"
    assert ServerLog().start().kernel(XID.format(79, 9)).ids() == []


def test_a_stop_that_somebody_asked_for_is_no_end_of_that_sort() -> None:
    log = (
        ServerLog().start().systemd(f"Stopping {UNIT}...").kernel(XID.format(45, 9)).exit("code=killed, status=15/TERM")
    )
    assert log.ids() == []


@pytest.mark.parametrize(
    "text",
    [
        "Out of memory: Killed process {} (sglang::schedul) total-vm:1kB",
        "Memory cgroup out of memory: Killed process {} (python3)",
    ],
)
def test_the_kernel_killed_it(text: str) -> None:
    log = ServerLog().start().kernel(text.format(4100)).exit("code=killed, status=9/KILL")
    finding = log.of("gpu.fault")
    assert finding.kind == "oom_killer" and "host ran out of memory" in finding.title and "4100" in finding.title
    assert log.ids() == ["gpu.fault"]


def test_a_service_that_speaks_of_xids_is_not_the_kernel() -> None:
    assert ServerLog().start().say(XID.format(31, 4100)).exit("code=killed, status=9/KILL").ids() == ["serve.down"]


def test_an_illegal_access_on_several_ranks_is_one_incident_with_the_last_shapes() -> None:
    log = ServerLog().start().step(7)
    for rank in range(4):
        text = f"[2026-09-21 14:10:36 TP{rank}] CUDA error: an illegal memory access was encountered"
        log.say(text, stamp=False, pid=4101 + rank)
    finding = log.of("gpu.fault")
    assert finding.severity == "high" and "TP0, TP1, TP2, TP3: one incident" in finding.detail
    assert "eagle 7, 3 nodes at position 10" in finding.detail
    log.exit()
    assert log.of("gpu.fault").severity == "critical" and log.ids() == ["gpu.fault"]


def test_incidents_that_a_later_run_has_overcome_are_no_headline() -> None:
    log = ServerLog().start().decode().kernel(XID.format(31, 951)).exit()
    assert log.of("gpu.fault").severity == "critical"
    later = log.start(pid=7000).decode().of("gpu.fault")
    assert later.severity == "warning" and "A later run serves" in later.detail
    leak = ServerLog().start().decode().say(LEAK.format(270331, 644, 269628, 0)).exit().start(pid=7000).decode()
    assert leak.of("kv.allocator").severity == "warning"


# -- metric.redefined ------------------------------------------------------------------------------------------------


def test_the_old_formula_is_recognised() -> None:
    log = ServerLog().start()
    for length in (2.8, 2.84, 2.76):
        log.decode(length, length / 4)
    finding = log.of("metric.redefined")
    assert (finding.kind, finding.severity) == ("old", "info") and "0.70 would be 0.60" in finding.title


@pytest.mark.parametrize(
    "reports",
    [
        [(2.8, 0.6)] * 9,  # today's
        [(2.8, 0.7)] * 2,  # too few
        [(2.8, 0.7)] * 5 + [(2.8, 0.6)],  # one speaks against it
        [(4.0, 1.0)] * 9,  # both fit
        [(2.8, 0.65)] * 9,  # neither fits: another number of draft tokens
    ],
)
def test_other_reports_are_not_called_redefined(reports: list[tuple[float, float]]) -> None:
    log = ServerLog().start()
    for length, rate in reports:
        log.decode(length, rate)
    assert "metric.redefined" not in log.ids()


def test_without_the_number_of_draft_tokens_nothing_is_concluded() -> None:
    log = ServerLog().start("server_args=ServerArgs(model_path='/m')")
    for _ in range(5):
        log.decode(2.8, 0.7)
    assert log.ids() == []


# -- accept.cache_conditioned ----------------------------------------------------------------------------------------


def requests(stream: Stream, cached: int, accepted: list[int], prompt_len: int = 500, count: int = 4) -> None:
    for number in range(count):
        rid = f"{cached}-{prompt_len}-{number}"
        stream.request(rid, prompt_len, cached_tokens=cached)
        for length in accepted:
            stream.step(length, rid)
        stream.finish(rid)


def test_cached_requests_accept_less_than_half() -> None:
    stream = Stream().header()
    requests(stream, 0, HEALTHY[:20])
    requests(stream, 400, [0, 1, 0, 0] * 5)
    found = [f for f in stream.findings() if f.id == "accept.cache_conditioned"]
    assert [(f.kind, f.severity) for f in found] == [("", "high")]
    assert found[0].ruled_out[0].what == "longer prompts"


@pytest.mark.parametrize(
    ("cached", "count"),
    [(HEALTHY[:20], 4), ([1, 2, 1, 1] * 5, 4), ([0, 1, 0, 0] * 5, 2)],
    ids=["as good", "more than half", "too few"],
)
def test_cached_requests_that_accept_enough_are_no_finding(cached: list[int], count: int) -> None:
    stream = Stream().header()
    requests(stream, 0, HEALTHY[:20])
    requests(stream, 400, cached, count=count)
    assert [f for f in stream.findings() if f.id == "accept.cache_conditioned"] == []


def test_cached_prompts_of_another_length_are_worth_an_info_at_most() -> None:
    stream = Stream().header()
    requests(stream, 0, HEALTHY[:20], prompt_len=100)
    requests(stream, 7000, [0, 1, 0, 0] * 5, prompt_len=8000)
    found = [f for f in stream.findings() if f.id == "accept.cache_conditioned"]
    assert [(f.kind, f.severity) for f in found] == [("lengths_differ", "info")]


def test_a_log_tells_it_where_one_request_runs_at_a_time() -> None:
    log = ServerLog().start()
    for number in range(8):
        cached = 400 * (number % 2)
        log.prefill(500 - cached, cached)
        for _ in range(4):
            log.decode(1.1 if cached else 3.0, 0.03 if cached else 0.67)
    assert log.of("accept.cache_conditioned").severity == "high"


def test_a_log_of_several_requests_at_once_tells_nothing_of_one() -> None:
    log = ServerLog().start()
    for number in range(8):
        cached = 400 * (number % 2)
        log.prefill(500 - cached, cached, running=3)
        for _ in range(4):
            log.decode(1.1 if cached else 3.0, 0.03 if cached else 0.67, running=4)
    assert log.ids() == []


# -- output.runaway_loop ---------------------------------------------------------------------------------------------


def loop(period: int, steps: int, accepted: int = 4, **request: object) -> Stream:
    """A request whose output repeats after `period` tokens."""
    place = 0

    def change(fields: dict[str, object]) -> None:
        nonlocal place
        emitted = fields["emitted"]
        assert isinstance(emitted, list)
        fields["emitted"] = [500 + (place + n) % period for n in range(len(emitted))]
        fields["target"] = None
        place += len(emitted)

    stream = Stream().header()
    stream.request(**request)  # type: ignore[arg-type]
    for _ in range(steps):
        stream.step(accepted, spine=4, change=change)
    return stream


def loops(stream: Stream) -> list[tuple[str, bool]]:
    return [(f.severity, "penalty" in f.detail) for f in stream.findings() if f.id == "output.runaway_loop"]


def test_a_loop_with_perfect_acceptance() -> None:
    assert loops(loop(10, 60)) == [("high", False)]


@pytest.mark.parametrize(("period", "steps", "accepted"), [(10, 50, 4), (40, 90, 4), (10_000, 90, 4)])
def test_a_short_loop_or_a_long_period_is_none(period: int, steps: int, accepted: int) -> None:
    assert loops(loop(period, steps, accepted)) == []


def test_a_loop_that_is_not_drafted_perfectly_is_another_matter() -> None:
    assert loops(loop(10, 120, accepted=2)) == []


def test_a_prompt_that_repeats_itself_may_have_asked_for_it() -> None:
    prompt = [500 + n % 10 for n in range(60)]
    assert loops(loop(10, 60, prompt_len=60, prompt_ids=prompt)) == [("warning", False)]


def test_a_rate_of_one_in_a_log_is_worth_a_look() -> None:
    log = ServerLog().start()
    for _ in range(5):
        log.decode(4.0, 1.0)
    assert [(f.kind, f.severity) for f in log.findings()] == [("pinned", "info")]
    assert ServerLog().start().decode(4.0, 1.0).decode(4.0, 1.0).decode(3.9, 0.97).ids() == []


# -- hang.rank_divergence, nan.logits --------------------------------------------------------------------------------

BATCH = "[2026-09-21 14:11:09 {tags}] Decode batch [{at}], #running-req: {running}, #token: {tokens}, accept len: 2.90"


def batches(*lines: dict[str, object]) -> ServerLog:
    log = ServerLog().start()
    for line in lines:
        known = {"tags": "TP0", "at": 88, "running": 1, "tokens": 600} | line
        log.say(BATCH.format(**known), stamp=False)
    return log


@pytest.mark.parametrize("other", [{"running": 2}, {"tokens": 601}])
def test_ranks_that_log_different_batches_for_one_iteration(other: dict[str, object]) -> None:
    finding = batches({}, {"tags": "TP1"} | other).of("hang.rank_divergence")
    assert (finding.kind, finding.severity) == ("log", "critical") and "iteration 88" in finding.title


@pytest.mark.parametrize(
    "other",
    [
        {"tags": "TP1"},
        {"tags": "TP1", "at": 89, "tokens": 9},
        {"tokens": 9},
        {"tags": "DP1 TP1", "tokens": 9},
        {"tags": "DP1"},
    ],
    ids=["alike", "another iteration", "the same rank", "another replica", "no rank"],
)
def test_lines_that_need_not_agree_are_not_compared(other: dict[str, object]) -> None:
    assert batches({}, other).ids() == []


NAN = "Detected errors during sampling! NaN in the logits."
ORPHAN = "invalid eagle tree!!! Detected a token with no parent token selected. Please check if the logprob has nan."


def test_one_sign_of_nan_alone_is_no_proof() -> None:
    finding = ServerLog().start().say(NAN).of("nan.logits")
    assert (finding.kind, finding.severity) == ("log", "high")


def test_signs_of_drafter_and_target_agree() -> None:
    finding = ServerLog().start().say(ORPHAN, NAN).of("nan.logits")
    assert (finding.kind, finding.severity) == ("log.both", "critical")
    assert finding.ruled_out[0].what == "the drafter alone"


def test_signs_during_warm_up_stay_a_warning() -> None:
    finding = ServerLog().say(ARGS, ORPHAN, NAN).of("nan.logits")
    assert (finding.kind, finding.severity) == ("log", "warning")

"""What the doctor's facts mean: files that are not their wheel's, enums that moved, units that drift, binaries."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serverlogs import ARGS, ServerLog

PATH = "sglang/srt/speculative/spec_info.py"
SITES = [
    {"file": "sglang/srt/managers/scheduler.py", "line": 812, "function": "init_spec"},
    {"file": "a/b.py", "line": 3},
]


def skew(**changes: Any) -> dict[str, Any]:
    value = {
        "host": "ct129",
        "package": "sglang",
        "version": "0.5.9",
        "against": "RECORD",
        "checked": 2000,
        "differ": [{"path": PATH, "change": "changed", "functions": [{"name": "is_dflash", "change": "changed"}]}],
        "restore": ["cp /opt/wheel/spec_info.py /opt/venv/…"],
    }
    return value | changes


def enum(moved: list[dict[str, Any]], added: list[str]) -> dict[str, Any]:
    return {"host": "ct129", "package": "sglang", "file": PATH, "enum": "SpeculativeAlgorithm", "against": "RECORD",
            "moved": moved, "added": added, "removed": []}  # fmt: skip


def calls(true_for: list[str], was: list[str]) -> dict[str, Any]:
    return {"host": "ct129", "package": "sglang", "predicate": "is_dflash", "sites": SITES, "true_for": true_for,
            "was_true_for": was}  # fmt: skip


def test_a_file_that_is_not_its_wheels() -> None:
    finding = ServerLog().fact("files.skew", skew()).of("skew.files")
    assert (finding.kind, finding.severity) == ("record.sglang", "warning")
    assert PATH in finding.title and "ct129" in finding.title
    assert "is_dflash in spec_info.py" in finding.detail and "0.5.9" in finding.detail
    assert any("cp /opt/wheel" in todo for todo in finding.next)


@pytest.mark.parametrize("differ", [[], None, "x", [7]])
def test_no_difference_is_no_finding(differ: Any) -> None:
    assert ServerLog().fact("files.skew", skew(differ=differ)).ids() == []


def test_a_later_fact_of_the_same_package_counts() -> None:
    log = ServerLog().fact("files.skew", skew()).fact("files.skew", skew(differ=[]))
    assert log.ids() == []


def test_members_that_moved_are_graver_and_in_the_title() -> None:
    log = ServerLog().fact("files.skew", skew())
    log.fact("enum.values", enum([{"member": "NGRAM", "was": "5", "now": "6"}], ["DDTREE"]))
    finding = log.of("skew.files")
    assert (finding.kind, finding.severity) == ("enum.sglang", "high")
    assert "SpeculativeAlgorithm.NGRAM is 6, was 5" in finding.title
    assert len(finding.evidence) == 2


def test_members_that_kept_their_values_are_ruled_out() -> None:
    finding = ServerLog().fact("files.skew", skew()).fact("enum.values", enum([], ["DDTREE"])).of("skew.files")
    assert finding.severity == "warning"
    assert any("kept theirs" in ruled.why for ruled in finding.ruled_out)


@pytest.mark.parametrize("algorithm", ["NEXTN", "EAGLE"])
def test_a_predicate_that_the_algorithm_does_not_pass_is_ruled_out_with_its_call_sites(algorithm: str) -> None:
    log = ServerLog().say(ARGS.replace("EAGLE", algorithm)).fact("files.skew", skew())
    finding = log.fact("predicate.calls", calls(["DFLASH", "DDTREE"], ["DFLASH"])).of("skew.files")
    ruled = next(ruled for ruled in finding.ruled_out if ruled.what.startswith("is_dflash"))
    named = "NEXTN (which is EAGLE)" if algorithm == "NEXTN" else "EAGLE"
    assert f"false for {named}" in ruled.why and "scheduler.py:812 init_spec" in ruled.why
    assert "is_dflash is asked in 2 places" in finding.evidence[1].text


def test_a_predicate_that_turned_for_the_algorithm_is_said() -> None:
    log = ServerLog().fact(
        "server.args", {"host": "ct129", "requested": {}, "effective": {"speculative_algorithm": "DDTREE"}}
    )
    finding = log.fact("files.skew", skew()).fact("predicate.calls", calls(["DDTREE"], [])).of("skew.files")
    assert "is_dflash is now true for DDTREE" in finding.detail
    assert all("is_dflash" not in ruled.what for ruled in finding.ruled_out)


def test_without_an_algorithm_a_predicate_is_neither_blamed_nor_cleared() -> None:
    finding = ServerLog().fact("files.skew", skew()).fact("predicate.calls", calls(["DFLASH"], [])).of("skew.files")
    assert "asked in 2 places" in finding.detail
    assert all("is_dflash" not in ruled.what for ruled in finding.ruled_out)


def test_two_hosts_are_two_findings() -> None:
    log = ServerLog().fact("files.skew", skew()).fact("files.skew", skew(host="ct200", against="host:ct129"))
    kinds = [(f.kind, "ct200" in f.title) for f in log.findings()]
    assert sorted(kinds) == [("host.sglang", True), ("record.sglang", False)]


# -- units -----------------------------------------------------------------------------------------------------------


def unit(**changes: Any) -> dict[str, Any]:
    return {"host": "ct129", "unit": "sglang.service", "need_reload": False, "differ": [], "backups": []} | changes


DIFFER = [{"what": "ExecStart", "running": "sglang --alg NEXTN", "disk": "sglang --alg DDTREE"}]


def test_a_unit_that_runs_what_its_file_says_is_no_finding() -> None:
    assert ServerLog().fact("unit.drift", unit()).ids() == []
    assert ServerLog().fact("unit.drift", unit(backups=[{"path": "/x.bak", "differ": []}])).ids() == []


def test_a_reload_that_was_forgotten() -> None:
    finding = ServerLog().fact("unit.drift", unit(need_reload=True, differ=DIFFER)).of("unit.drift")
    assert (finding.kind, finding.severity) == ("reload", "warning")
    assert "NEXTN" in finding.detail and "DDTREE" in finding.detail and "daemon-reload" in finding.next[0]


def test_a_restart_that_was_forgotten_asks_for_no_reload() -> None:
    finding = ServerLog().fact("unit.drift", unit(differ=DIFFER)).of("unit.drift")
    assert finding.kind == "running" and not any("daemon-reload" in todo for todo in finding.next)


def test_a_backup_that_differs_is_worth_knowing() -> None:
    backup = {
        "path": "/etc/systemd/system/sglang.service.bak",
        "differ": [{"what": "ExecStart", "disk": "a", "backup": "b"}],
    }
    finding = ServerLog().fact("unit.drift", unit(backups=[backup])).of("unit.drift")
    assert (finding.kind, finding.severity) == ("backup", "info") and "disk a, backup b" in finding.detail


# -- binaries --------------------------------------------------------------------------------------------------------

ENV = {"host": "h", "torch": "2.11.0", "torch_cuda": "13.0", "driver": "580.65", "driver_cuda": "13.0",
       "arch_list": ["sm_80", "sm_90", "compute_90"], "gpus": [{"name": "H200", "capability": "9.0"}]}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"torch_cuda": "13.2"},  # minor versions of one major version fit
        {"gpus": [{"name": "A10", "capability": "8.6"}]},  # sm_80 runs on 8.6
        {"gpus": [{"name": "B200", "capability": "10.0"}]},  # by compute_90
        {"gpus": [], "arch_list": None},
        {"driver_cuda": None},
    ],
)
def test_binaries_that_fit_are_no_finding(change: dict[str, Any]) -> None:
    assert ServerLog().fact("host.env", ENV | change).ids() == []


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"driver_cuda": "12.8"}, "driver", "it takes CUDA 12.8, torch is built with 13.0"),
        ({"gpus": [{"name": "T4", "capability": "7.5"}]}, "architecture", "no code for T4"),
        ({"arch_list": ["sm_80", "sm_90"], "gpus": [{"name": "B200", "capability": "10.0"}]}, "architecture", "B200"),
    ],
)
def test_binaries_that_do_not_fit(change: dict[str, Any], kind: str, words: str) -> None:
    finding = ServerLog().fact("host.env", ENV | change).of("env.abi")
    assert (finding.kind, finding.severity) == (kind, "high") and words in finding.title


@pytest.mark.parametrize(("needed", "severity"), [(True, "high"), (False, "info"), (None, "info")])
def test_a_library_that_does_not_load_matters_where_it_is_needed(needed: bool | None, severity: str) -> None:
    value = {"host": "h", "library": "torchcodec", "loads": False, "cause": "OSError: libnvrtc.so.13: cannot open it"}
    log = ServerLog().fact("host.library", value | ({} if needed is None else {"needed": needed}))
    finding = log.of("env.abi")
    assert (finding.kind, finding.severity) == ("library.torchcodec", severity)
    assert ServerLog().fact("host.library", value | {"loads": True}).ids() == []


ABI = "ImportError: /opt/common_ops.abi3.so: undefined symbol: {0}"


def imported(symbol: str) -> ServerLog:
    log = ServerLog().say(ARGS).raw("Traceback (most recent call last):", "  File x")
    return log.raw(ABI.format(symbol))


@pytest.mark.parametrize(
    ("symbol", "kind"),
    [
        ("_ZN3c1013MessageLoggerC1EPKciib", "torch"),
        ("c10::MessageLogger", "torch"),
        ("cuGreenCtxStreamCreate", "driver"),
        ("__nvJitLinkComplete_12_4, version libnvJitLink.so.12", "runtime"),
        ("my_own_symbol", "symbol"),
    ],
)
def test_the_symbol_tells_which_layer_does_not_fit(symbol: str, kind: str) -> None:
    log = imported(symbol).exit()
    finding = log.of("env.abi")
    assert (finding.kind, finding.severity) == (kind, "critical")
    assert "startup.import_fatal" not in log.ids(), "the layer is the cause"
    assert log.ids() == ["env.abi"]


def test_a_missing_symbol_of_torch_is_no_missing_architecture() -> None:
    ruled = imported("c10::MessageLogger").exit().of("env.abi").ruled_out
    assert ruled[0].what == "a missing GPU architecture"


def test_a_symbol_that_is_missing_in_a_server_that_works_is_worth_knowing_only() -> None:
    finding = imported("cuGreenCtxStreamCreate").say("The server is fired up and ready to roll!").of("env.abi")
    assert (finding.kind, finding.severity) == ("driver.optional", "info")


def test_no_kernel_image_after_the_start_ends_it() -> None:
    log = ServerLog().start().say("Scheduler hit an exception: Traceback (most recent call last):")
    log.raw(
        "  File x",
        "RuntimeError: RMSNorm failed with error code no kernel image is available",
    )
    assert log.exit().of("env.abi").kind == "architecture"


# -- arguments -------------------------------------------------------------------------------------------------------


def args(requested: dict[str, Any], effective: dict[str, Any], **more: Any) -> ServerLog:
    return ServerLog().fact("server.args", {"host": "h", "requested": requested, "effective": effective} | more)


@pytest.mark.parametrize(
    ("asked", "given"),
    [("NEXTN", "EAGLE"), ("eagle", "EAGLE"), ("auto", "fa3"), (None, "fa3"), ("4", 4), (4, 4.0), (True, "true")],
)
def test_the_same_by_another_name_is_no_difference(asked: Any, given: Any) -> None:
    assert args({"speculative_algorithm": asked}, {"speculative_algorithm": given}).ids() == []


def test_what_was_asked_for_is_not_in_force() -> None:
    log = args(
        {"attention_backend": "fa3", "speculative_num_draft_tokens": "16"},
        {"attention_backend": "triton", "speculative_num_draft_tokens": 16},
    )
    finding = log.of("config.requested_vs_effective")
    assert (finding.kind, finding.severity) == ("attention_backend", "warning")
    assert "fa3 was asked for, triton is in force" in finding.title


def test_arguments_that_do_not_decide_anything_are_left_out() -> None:
    assert args({"port": "1", "log_level": "info"}, {"port": 2, "log_level": "error"}).ids() == []


def test_a_variable_of_the_process_that_simulates_acceptance() -> None:
    log = args({}, {}, env={"SGLANG_SIMULATE_ACC_LEN": "3"})
    assert log.of("config.requested_vs_effective").kind == "simulated"
    assert args({}, {}, env={"SGLANG_SIMULATE_ACC_LEN": "-1"}).ids() == []


def test_a_patch_that_could_not_install() -> None:
    log = ServerLog().start().say("WARNING overlay: patch could NOT install: cannot import name 'X'")
    assert log.of("config.requested_vs_effective").kind == "patch"


@pytest.mark.parametrize(("algorithm", "found"), [("None", True), ("'NONE'", True), ("'EAGLE'", False)])
def test_a_draft_model_that_nothing_uses(algorithm: str, found: bool) -> None:
    text = f"server_args=ServerArgs(speculative_algorithm={algorithm}, speculative_draft_model_path='/d')"
    kinds = [finding.kind for finding in ServerLog().start(text).findings()]
    assert kinds == (["speculation_off"] if found else [])

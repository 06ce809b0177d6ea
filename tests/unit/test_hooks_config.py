"""The environment of a server: what a value means, and that a wrong one never stops the server."""

from __future__ import annotations

import pytest

from ddscope_hooks import __main__ as status
from ddscope_hooks import plugin
from ddscope_hooks.config import Config, Sample, read, sample, wanted


def test_without_ddscope_nothing_is_wanted() -> None:
    assert not wanted({}) and not wanted({"DDSCOPE": "  "}) and read({}) == Config()


def test_everything_can_be_asked_for() -> None:
    config = read(
        {
            "DDSCOPE": "unix:/run/ddscope/%p.sock, file:/tmp/%r.jsonl",
            "DDSCOPE_CONTROL": "1",
            "DDSCOPE_SAMPLE": "every=4, rid=chat-,max_bytes_per_s=1000000",
            "DDSCOPE_TOPK": "5",
            "DDSCOPE_REDACT": "text",
            "DDSCOPE_RELAY": "0",
        }
    )
    assert config == Config(
        ("unix:/run/ddscope/%p.sock", "file:/tmp/%r.jsonl"), True, Sample(4, "chat-", 1_000_000), 5, "text", False
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DDSCOPE_CONTROL", "maybe"),
        ("DDSCOPE_RELAY", "perhaps"),
        ("DDSCOPE_SAMPLE", "every=often"),
        ("DDSCOPE_SAMPLE", "evry=2"),
        ("DDSCOPE_SAMPLE", "every=-1"),
        ("DDSCOPE_TOPK", "65"),
        ("DDSCOPE_TOPK", "-1"),
        ("DDSCOPE_TOPK", "1.5"),
    ],
)
def test_a_wrong_option_is_told_and_stays_at_its_default(name: str, value: str) -> None:
    config = read({"DDSCOPE": "unix:/s", name: value})
    assert config.targets == ("unix:/s",)
    assert (config.control, config.sample, config.topk, config.redact) == (False, Sample(), 0, "") and config.relay
    (problem,) = config.problems
    assert name in problem and (value.split("=")[-1] in problem or value.split("=")[0] in problem)


@pytest.mark.parametrize("target", ["tcp:0.0.0.0:80", "/run/s.sock", "unix:", "1", "unix:/a,http://b"])
def test_a_wrong_target_turns_the_hooks_off(target: str) -> None:
    config = read({"DDSCOPE": target})
    assert config.targets == () and len(config.problems) == 1


def test_a_redaction_that_nobody_knows_turns_the_hooks_off() -> None:
    config = read({"DDSCOPE": "unix:/s", "DDSCOPE_REDACT": "prompts"})
    assert config.targets == () and "'prompts'" in config.problems[0]


def test_controls_change_only_what_they_name() -> None:
    assert sample({"every": 3}, Sample(rid="a", max_bytes_per_s=7)) == Sample(3, "a", 7)
    with pytest.raises(ValueError, match="rid"):
        sample({"rid": 5})
    with pytest.raises(ValueError, match="every takes a whole number"):
        sample({"every": True})


def test_the_plugin_does_nothing_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDSCOPE", raising=False)
    monkeypatch.setattr("ddscope_hooks.config.read", lambda _: pytest.fail("read without need"))
    plugin.register()


def test_the_plugin_sets_nothing_outside_of_a_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDSCOPE", "unix:/nowhere/s")
    monkeypatch.setattr("ddscope_hooks.config.read", lambda _: pytest.fail("read without need"))
    plugin.register()


def test_a_bad_target_in_a_scheduler_is_one_line_and_no_exception(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DDSCOPE", "tcp:0.0.0.0:1")

    def run_scheduler_process(server_args: object, tp_rank: int = 0) -> None:
        plugin.register()

    run_scheduler_process(object())
    assert len(caplog.records) == 1 and "TCP is not served" in caplog.text


def test_a_failing_start_is_one_line_and_no_exception(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DDSCOPE", "unix:/nowhere/s")

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("ddscope_hooks.taps.setup.start", broken)

    def run_scheduler_process(server_args: object) -> None:
        plugin.register()

    run_scheduler_process(object())
    assert len(caplog.records) == 1 and "RuntimeError: broken" in caplog.text


def test_the_status_names_a_whitelist_that_leaves_the_hooks_out() -> None:
    lines, good = status.report({"DDSCOPE": "unix:/s", "SGLANG_PLUGINS": "eagle_harness, other"})
    assert not good and any("SGLANG_PLUGINS allows only eagle_harness, other" in line for line in lines)
    lines, _ = status.report({"DDSCOPE": "unix:/s", "SGLANG_PLUGINS": "ddscope"})
    assert not any("SGLANG_PLUGINS" in line for line in lines)

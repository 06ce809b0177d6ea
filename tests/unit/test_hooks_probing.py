"""Probing: a tap is set with all of its hooks or with none, and the reason is told; a hook that raises turns it off."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ddscope_hooks.config import Config
from ddscope_hooks.taps import registry
from ddscope_hooks.taps.core import Core
from ddscope_hooks.taps.hooks import Breaker, Hook, choose, problem
from ddscope_hooks.taps.place import Place, place_of, scheduler_call
from tests.unit.emit_support import Pumped


def drop(*_: Any) -> None:
    pass


@pytest.fixture
def target() -> Iterator[types.ModuleType]:
    module = types.ModuleType("fake_engine")

    def run(batch: Any, *, mode: str = "plain") -> str:
        return f"{batch} {mode}"

    class Worker:
        def work(self, batch: Any, is_verify: bool = False) -> None: ...

    module.run, module.Worker, module.number = run, Worker, 3  # type: ignore[attr-defined]
    sys.modules["fake_engine"] = module
    yield module
    del sys.modules["fake_engine"]


@pytest.fixture
def core() -> Iterator[Core]:
    pumped = Pumped()
    yield Core(Config(), pumped.emitter, Place(), "EAGLE")
    pumped.close()


@pytest.mark.parametrize(
    ("dotted", "needs", "why"),
    [
        ("fake_engine.run", ("batch", "mode"), None),
        ("fake_engine.Worker.work", ("self", "is_verify"), None),
        ("fake_engine.run", ("batch", "spec_info"), "has no parameter spec_info"),
        ("fake_engine.walk", (), "fake_engine.walk does not exist"),
        ("fake_engine.Worker", (), "is no function"),
        ("fake_engine.number", (), "is no function"),
        ("no_such_engine.run", (), "cannot be imported"),
    ],
)
def test_what_a_hook_needs_is_looked_at(
    target: types.ModuleType, dotted: str, needs: tuple[str, ...], why: str | None
) -> None:
    told = problem(Hook(dotted, "after", needs, drop))
    assert (told is None) == (why is None) and (why is None or why in str(told))


def test_a_module_that_raises_anything_at_import_is_a_reason(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "explosive.py").write_text("raise OSError('no driver')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "OSError: no driver" in str(problem(Hook("explosive.run", "after", (), drop)))


def test_the_first_alternative_that_fits_as_a_whole_is_chosen(target: types.ModuleType) -> None:
    good, bad = Hook("fake_engine.run", "after", (), drop), Hook("fake_engine.gone", "after", (), drop)
    assert choose([[good, bad], [good]]) == ([good], None)
    group, why = choose([[good, bad], [bad]])
    assert group == () and why == "fake_engine.gone does not exist"


def family(name: str, hooks: list[list[Hook]], algorithms: frozenset[str] | None = None) -> Any:
    return types.SimpleNamespace(NAME=name, ALGORITHMS=algorithms, hooks=lambda core: hooks)


def test_no_tap_is_half_on(target: types.ModuleType, core: Core) -> None:
    good, bad = Hook("fake_engine.run", "after", (), drop), Hook("fake_engine.gone", "after", (), drop)
    registered: list[str] = []
    told = registry.install(
        core,
        lambda hook, run: registered.append(hook.target),
        [
            family("first", [[good]]),
            family("half", [[good, bad]]),
            family("other", [[good]], frozenset({"NGRAM"})),
            family("mine", [[good]], frozenset({"EAGLE"})),
        ],
    )
    assert registered == ["fake_engine.run", "fake_engine.run"]
    assert [(tap["tap"], tap["live"]) for tap in told] == [
        ("first", True), ("half", False), ("other", False), ("mine", True),
    ]  # fmt: skip
    assert (
        told[1]["why"] == "fake_engine.gone does not exist" and told[1]["target"] == "fake_engine.run, fake_engine.gone"
    )
    assert "why" not in told[0] and "EAGLE" in told[2]["why"]


def test_without_the_tap_that_all_need_nothing_is_set(target: types.ModuleType, core: Core) -> None:
    good, bad = Hook("fake_engine.run", "after", (), drop), Hook("fake_engine.gone", "after", (), drop)
    told = registry.install(core, lambda *_: pytest.fail("set"), [family("first", [[bad]]), family("next", [[good]])])
    assert [tap["live"] for tap in told] == [False, False] and "not live" in told[1]["why"]


def test_a_hook_gets_what_it_needs_however_it_was_given(target: types.ModuleType) -> None:
    got: list[Any] = []
    breaker = Breaker("tap", drop)
    after = breaker.guard(Hook("fake_engine.run", "after", ("mode", "batch"), lambda *values: got.append(values)))
    after("result", "b")
    after("result", batch="b", mode="m")
    before = breaker.guard(
        Hook("fake_engine.Worker.work", "before", ("is_verify",), lambda *values: got.append(values))
    )
    before("self", "b")
    before("self", "b", True)
    before("self", batch="b", is_verify=True)
    assert got == [("result", "plain", "b"), ("result", "m", "b"), (False,), (True,), (True,)]


def test_a_hook_that_raises_turns_its_whole_tap_off_and_is_told_once(target: types.ModuleType) -> None:
    reports: list[tuple[str, str]] = []
    calls: list[str] = []
    breaker = Breaker("tap", lambda tap, error: reports.append((tap, str(error))))

    def raising(*_: Any) -> None:
        calls.append("raising")
        raise RuntimeError("broken")

    bad = breaker.guard(Hook("fake_engine.run", "after", (), raising))
    good = breaker.guard(Hook("fake_engine.run", "after", (), lambda *_: calls.append("good")))
    good("r")
    for _ in range(3):
        assert bad("r") is None
    good("r")
    assert calls == ["good", "raising"] and reports == [("tap", "broken")] and breaker.off


def test_a_report_that_fails_does_not_get_out(target: types.ModuleType) -> None:
    def report(tap: str, error: BaseException) -> None:
        raise OSError

    def raising(*_: Any) -> None:
        raise RuntimeError

    breaker = Breaker("tap", report)
    breaker.guard(Hook("fake_engine.run", "before", (), raising))()
    assert breaker.off


def test_what_a_hook_returns_never_reaches_the_server(target: types.ModuleType) -> None:
    """SGLang takes a value from BEFORE as new arguments, and one from AFTER as the new result."""
    run: Callable[..., Any] = lambda *_: ((), {})  # noqa: E731
    assert Breaker("tap", drop).guard(Hook("fake_engine.run", "before", (), run))("b") is None


def test_every_family_has_a_name_of_its_own_and_says_what_it_needs(core: Core) -> None:
    families = registry.families()
    assert len({module.NAME for module in families}) == len(families) == len(registry.MODULES)
    for module in families:
        assert module.hooks(core) and all(group for group in module.hooks(core))
        for group in module.hooks(core):
            assert all(hook.when in ("before", "after") and hook.target.startswith("sglang.srt.") for hook in group)


@pytest.mark.parametrize(
    ("call", "rank", "lead", "dp"),
    [
        ({"tp_rank": 3, "pp_rank": 0, "dp_rank": None}, 3, False, 0),
        ({"tp_rank": 0, "pp_rank": 1, "dp_rank": None}, 4, True, 0),
        ({"tp_rank": 1, "pp_rank": 1, "dp_rank": 1}, 13, False, 1),
        ({"tp_rank": 2, "pp_rank": 0, "dp_rank": 1, "shared": True}, 2, True, 1),
        ({"tp_rank": 3, "pp_rank": 0, "dp_rank": 1, "shared": True}, 3, False, 1),
    ],
)
def test_the_rank_counts_over_the_whole_server(call: dict[str, Any], rank: int, lead: bool, dp: int) -> None:
    args = types.SimpleNamespace(tp_size=4, pp_size=2, dp_size=2, enable_dp_attention=call.get("shared", False))
    place = place_of({"server_args": args, **call})
    assert (place.rank, place.lead, place.dp) == (rank, lead, dp)


def test_the_entry_function_is_found_on_the_stack_with_its_arguments() -> None:
    def run_scheduler_process(server_args: object, tp_rank: int) -> Any:
        return (lambda: scheduler_call())()

    assert scheduler_call() is None
    call = run_scheduler_process("args", 2)
    assert call["server_args"] == "args" and call["tp_rank"] == 2

"""Commands to the embedded engine: every parameter has one check, and the command line and the engine know the same."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from ddscope.cli.parser import build_parser
from ddscope.cli.run import engine_options
from ddscope.engine import control
from ddscope.engine.__main__ import _options
from ddscope.engine.errors import EngineError
from ddscope.engine.step import Params

VALUES: dict[str, Any] = {
    "algorithm": "dflash",
    "budget": 5,
    "topk": 3,
    "temperature": 0.5,
    "seed": 7,
    "max_new_tokens": 9,
    "draft_rows": 6,
    "draft_vocab": 12288,
    "cut": 0.1,
}


def test_every_parameter_can_be_asked_for_on_the_command_line_and_reaches_the_engine() -> None:
    assert set(VALUES) == set(control.PARAMETERS) == {field.name for field in fields(Params)}
    words = [word for name, value in VALUES.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    asked = build_parser().parse_args(["run", *words])
    taken = _options().parse_args(["--socket", "s", *engine_options(asked)])
    assert {name: getattr(taken, name) for name in VALUES} == VALUES
    assert control.parameters(VALUES) == VALUES == {name: getattr(Params(**VALUES), name) for name in VALUES}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("algorithm", "beam"),
        ("budget", 1025),
        ("budget", True),
        ("budget", "most"),
        ("budget", None),
        ("topk", 0),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("max_new_tokens", 0),
        ("draft_rows", 1),
        ("draft_vocab", 0),
        ("cut", 1.0),
        ("cut", None),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(EngineError, match=name):
        control.parse({"command": "set", "args": {name: value}})


def test_a_budget_may_be_auto_on_the_command_line_and_in_a_message() -> None:
    asked = build_parser().parse_args(["run", "--budget", "auto"])
    assert _options().parse_args(["--socket", "s", *engine_options(asked)]).budget == "auto"
    assert control.parse({"command": "set", "args": {"budget": "auto"}}) == control.Set({"budget": "auto"})
    submit = control.parse({"command": "submit", "args": {"prompt": "Hi", "budget": "auto"}})
    assert isinstance(submit, control.Submit)
    assert Params(**submit.overrides).budget == "auto"
    with pytest.raises(EngineError, match="a whole number or auto"):
        Params(budget="most")  # type: ignore[arg-type]


def test_set_changes_what_may_change_between_steps_and_nothing_else() -> None:
    command = control.parse({"command": "set", "args": {"draft_rows": None, "cut": 0.2, "budget": 31}})
    assert command == control.Set({"budget": 31, "draft_rows": None, "cut": 0.2})
    with pytest.raises(EngineError, match="set takes"):
        control.parse({"command": "set", "args": {"seed": 1}})

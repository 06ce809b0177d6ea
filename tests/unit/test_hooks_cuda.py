"""The taps on a GPU: no hook makes the host wait, by torch's own word, and what was copied is what was there.

Skipped without one. The stand-in of the server is the same as on the CPU; only its tensors lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ddscope_hooks.config import Config
from ddscope_hooks.taps import clock
from ddscope_hooks.taps.hooks import Hook
from ddscope_hooks.taps.pack import Packed, unpack
from tests.unit import hooks_support
from tests.unit.hooks_support import Params, Req, serving

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def _on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors on the GPU, and an error for whatever waits for it inside of a hook."""
    apply = hooks_support.apply

    def strict(hook: Hook, run: Callable[..., None]) -> None:
        def checked(*args: Any, **kwargs: Any) -> None:
            torch.cuda.set_sync_debug_mode("error")
            try:
                return run(*args, **kwargs)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        apply(hook, checked)

    monkeypatch.setattr(hooks_support, "CUDA", [True])
    monkeypatch.setattr(hooks_support, "apply", strict)
    yield


@pytest.mark.parametrize("config", [Config(), Config(topk=4)])
@pytest.mark.parametrize("spec", [True, False])
def test_no_hook_waits_and_recorded_is_returned(config: Config, spec: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "EVENTS_EVERY_NS", 0)  # every pass is timed
    algorithm = "STANDALONE" if spec else "autoregressive"
    with serving(config=config, spec=spec, algorithm=algorithm) as server:
        reqs = [Req(f"r{i}", [3 + i, 4, 5 + i], Params(max_new_tokens=n)) for i, n in enumerate((16, 7, 9))]
        server.run(reqs)
        assert [f["value"] for f in server.records("fact") if f["name"] == "hook.fault"] == []
        steps = server.records("step")
        for req in reqs:
            mine = [step for step in steps if step["rid"] == req.rid]
            assert [mine[0]["root"], *(t for step in mine for t in step["emitted"])] == req.returned
        assert all("tree" in step and step["time_domain"] == "cuda_event" for step in steps)
        stages = {"draft", "verify", "commit", "total"} if spec else {"total"}
        assert all(step["time"].keys() == stages and min(step["time"].values()) >= 0 for step in steps)
        assert not any("nonfinite" in step["flags"] for step in steps)
        if spec:
            assert all(step["tree"]["parents"] == [0, 0, 1] for step in steps)


def test_a_pass_right_after_one_that_was_timed_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "EVENTS_EVERY_NS", 1 << 62)
    with serving() as server:
        reqs = [Req("r", [3, 4, 5], Params(max_new_tokens=12))]
        server.run(reqs)
        timed = ["time" in step for step in server.records("step")]
        assert len(timed) > 2 and timed == [True] + [False] * (len(timed) - 1)


def test_passes_under_way_at_once_do_not_mix() -> None:
    """Overlap scheduling launches the next pass before the last one was read; buffers are used again afterwards."""
    for first in range(0, 60, 3):
        under_way = []
        for i in range(first, first + 3):
            logits = torch.zeros(4, 9, dtype=torch.bfloat16, device="cuda")
            logits[:, i % 9] = 1.0
            parts = {
                "draft": torch.full((2, 2), i, device="cuda"),
                "mask": torch.ones(4, dtype=torch.bool, device="cuda"),
            }
            under_way.append((i, Packed(parts, logits)))
        for _, packed in under_way:
            packed.ship()
        torch.cuda.synchronize()
        for i, packed in under_way:
            told = unpack(packed.layout, packed.take())
            assert told == {"draft": [i] * 4, "mask": [1] * 4, "best": [1.0] * 4, "target": [i % 9] * 4}


def test_a_hook_that_waits_would_be_noticed() -> None:
    with pytest.raises(RuntimeError, match="synchroniz"):
        torch.cuda.set_sync_debug_mode("error")
        try:
            torch.ones(1, device="cuda").item()
        finally:
            torch.cuda.set_sync_debug_mode("default")

"""The taps on a GPU: no hook makes the host wait, by torch's own word, and what was copied is what was there.

Skipped without one. The stand-in of the server is the same as on the CPU; only its tensors lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ddscope_hooks.config import Config
from ddscope_hooks.taps.hooks import Hook
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
def test_no_hook_waits_and_recorded_is_returned(config: Config, spec: bool) -> None:
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
        if spec:
            assert all(step["tree"]["parents"] == [0, 0, 1] and step["time"]["total"] >= 0 for step in steps)


def test_a_hook_that_waits_would_be_noticed() -> None:
    with pytest.raises(RuntimeError, match="synchroniz"):
        torch.cuda.set_sync_debug_mode("error")
        try:
            torch.ones(1, device="cuda").item()
        finally:
            torch.cuda.set_sync_debug_mode("default")

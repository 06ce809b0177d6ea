"""Fixtures of the tests with a real SGLang. Engines start with the first test of a module and stop after its last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.sglang.support import models
from tests.integration.sglang.support.running import Observed, observe
from tests.integration.sglang.support.server import PYTHON

HERE = Path(__file__).parent
TINY_TOKENS = 32
REAL_TOKENS = 48


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("sglang")
            item.add_marker(pytest.mark.timeout(1200))  # two engines may start in one test's set-up


@pytest.fixture(scope="session", autouse=True)
def _environment() -> None:
    if not PYTHON.exists():
        pytest.fail("no SGLang to test with: run `make setup-sglang`, or leave these tests out with -m 'not sglang'")


class Tiny:
    """Folders of the tiny models, and prompts for them."""

    def __init__(self, folder: Path) -> None:
        self.target = models.tiny_target(folder / "target")
        self.standalone = models.tiny_standalone_draft(folder / "standalone")
        self.eagle3 = models.tiny_eagle3_draft(folder / "eagle3")
        self.prompts = models.tiny_prompts(3)
        self.tokens = TINY_TOKENS

    def arguments(self, **more: Any) -> dict[str, Any]:
        return {"model_path": str(self.target), "dtype": "float32"} | more

    def tree(self, algorithm: str, draft: Path) -> dict[str, Any]:
        """topk 2: 4 draft steps, 8 nodes of them verified with the root."""
        return self.arguments(
            speculative_algorithm=algorithm,
            speculative_draft_model_path=str(draft),
            speculative_num_steps=4,
            speculative_eagle_topk=2,
            speculative_num_draft_tokens=8,
        )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return Tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def without_plugin(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """An engine without speculation that does not even load ddscope's plug-in."""
    env = {"SGLANG_PLUGINS": "ddscope_standins"}
    return observe(tiny.arguments(), tmp_path_factory.mktemp("without"), env, tiny.prompts, tiny.tokens)


@pytest.fixture(scope="session")
def tiny_baseline(without_plugin: Observed) -> list[dict[str, Any]]:
    """Answers without speculation and without hooks."""
    return without_plugin.outputs


class Real:
    """SmolLM2-135M-Instruct in bfloat16 (SGLang's DFLASH fails on float32 dtypes) and held-out prompts."""

    def __init__(self, folder: Path) -> None:
        self.target = models.real_target()
        self.draft = models.real_draft(folder / "draft")
        self.prompts = models.heldout_prompts(3)
        self.tokens = REAL_TOKENS

    def arguments(self, **more: Any) -> dict[str, Any]:
        return {"model_path": str(self.target), "dtype": "bfloat16"} | more

    def dflash(self, draft: Path | None = None) -> dict[str, Any]:
        return self.arguments(
            speculative_algorithm="DFLASH",
            speculative_draft_model_path=str(draft or self.draft),
            speculative_num_draft_tokens=8,
        )


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Real:
    return Real(tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="session")
def real_baseline(real: Real, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Answers of the same bfloat16 target without speculation and without hooks."""
    folder, env = tmp_path_factory.mktemp("plain"), {"OMP_NUM_THREADS": "2"}
    return observe(real.arguments(), folder, env, real.prompts, real.tokens).outputs

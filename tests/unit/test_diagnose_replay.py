"""`verify.replay_mismatch`: what the first failing replay check of a request says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.diagnosing import HEALTHY, Stream, ancestors, grave, mask_rows, only

SOUND = (4e-5, 7e-5)


def checked(
    checks: dict[int, tuple[float | None, float | None]], accepted: list[int] | None = None, **more: Any
) -> Stream:
    """A run with a replay check before the step of each number, as the engine writes them."""
    stream = Stream().header()
    stream.drafter()
    stream.request()
    for number, count in enumerate(accepted or HEALTHY):
        if number in checks:
            stream.replay(*checks[number], number)
        stream.step(count, **more)
    stream.finish()
    return stream


def leaky(fields: dict[str, Any]) -> None:
    parents = fields["tree"]["parents"]
    rows = [ancestors(parents, n) for n in range(len(parents) + 1)]
    for node, parent in enumerate(parents, 1):
        rows[node] += [other for other in range(1, len(parents) + 1) if parents[other - 1] == parent]
    fields["tree"]["mask"] = mask_rows(rows)


def test_a_wrong_root_row_means_that_the_cache_is_damaged() -> None:
    finding = only(checked({0: SOUND, 2: SOUND, 5: (9.8, 8.0), 6: (11.5, 7.0)}).findings())
    assert (finding.id, finding.kind, finding.severity) == ("verify.replay_mismatch", "root_row", "critical")
    assert (
        finding.title
        == "The target's cache is damaged before step 5 of r0: the root's logits are off by 9.8 (tolerance 0.01)."
    )
    assert "2 of 4 replay checks failed" in finding.detail
    assert "Largest difference 11.5 in step 6 of r0" in finding.detail
    ruled_out = {r.what: r.why for r in finding.ruled_out}
    assert "980 × the tolerance" in ruled_out["rounding"]
    assert {"the drafter", "the mask", "the positions", "the target's weights"} <= ruled_out.keys()


def test_commits_that_had_to_move_rows_are_named() -> None:
    """A path 0, 1, 3 moves rows; 0 and 0, 1 do not. Only those since the last good check count."""
    detail = only(checked({2: SOUND, 5: (9.8, 8.0)}, [2, 2, 0, 3, 1, 0, 2]).findings()).detail
    assert "The check at step 2 passed; since then rows had to be moved at step 3 (path 0, 1, 3, 5)." in detail


def test_without_a_commit_that_moved_rows_none_is_named() -> None:
    detail = only(checked({2: SOUND, 5: (9.8, 8.0)}, [2, 2, 0, 1, 1, 0, 2]).findings()).detail
    assert "no commit since then is known to have moved rows" in detail


def test_the_first_check_of_a_request_cannot_clear_the_mask() -> None:
    finding = only(checked({3: (9.8, 8.0)}).findings())
    assert finding.confidence == 0.85
    assert "No earlier check of this request" in finding.detail


def test_wrong_rows_below_a_right_root_mean_mask_or_positions() -> None:
    finding = only(checked({0: (3e-5, 7.8), 1: (2.9, 8.8), 2: (3.1, 6.0)}).findings())
    assert finding.kind == "tree_rows"
    assert finding.title.startswith(
        "The verify computes wrong logits for drafted nodes in step 0 of r0, below a right root"
    )
    assert {r.what for r in finding.ruled_out} >= {"the cache before this step"}


def test_a_wrong_root_in_the_first_step_is_not_blamed_on_a_commit() -> None:
    finding = only(checked({0: (1.5, 3.0)}).findings())
    assert finding.kind == "root_row"
    assert "before anything was committed" in finding.title


def test_a_wrong_mask_explains_the_damaged_cache_of_later_checks() -> None:
    findings = checked({3: (2.6, 9.6)}, change=leaky).findings()
    assert grave(findings) == ["tree.invalid", "verify.replay_mismatch"]
    replay = findings[1]
    assert "as its mask or positions are wrong" in replay.title
    assert replay.next[0].startswith("Mend what `tree.invalid` names first")
    assert all(r.what != "the mask" for r in replay.ruled_out)


def test_low_acceptance_under_a_damaged_cache_does_not_blame_the_drafter() -> None:
    finding = only(checked({1: SOUND, 4: (9.8, 8.0)}, [1, 2] + [0] * 60).findings())
    assert finding.id == "verify.replay_mismatch"
    low = checked({1: SOUND, 4: (9.8, 8.0)}, [0] * 60).findings()
    assert grave(low) == ["verify.replay_mismatch"]
    assert any(text.startswith("accept.") for text in low[0].consequences)


def test_the_majority_of_requests_tells_which_rows_failed_first() -> None:
    stream = Stream().header()
    for number, check in enumerate([(9.0, 8.0), (9.0, 8.0), (2e-5, 0.02)]):
        stream.request(f"r{number}")
        stream.step(2, f"r{number}")
        stream.replay(*check, 1, f"r{number}")
        stream.finish(f"r{number}")
    finding = only(stream.findings())
    assert finding.kind == "root_row"
    assert finding.rid is None


def test_near_the_tolerance_it_may_be_rounding() -> None:
    findings = checked({0: (0.009, 0.015)}).findings()
    assert [(f.severity, f.confidence) for f in findings] == [("info", 0.4)]


def test_the_tolerance_is_the_checks_own() -> None:
    stream = Stream().header()
    stream.request()
    stream.replay(0.5, 0.8, 0, tolerance=1.0)
    assert stream.findings() == []


def test_a_root_alone_can_be_checked_in_plain_decoding() -> None:
    finding = only(checked({2: SOUND, 5: (9.8, 0.0)}).findings())
    assert finding.kind == "root_row"


def test_rows_that_are_not_finite_on_one_side_are_wrong() -> None:
    finding = only(checked({2: (3e-5, None)}).findings())
    assert finding.kind == "nonfinite"
    assert "an infinite amount" in finding.title


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"rid": "r0"},
        {"rid": 3, "step": 1, "tolerance": 0.1, "root_diff": 5.0, "tree_diff": 5.0, "ok": False},
        {"rid": "r0", "step": "1", "tolerance": 0.1, "root_diff": 5.0, "tree_diff": 5.0, "ok": False},
        {"rid": "r0", "step": 1, "tolerance": None, "root_diff": 5.0, "tree_diff": 5.0, "ok": False},
        {"rid": "r0", "step": 1, "tolerance": 0.1, "root_diff": "5", "tree_diff": True, "ok": False},
        {"rid": "r0", "step": 1, "tolerance": 10**400, "root_diff": 10**400, "tree_diff": 1, "ok": True},
    ],
)
def test_checks_that_are_not_as_described_say_nothing(value: Any) -> None:
    stream = Stream().header()
    stream.fact("replay_check", value)
    assert stream.findings() == []

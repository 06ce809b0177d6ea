"""Two tests on counts, so that rules say "too low to be chance" and not "below a number". Pure functions."""

from __future__ import annotations

from math import exp, lgamma, log


def binomial_at_most(hits: int, trials: int, p: float) -> float:
    """P(X ≤ hits) for X ~ Binomial(trials, p), 0 < p < 1; 1.0 without trials. O(hits)."""
    if trials <= 0 or hits >= trials:
        return 1.0
    if hits < 0:
        return 0.0
    # Above the mean the tail is no evidence of anything, and the sum would be long.
    if hits >= trials * p:
        return 1.0
    logp, logq, whole = log(p), log(1 - p), lgamma(trials + 1)
    terms = (
        whole - lgamma(k + 1) - lgamma(trials - k + 1) + k * logp + (trials - k) * logq for k in range(hits, -1, -1)
    )
    total = 0.0
    for term in terms:
        value = exp(term)
        total += value
        if value < total * 1e-12:  # terms fall below the mean
            break
    return min(1.0, total)

"""Say what a reproduction found, for the terminal and the page alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.simulate.reproduce_claims import OURS, THEIR_GPU, THEIRS
from joulery.simulate.reproduce_rows import geometric_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.simulate.reproduce_claims import Claim, Span

HEADERS = ("figure", "GPU", "what", "published", "zeus here", "joulery", "grid", "±")
_POLICIES = (THEIRS, OURS, "grid")


def span_text(span: Span | None, unit: str) -> str:
    """A range as people read it."""
    if span is None:
        return "–"
    low, high = (_number(value) for value in span)
    text = low if low == high else f"{low} to {high}"
    return f"{text} {unit}".rstrip()


def _number(value: float) -> str:
    if abs(value) >= 1000:
        text = f"{value:,.0f}"
    elif abs(value) >= 100:
        text = f"{value:.0f}"
    else:
        text = f"{value:.2f}" if abs(value) < 3 else f"{value:.1f}"
    return text.replace("-", "−")


def claim_rows(claims: Sequence[Claim]) -> list[tuple[str, ...]]:
    """One row per claim under ``HEADERS``."""
    rows = []
    for claim in claims:
        # What the traces alone say belongs to no policy; it stands where zeus does.
        found = {**claim.found}
        if "traces" in found:
            found[THEIRS] = found["traces"]
        doubt = "–" if claim.doubt is None else f"{_number(claim.doubt)} {claim.unit}"
        rows.append(
            (
                claim.figure,
                claim.gpu.upper(),
                claim.what,
                span_text(claim.published, claim.unit),
                *(span_text(found.get(policy), claim.unit) for policy in _POLICIES),
                doubt,
            )
        )
    return rows


def headline(claims: Sequence[Claim], seeds: int) -> list[tuple[str, str]]:
    """What matters most: (figure, what it means), the saving first."""
    said = []
    for start, words in (
        ("energy saved in the last", "less energy than Default once learned"),
        ("change of time in the last", "change of time against Default once learned"),
    ):
        found = [claim for claim in claims if claim.what.startswith(start) and OURS in claim.found]
        # The publication's GPU where it is there.
        found.sort(key=lambda claim: claim.gpu != THEIR_GPU)
        if found:
            said.append(_once_learned(found[0], words, seeds))
    means = [c for c in claims if c.what.endswith("geometric mean") and OURS in c.found]
    if means:
        said.append(_learning(means))
    return said


def _once_learned(claim: Claim, words: str, seeds: int) -> tuple[str, str]:
    theirs = span_text(claim.found.get(THEIRS), claim.unit)
    doubt = "" if claim.doubt is None else f"; ± {_number(claim.doubt)} points at most (95 %)"
    meaning = (
        f"{words}, with joulery on {claim.gpu.upper()}, by workload. zeus here: {theirs}; "
        f"published: {span_text(claim.published, claim.unit)}. {seeds} seeds{doubt}."
    )
    return span_text(claim.found[OURS], claim.unit), meaning


def _learning(means: Sequence[Claim]) -> tuple[str, str]:
    mean = geometric_mean(claim.found[OURS][0] for claim in means)
    by_gpu = ", ".join(f"{claim.gpu.upper()} {_number(claim.found[OURS][0])}" for claim in means)
    meaning = (
        "the regret of zeus, with joulery: what learning costs beyond the best setting. "
        f"Geometric mean over workloads: {by_gpu}."
    )
    return f"{_number(mean)} ×", meaning

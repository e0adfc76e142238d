"""What the desk itself remembers of a job: its latest reports, and which of them are believed.

Whatever is not believed is *held*: the policy hears that the decision is over, and nothing more. As
long as a job is young, all that it has heard is judged together: whose report more holders
contradict than agree with is set aside with all that he said, the most contradicted first, until
those that are left fit together. So the order in which they came does not matter, and if one that
was believed turns out to be odd, beliefs start again without it.

Later the latest on a batch size judge a new one, and what no longer agrees with them is believed
with its fifth run in a row. One holder counts once, and never for itself. That training failed
before its time takes two holders to say. Whoever ran what the policy had not chosen (a *volunteer*)
counts as one holder with all others of that kind, and is believed only as far as runs that were
chosen agree: who may pick what to tell of could else outvote everybody where few have been.

All of it follows from the events in their order, so a rebuilt job holds the same reports.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulery.jobs.policies.base import RunEnd
from joulery.jobs.replay import silence
from joulery.jobs.report import EPOCHS, VOLUNTEERS, Report, Verdict, opinion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from joulery.jobs.job import Job
    from joulery.storage.records import Document

# So many reports are remembered. As long as there are no more, beliefs can start again.
_LATEST = 32
_JURY = 7  # so many of the latest on a batch size have a say
# So many in a row that agree with one another are believed whatever was before: where a tenth lie,
# five in a row do so once in a hundred thousand.
_ROW = 5
_WONDER = 2.0  # a training that is this many times cheaper than the best takes a second one
_VOLUNTEERED = 3  # so many are believed for each run that was chosen and agrees
_INSISTENCE = 3  # failures of one batch size within a recurrence
# From these others follow; of failures the policy makes little enough.
_FOUNDATIONS = (RunEnd.REACHED, RunEnd.PROBED)
_FEW = 2  # of whom all may lie
_COSTS = 9  # of a batch size, for a median that no few can move


@dataclass(slots=True)
class FilterResult:
    """What the policy is told of a report.

    Attributes:
        believed: Whether the report is.
        told: What the policy is told now.
        released: Earlier ones that it is told of now.
        restart: Whether beliefs start again, from all that are believed.
    """

    believed: bool
    told: Document
    released: list[Report] = field(default_factory=list)
    restart: bool = False


@dataclass(slots=True, eq=False)
class ReportFilter:
    """See above.

    Attributes:
        job: Whose.
        latest: Reports, oldest first.
        heard: How many there were in all.
        costs: By batch size, of the latest believed trainings that reached the target, in joules.
    """

    job: Job
    latest: list[Report] = field(default_factory=list)
    heard: int = 0
    costs: dict[int, list[float]] = field(default_factory=dict)

    def judge(self, decision: int, body: Document) -> FilterResult:
        """Fold in one report."""
        new = Report.of(self.job, decision, body)
        if new.end == RunEnd.ABANDONED and not new.log_costs:
            return FilterResult(believed=True, told=body)  # it claims nothing
        self._remember(new)
        restart, released = self._judge_all(new) if self.heard <= _LATEST else self._judge_new(new)
        believed = new.standing == Verdict.BELIEVED
        told = body if believed else self._moderated(new) if _insists(new) else silence(body)
        return FilterResult(believed, told, released, restart)

    def _remember(self, new: Report) -> None:
        """Only once what a holder says again and again: else he would make others forgotten."""
        for place, one in enumerate(self.latest):
            if one.standing != Verdict.BELIEVED and new.repeats(one):
                new.times += one.times
                del self.latest[place]
                self.heard -= 1
                for other in self.latest:
                    other.forget(one)
                break
        self.heard += 1
        if self.heard <= _LATEST:
            for other in self.latest:
                new.compare(other)
        self.latest.append(new)
        del self.latest[:-_LATEST]

    def _judge_all(self, new: Report) -> tuple[bool, list[Report]]:
        """Whether beliefs start again; and which earlier ones are believed from now on."""
        odd = self._odd()
        fallen = [one for one in odd if one.standing == Verdict.BELIEVED and one is not new]
        restart = any(one.end in _FOUNDATIONS for one in fallen)
        if restart:
            self.costs.clear()
        released: list[Report] = []
        # What was stopped comes last: it is held against what the others have cost.
        for report in sorted(self.latest, key=lambda one: one.end == RunEnd.STOPPED):
            before = None if report is new else report.standing
            report.standing = self._standing(report, before, odd, restart=restart)
            if report.standing == Verdict.BELIEVED:
                if before == Verdict.HELD:
                    released.append(report)
                if before != Verdict.BELIEVED or restart:
                    self._note_cost(report)
        return restart, [] if restart else released

    def _standing(
        self, report: Report, before: Verdict | None, odd: set[Report], *, restart: bool
    ) -> Verdict:
        """What becomes of a report that all others are judged with; ``before`` is None if new."""
        if before == Verdict.BELIEVED and report.end not in _FOUNDATIONS and not restart:
            return before
        if report in odd:
            return Verdict.HELD
        if before == Verdict.BELIEVED and not restart:
            return before  # else the policy could be told of a volunteer's twice
        late = restart or before is not None
        if late and report.end == RunEnd.STOPPED and report.cost < self.best_cost():
            # Ceilings followed from what was believed then, so what a low one stopped tells little.
            return Verdict.HELD
        return Verdict.BELIEVED if self._has_ground(report, odd) else Verdict.HELD

    def _has_ground(self, report: Report, odd: Collection[Report] = ()) -> bool:
        """Whether there is what its ceiling followed from, or what bears a volunteer's out.

        That is a run which was chosen and agrees. One is enough at the default; elsewhere it takes
        two, lest a lie and its echo bury a batch size that nobody would try again.
        """
        if report.end == RunEnd.STOPPED and not self.costs:
            return False
        if report.recurrence != VOLUNTEERS:
            return True
        alike = [
            one
            for one in self.latest
            if one.arm == report.arm
            and one.standing == Verdict.BELIEVED
            and one is not report
            and one not in odd
        ]
        chosen = [one for one in alike if one.recurrence != VOLUNTEERS]
        agree = len({one.recurrence for one in chosen if opinion(report, one) > 0})
        least = 0 if self.job.batch_sizes[report.arm] == self.job.default else 1
        return len(alike) - len(chosen) < _VOLUNTEERED * (agree - least)

    def _odd(self) -> set[Report]:
        """Those that do not fit together with the others, and all else that their holders said.

        Of two sides that are as strong neither is left, so that nobody can tell who was wrong.
        """
        gone: set[Report] = set()
        accused = [one for one in self.latest if one.accusers and not one.early]
        while accused := [one for one in accused if one not in gone]:
            scores = [_balance(one, gone) for one in accused]
            worst = min(scores)
            if worst >= 0:
                break
            fallen = [one for score, one in zip(scores, accused, strict=True) if score == worst]
            gone.update(fallen)
            liars = {one.recurrence for one in fallen if _holders(one.accusers, gone)}
            liars.discard(VOLUNTEERS)
            gone.update(one for one in self.latest if one.recurrence in liars)
        return gone | {one for one in self.latest if one.early and not _is_confirmed(one, gone)}

    def _judge_new(self, new: Report) -> tuple[bool, list[Report]]:
        """The same for a job that beliefs cannot be started again for."""
        released: list[Report] = []
        if not self._stands(new):
            new.standing = Verdict.HELD
            return False, released
        for report in [one for one in self.latest if one.arm == new.arm][-_JURY - 1 : -1]:
            # What was stopped back then was stopped by the ceilings of back then.
            held = report.standing == Verdict.HELD and report.end != RunEnd.STOPPED
            if held and self._stands(report):
                report.standing = Verdict.BELIEVED
                released.append(report)
        for report in (*released, new):
            self._note_cost(report)
        return False, released

    def _stands(self, report: Report) -> bool:
        """Whether no more contradict a report than agree with it, or all of the latest agree.

        What is itself in doubt has no say, but that training fails before its time it may confirm.
        """
        if not self._has_ground(report):
            return False
        alike = (one for one in self._witnesses(report) if one.arm == report.arm)
        same = list(itertools.islice(alike, _JURY))
        votes = [opinion(report, one) for one in same]
        if votes[: _ROW - 1] == [1] * (_ROW - 1):
            return True
        if report.early:
            return 1 in votes and -1 not in votes
        if (
            report.end == RunEnd.REACHED
            and 1 not in votes
            and report.cost * _WONDER < self.best_cost()
        ):
            return False  # it would be the best by far, and there is no way back
        balance = sum(
            vote for vote, one in zip(votes, same, strict=True) if one.standing == Verdict.BELIEVED
        )
        if len(same) < _JURY:
            others = [one for one in self._witnesses(report) if one.arm != report.arm]
            balance += sum(
                min(0, opinion(report, one))
                for one in others[: _JURY - len(same)]
                if one.standing == Verdict.BELIEVED
            )
        return balance >= 0

    def _witnesses(self, report: Report) -> Iterator[Report]:
        """Latest first, what other holders said last of each batch size."""
        heard = set()
        for one in reversed(self.latest):
            witness = one.recurrence, one.arm
            if one.recurrence != report.recurrence and witness not in heard:
                heard.add(witness)
                yield one

    def _moderated(self, report: Report) -> Document:
        """What the policy is told of one who insists: no more than others leave room for."""
        known = [
            one.log_epochs
            for one in self.latest
            if (one.arm, one.end, one.standing) == (report.arm, RunEnd.REACHED, Verdict.BELIEVED)
        ]
        most = math.exp(statistics.median(known) + EPOCHS) if known else math.inf
        return report.body | {"epochs": min(report.epochs, most), "measured": []}

    def _note_cost(self, report: Report) -> None:
        if report.end == RunEnd.REACHED:
            costs = self.costs.setdefault(report.arm, [])
            costs.append(report.cost)
            del costs[:-_COSTS]

    def best_cost(self) -> float:
        """What a training of the cheapest batch size takes; infinite before any reached the target.

        Of medians, so that neither one lucky run nor one wrong report sets it.
        """
        return min(map(statistics.median, self.costs.values()), default=math.inf)

    def surest(self) -> int:
        """The batch size that most of the latest have reached the target with.

        The default until three more have with another: one or two may lie.
        """
        believed = (one for one in self.latest if one.standing == Verdict.BELIEVED)
        shown = Counter(one.arm for one in believed if one.end == RunEnd.REACHED)
        default = self.job.batch_sizes.index(self.job.default)
        shown[default] += _FEW
        return self.job.batch_sizes[max(shown, key=lambda arm: (shown[arm], arm == default))]

    def doubts(self, action: Document) -> bool:
        """Whether the report on an action, of the latest, is held."""
        held = (one.body["action"] for one in self.latest if one.standing == Verdict.HELD)
        return any(one == action for one in held)

    def held(self) -> list[int]:
        """Decisions whose reports are not believed, of the latest."""
        return [one.decision for one in self.latest if one.standing != Verdict.BELIEVED]

    def to_document(self) -> Document:
        """As JSON."""
        return {
            "heard": self.heard,
            "costs": [[arm, costs] for arm, costs in self.costs.items()],
            "latest": [
                [one.decision, one.body, int(one.standing), one.times] for one in self.latest
            ],
        }

    @classmethod
    def from_document(cls, job: Job, document: Document) -> ReportFilter:
        """What :meth:`to_document` gave."""
        history = cls(job, heard=document["heard"], costs=dict(document["costs"]))
        for decision, body, standing, times in document["latest"]:
            report = Report.of(job, decision, body)
            report.standing, report.times = Verdict(standing), times
            if history.heard <= _LATEST:
                for other in history.latest:
                    report.compare(other)
            history.latest.append(report)
        return history


def _balance(report: Report, gone: set[Report]) -> int:
    """How many more holders are on a report's side than contradict it, without ``gone``.

    On its side are those who agree, and those who contradict the same as it does. Volunteers may
    contradict one another only: they could pick whom.
    """
    chosen = report.recurrence != VOLUNTEERS
    against = [
        one
        for one in report.accusers
        if one not in gone and not (chosen and one.recurrence == VOLUNTEERS)
    ]
    theirs = {one.recurrence for one in against}
    its = _holders(report.supporters, gone).union(
        *(_holders(one.accusers, gone) for one in against)
    )
    return len(its - theirs - {report.recurrence}) - len(theirs)


def _holders(reports: dict[Report, int], gone: set[Report]) -> set[int]:
    return {recurrence for one, recurrence in reports.items() if one not in gone}


def _is_confirmed(report: Report, gone: set[Report]) -> bool:
    """Whether another says the same, and nobody the contrary."""
    return bool(_holders(report.supporters, gone)) and not _holders(report.accusers, gone)


def _insists(report: Report) -> bool:
    """Whether it is the third failure, the sixth, the twelfth and so on of its recurrence.

    Of these the policy hears even if all others contradict them: else it would choose the same
    again, and the recurrence would never end. Yet one holder has no more to say than that. Where
    not an epoch was trained, a wider ceiling is what helps.
    """
    failed = report.end in (RunEnd.STOPPED, RunEnd.EXHAUSTED) and report.epochs > 0
    if not failed or report.recurrence == VOLUNTEERS:
        return False
    times, rest = divmod(report.times, _INSISTENCE)
    return rest == 0 and times.bit_count() == 1

"""The decisions that a receipt is about: from a file, or from the log of a service.

    open_traffic(file | None) --> LoggedTraffic --> Sessions

The reward of a decision is its quality alone: cost has no weight, since dollars are stated beside it.
"""

from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from armwise.agent.proof import noninferiority
from armwise.agent.proof.audit import find_doubt
from armwise.agent.proof.noninferiority import ArmComparison, Sessions, Settlement, Unsaid
from armwise.arms.base import Progress
from armwise.feedback.decisions import EVERYTHING, Decisions, Selection, concatenate, tabulate
from armwise.feedback.events import LABELS, NOT_SERVED
from armwise.feedback.jsonl import ExchangeError, read_export, read_headers
from armwise.feedback.log import Store, without_password
from armwise.feedback.log.chain import LogHead, fold_all
from armwise.feedback.log_columns import read_decisions
from armwise.feedback.reward import RewardRule
from armwise.feedback.sources import ExportSource, LogSource, OutsideValues
from armwise.feedback.training_log import lateness, settled
from armwise.feedback.training_log.lateness import RatingTimes

if TYPE_CHECKING:
    from armwise.agent.config import AppConfig

NAME_CHARS = 1000
"""Longest name of a log in a receipt."""


class NoTrafficError(ValueError):
    """A log has no decision."""


@dataclass(frozen=True, slots=True, eq=False)
class LoggedTraffic:
    """The decisions of a log.

    Attributes:
        source: The file, or the database without its password.
        decisions: All of its decisions, labels left out; `reward` is quality.
        rule: The rule of quality.
        settled: Time before which decisions are settled, seconds since the epoch; infinite: all are.
        complete: Whether decisions without feedback, forced ones and those that were given up are on record.
        head: LogHead of the log before it was read; None: it was not read from the log itself.
        doubt: Why nothing can be estimated from it; empty: something can.
        rating_times: When ratings came, late ones too; None: hardly any came late, or that is not on record.
        before_costs: Whether the reward that policies learn from has costs, which `rule` leaves out.
        outside: How many ratings are outside their ranges, in words, which leaves quality out. Empty:
            none, or they were not counted.
    """

    source: str
    decisions: Decisions
    rule: RewardRule
    settled: float
    complete: bool
    head: LogHead | None = None
    doubt: str = ""
    rating_times: RatingTimes | None = None
    before_costs: bool = False
    outside: str = ""

    @property
    def settlement(self) -> Settlement:
        """The part that is final now; its bounds are such that it stays the same when the log goes on."""
        has_sessions = noninferiority.has_sessions(self.decisions)
        if self.settled < inf:
            return Settlement.from_time(self.settled, sessions=has_sessions)
        return Settlement(float(np.nextafter(self.decisions.at.max(), inf)))

    def sessions(self, settlement: Settlement) -> Sessions:
        """Return the explored decisions of the final part."""
        return Sessions(self.decisions, settlement)

    def compare(self, sessions: Sessions, settlement: Settlement, reference: str) -> ArmComparison:
        """Compare what was served with an arm; where late ratings differ, or any is out of range, no quality.

        Args:
            sessions: The explored decisions of the final part.
            settlement: That part.
            reference: The arm.

        Raises:
            NothingComparableError: As by `noninferiority.compare`.
        """
        found = noninferiority.compare(sessions, reference, self.rule.reward_range)
        times = self.rating_times
        if found.quality is not None and self.outside:
            return replace(found, quality=None, quality_unsaid=Unsaid.OUTSIDE)
        if found.quality is None or times is None or not times.differ(settlement.before):
            return found
        return replace(found, quality=None, quality_unsaid=Unsaid.LATE)


def read_file(path: Path, on_progress: Progress) -> LoggedTraffic:
    """Read a file of `armwise log export` or `armwise import`.

    Args:
        path: The file.
        on_progress: Called with the progress.

    Raises:
        ExchangeError: The file cannot be read, or its parts declare different rewards.
        NoTrafficError: It has no decision.
    """
    rules = {header.reward.model_dump_json(): header.reward for header in read_headers(path)}
    if len(rules) > 1:
        raise ExchangeError(
            f"{path}: its parts declare {len(rules)} different rewards; prove each part separately"
        )
    reward = next(iter(rules.values()))
    rule = leave_costs_out(reward)
    outside = OutsideValues(rule)
    examples = (one for one in outside.watch(read_export(path)) if one.decision.policy != LABELS)
    parts = [replace(part, context=()) for part in _report_progress(tabulate(examples, rule), on_progress)]
    if not parts:
        raise NoTrafficError(f"{path}: it has no decision that is learned; others may still get feedback")
    name, file = path.name[:NAME_CHARS], ExportSource(path)
    doubt, before = find_doubt(file, rule, EVERYTHING, on_progress), file.settled.before
    traffic = LoggedTraffic(name, concatenate(parts), rule, before, complete=False, doubt=doubt)
    return replace(traffic, before_costs=reward.cost_weight != 0.0, outside=outside.remark)


def name_log(config: "AppConfig") -> str:
    """Return the database of a log without its password, cut to the length that a receipt takes."""
    return without_password(config.database_url)[:NAME_CHARS]


def is_address(source: str) -> bool:
    """Return whether a source is a database, not a file.

    >>> is_address("sqlite:///home/log.db"), is_address("log.jsonl.gz")
    (True, False)
    """
    return "://" in source


def read_store(
    store: Store,
    config: "AppConfig",
    on_progress: Progress,
    since: float | None = None,
    doubt: str | None = None,
) -> LoggedTraffic:
    """Read the log of a service: what it decided; where that is nothing, what other systems did.

    Args:
        store: The log.
        config: The configuration.
        on_progress: Called with the progress.
        since: Earliest time of the decisions, seconds since the epoch; None: all are read.
        doubt: Why nothing can be estimated from it, if that was found before; None: the log is audited.

    Raises:
        NoTrafficError: It has no decision.
        LogUnavailableError: Try again later.
    """
    name = name_log(config)
    before = settled.read(
        store, leave_costs_out(config.reward)
    ).before  # first: what is decided meanwhile is not settled
    head = fold_all(store)
    for without in (NOT_SERVED, (LABELS,)):
        found = read_between(store, config, before, on_progress, since, without=without, doubt=doubt)
        if found is not None:
            return replace(found, source=name, head=head)
    raise NoTrafficError(f"{name}: it has no decision yet")


def read_between(
    store: Store,
    config: "AppConfig",
    before: float,
    on_progress: Progress,
    since: float | None = None,
    until: float | None = None,
    *,
    without: Collection[str] = NOT_SERVED,
    doubt: str | None = None,
) -> LoggedTraffic | None:
    """Read the decisions of a time from a log; None: there are none.

    Args:
        store: The log.
        config: The configuration.
        before: Time before which decisions are settled, seconds since the epoch.
        on_progress: Called with the progress.
        since: Earliest time of the decisions, seconds since the epoch; None: the first.
        until: Time before which they were made, seconds since the epoch; None: any.
        without: Policies whose decisions are left out.
        doubt: Why nothing can be estimated from it, if that was found before; None: the log is audited.

    Raises:
        LogUnavailableError: Try again later.
    """
    rule = leave_costs_out(config.reward)
    read = read_decisions(
        store, rule, since, until, without=without, distributions=True, on_progress=on_progress
    )
    parts = [part for part in read if len(part)]
    if not parts:
        return None
    if doubt is None:
        doubt = find_doubt(LogSource(store, rule), rule, Selection(since, until), on_progress)
    times = lateness.read(store, rule, since, until)
    costs = config.reward.cost_weight != 0.0
    return LoggedTraffic("", concatenate(parts), rule, before, True, None, doubt, times, costs)


def leave_costs_out(rule: RewardRule) -> RewardRule:
    """Return a rule without costs, since dollars are stated beside the ratings."""
    return rule.model_copy(update={"cost_weight": 0.0})


def _report_progress(parts: Iterator[Decisions], on_progress: Progress) -> Iterator[Decisions]:
    done = 0
    for part in parts:
        done += len(part)
        on_progress("decisions", done, None)
        yield part
    on_progress("decisions", done, done)


def open_traffic(named: str | None, settings: "AppConfig | None", on_progress: Progress) -> LoggedTraffic:
    """Read the decisions that a command line names.

    Args:
        named: A file; None: the log of `settings`.
        settings: The configuration, where no log is named.
        on_progress: Called with the progress.

    Raises:
        ValueError: An address is named.
        ExchangeError: The file cannot be read.
        NoTrafficError: There is no decision.
        LogUnavailableError: Try again later.
    """
    if named is None:
        assert settings is not None
        with closing(Store(settings.database_url, settings.reward.join, create=False)) as store:
            return read_store(store, settings, on_progress)
    if is_address(named):
        scheme = named.partition("://")[0]
        raise ValueError(
            f"{scheme}://...: a file was expected. Save the export of a service, `GET /v1/export`, and name "
            "that; for the log of a service name its configuration with -c, and no log"
        )
    return read_file(Path(named), on_progress)

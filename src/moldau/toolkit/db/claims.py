"""What a relay does in the database: statements only, each a function of a connection in a transaction.

Rows are in lanes, by key. A relay claims rows by leasing their lanes (`SKIP LOCKED`: what another is just taking is
passed over; on SQLite, which has one writer at a time, the lease alone decides), sends the lanes' pending rows in the
order of their numbers, and gives the lanes back. Nothing is remembered from one claim to the next, so a row that is
committed late is found late, not lost; and a row is written to once, when the cluster has it.

Invariants: of a lane's pending rows nobody sends but who leases it, all in order, so whoever takes a dead relay's lane
begins with what that one may or may not have sent. Every time is the database's; a lease or a mark that lies in the
future, because its clock was set back, counts as over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    Connection,
    Delete,
    Update,
    and_,
    any_,
    bindparam,
    delete,
    func,
    literal_column,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.elements import ColumnElement

from moldau.toolkit.db.clock import now_ms
from moldau.toolkit.db.database import insert_or_ignore
from moldau.toolkit.db.outbox import CONFIRMED, FAILED, LANES, PENDING, SENT, Outbox

_LEAP_MS = 60_000  # a time further ahead than this is of a clock that was set back
_STEP = 1_000
_COUNTED_MAX = 100_000
_NO_LANE = -1
_place = attrgetter("lane", "seq")


@dataclass(slots=True, frozen=True)
class Claimed:
    """Lanes that are ours for the lease, and rows of them, in order."""

    lanes: Sequence[int] = ()
    rows: Sequence[Any] = ()


@dataclass(slots=True)
class Outcome:
    """What became of claimed rows (`again`: they stay pending), and the lanes to give back; some after a pause."""

    lanes: Sequence[int] = ()
    acknowledged: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    paused: set[int] = field(default_factory=set)


class Claims:
    """The statements of one relay."""

    def __init__(
        self,
        outbox: Outbox,
        me: str,
        *,
        batch: int,
        lanes: int,
        lease_ms: int,
        pause_ms: int,
        with_receipts: bool,
        keeps_nothing: bool,
    ) -> None:
        self._pause_ms = min(pause_ms, lease_ms)
        self._rows, self._lanes = outbox.table, outbox.lanes
        dialect = outbox.database.dialect
        rows, leases = self._rows.c, self._lanes.c
        # As text: only then does PostgreSQL see that the partial index has all of them.
        self._is_pending: ColumnElement[bool] = rows.state == _text(PENDING)
        is_free = or_(leases.until_ms < now_ms(), leases.until_ms > now_ms() + lease_ms + _LEAP_MS)
        # Each lane is looked up in the index, and nowhere is more read than is taken, however long the backlog is: a
        # database without fresh statistics takes the pending rows for few, and would walk over all of them for a join,
        # a sort or a filter.
        first = select(rows.seq).where(rows.lane == leases.lane, self._is_pending).limit(1).scalar_subquery()
        self._free_lanes = (
            select(leases.lane)
            .where(is_free, first.is_not(None))
            .order_by(leases.until_ms)
            .limit(lanes)
            .with_for_update(skip_locked=True)
        )
        names = ("seq", "lane", "id", "aggregatetype", "aggregateid", "type", "payload", "message_key", "headers")
        columns = [rows[name] for name in names]

        def oldest(lane: int) -> Any:
            mine = select(*columns).where(rows.lane == bindparam(f"lane{lane}"), self._is_pending)
            return mine.order_by(rows.seq).limit(bindparam("each")).subquery().select()

        self._batch, self._lanes_max = batch, lanes
        self._pending_rows = union_all(*map(oldest, range(lanes)))
        mine: Update = update(self._lanes).where(leases.lane.in_(_many("lanes")))
        self._lease = mine.values(relay=me, until_ms=now_ms() + lease_ms)
        self._release = mine.where(leases.relay == me).values(relay=None, until_ms=now_ms() - 1 + bindparam("pause"))
        self._extend = mine.where(leases.relay == me).values(until_ms=now_ms() + lease_ms)
        which = _any_of(rows.seq, "seqs", dialect)
        these = update(self._rows).where(which, rows.state + 0 == PENDING)  # found by number: not a case for the index
        ended = SENT if with_receipts else CONFIRMED
        self._acknowledge: Update | Delete = these.values(state=ended, at_ms=now_ms(), error=None)
        if keeps_nothing and not with_receipts:
            self._acknowledge = delete(self._rows).where(which)
        self._refuse = these.values(state=FAILED, at_ms=now_ms(), error=bindparam("error_text"))

    # A turn.

    def turn(self, connection: Connection, outcome: Outcome) -> Claimed:
        """Note what became of what was claimed before, and claim more."""
        self.note_outcome(connection, outcome)
        free = connection.scalars(self._free_lanes).all()
        if not free:
            return Claimed()
        asked = {f"lane{at}": lane for at, lane in enumerate([*free, *[_NO_LANE] * (self._lanes_max - len(free))])}
        found = connection.execute(self._pending_rows, {**asked, "each": max(1, self._batch // len(free))}).all()
        rows = sorted(found, key=_place)
        lanes = sorted({row.lane for row in rows})
        if lanes:
            connection.execute(self._lease, {"lanes": lanes})
        return Claimed(lanes, rows)

    def note_outcome(self, connection: Connection, outcome: Outcome) -> None:
        # First what writes in any case: SQLite then waits for its turn here, and not in the middle.
        freed = [lane for lane in outcome.lanes if lane not in outcome.paused]
        connection.execute(self._release, {"lanes": freed, "pause": 0})
        if outcome.paused:
            connection.execute(self._release, {"lanes": sorted(outcome.paused), "pause": self._pause_ms})
        if outcome.acknowledged:
            connection.execute(self._acknowledge, {"seqs": outcome.acknowledged})
        for seq, error in outcome.refused:
            connection.execute(self._refuse, {"seqs": [seq], "error_text": error[:500]})

    def extend(self, connection: Connection, lanes: Sequence[int]) -> bool:
        """Lease lanes for longer; False if one of them is not ours any more."""
        return connection.execute(self._extend, {"lanes": lanes}).rowcount == len(lanes)

    # Now and then.

    def prepare(self, connection: Connection) -> None:
        """Make sure that every lane is there."""
        known = set(connection.scalars(select(self._lanes.c.lane)))
        if missing := [{"lane": lane} for lane in range(LANES) if lane not in known]:
            connection.execute(insert_or_ignore(self._lanes, connection.dialect.name), missing)

    def confirm(self, connection: Connection, ids: Sequence[str]) -> int:
        """A consumer has these."""
        rows = self._rows.c
        statement = update(self._rows).where(rows.id.in_(ids), rows.state.in_((PENDING, SENT)))
        return connection.execute(statement.values(state=CONFIRMED, at_ms=now_ms(), error=None)).rowcount

    def resend_some(self, connection: Connection, resend_ms: int) -> int:
        """What was sent and got no receipt in time becomes pending again."""
        rows = self._rows.c
        is_due = or_(rows.at_ms < now_ms() - resend_ms, rows.at_ms > now_ms() + _LEAP_MS)
        found = self._some(connection, and_(rows.state == _text(SENT), is_due))
        if found:
            connection.execute(
                update(self._rows).where(rows.seq.in_(found), rows.state == SENT).values(state=PENDING, at_ms=now_ms())
            )
        return len(found)

    def clean_some(self, connection: Connection, keep_ms: int) -> int:
        """Delete what has been confirmed for long enough."""
        rows = self._rows.c
        is_old = and_(rows.state == _text(CONFIRMED), rows.at_ms <= now_ms() - keep_ms)
        found = self._some(connection, is_old)
        if found:
            connection.execute(delete(self._rows).where(rows.seq.in_(found)))
        return len(found)

    def _some(self, connection: Connection, condition: ColumnElement[bool]) -> Sequence[int]:
        seqs = select(self._rows.c.seq).where(condition).limit(_STEP).with_for_update(skip_locked=True)
        return connection.scalars(seqs).all()

    def retry(self, connection: Connection, ids: Sequence[str] | None) -> int:
        """What the cluster refused becomes pending again."""
        rows = self._rows.c
        wanted = rows.state == FAILED if ids is None else and_(rows.state == FAILED, rows.id.in_(ids))
        return connection.execute(update(self._rows).where(wanted).values(state=PENDING, error=None)).rowcount

    def look(self, connection: Connection) -> dict[str, int | None]:
        """How much waits (counted up to a limit), and for how long."""
        rows = self._rows.c
        waiting = select(rows.seq, rows.created_ms).where(self._is_pending).limit(_COUNTED_MAX).subquery()
        count, oldest, now = connection.execute(
            select(func.count(), func.min(waiting.c.created_ms), now_ms()).select_from(waiting)
        ).one()
        failed = select(rows.seq).where(rows.state == _text(FAILED)).limit(_COUNTED_MAX).subquery()
        refused = connection.execute(select(func.count()).select_from(failed)).scalar_one()
        age = None if oldest is None else max(0, int(now) - int(oldest))
        return {"pending": int(count), "oldest_ms": age, "failed": int(refused)}


def _many(name: str) -> Any:
    return bindparam(name, expanding=True)


def _any_of(column: Any, name: str, dialect: str) -> ColumnElement[bool]:
    """`IN`; as one array where that is possible, because thousands of parameters cost more than the rows."""
    if dialect == "postgresql":
        return cast(ColumnElement[bool], column == any_(bindparam(name, type_=postgresql.ARRAY(BigInteger))))
    return cast(ColumnElement[bool], column.in_(_many(name)))


def _text(number: int) -> Any:
    return literal_column(str(number))

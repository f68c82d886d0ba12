"""Nodes broken on purpose. A simulator that does not notice is worth nothing: each variant must be caught, and how soon
is part of the record (`docs/simulation.md`).

`broken` has the code of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tests.simulation import broken
from tests.simulation import broken_disks as disks
from tests.simulation.scenario import QUICK_ELECTIONS, SNAPSHOTS, Plan, play

_WITHOUT_GROUPS = Plan(members=0, consumers=0, trouble_s=10.0)
_PLAIN = replace(_WITHOUT_GROUPS, transactional_writers=0)
_LEAN = replace(_PLAIN, writers=1, partitions=1, readers=False, trouble_s=25.0)
_POWER = replace(_LEAN, scribe=True, kinds=("power", "crash", "isolate", "topic change"))
_QUORUM = replace(
    _LEAN, kinds=("crash", "isolate", "pair cut", "one-way cut", "slow link", "topic change", "topic change")
)
# Elections as quick as the network is slow: candidates meet, and ask the same voters.
_ELECTIONS = replace(_LEAN, kinds=("isolate", "crash", "slow link", "slow link", "slow node"), settings=QUICK_ELECTIONS)
_POWER_ELECTIONS = replace(_ELECTIONS, kinds=("power", "power", "isolate", "slow link"))
# Followers are missed soon, leaders late: there is time to shrink the ISR, and to go wrong.
_ISR = replace(
    _PLAIN,
    trouble_s=20.0,
    kinds=("pair cut", "one-way cut", "isolate", "slow node"),
    settings=(("replica.lag.time.max.ms", "1000"),),
)
_REBOOT = replace(_WITHOUT_GROUPS, readers=False, trouble_s=20.0, kinds=("power", "slow link"))
_CONTROL = replace(_ELECTIONS, scribe=True, kinds=("isolate", "crash", "one-way cut", "slow link"))
# Commands decided on a thread, while others come between.
_THREADS = replace(_LEAN, scribe=True, thoughtful=True, kinds=("topic change", "isolate", "crash", "slow node"))
_GROUPS = Plan(transactional_writers=0, writers=1, readers=False, trouble_s=15.0)
_MEMBERS = replace(
    _LEAN,
    spare_nodes=2,
    settings=SNAPSHOTS,
    scribe=True,
    kinds=("node joins", "node leaves", "new disk", "new disk", "isolate", "crash", "slow link", "slow link"),
)

_HOUSE = Plan(
    members=0, consumers=0, writers=1, transactional_writers=0, readers=False, housekeeping=True, trouble_s=12.0
)


# A topic is made again while jobs work on the former one, which a stalled disk holds up.
_BUSY_HOUSE = replace(
    _HOUSE, nodes=1, hasty=True, kinds=("disk stall",), trouble_s=20.0, settings=(("log.cleaner.backoff.ms", "50"),)
)
# Recovery points are hardly ever written: recovery looks at everything.
_FORGETFUL_HOUSE = replace(
    _HOUSE, nodes=1, kinds=("crash",), trouble_s=16.0, settings=(("log.flush.offset.checkpoint.interval.ms", "60000"),)
)
_FLUSHING_HOUSE = replace(_HOUSE, kinds=("crash", "power"), settings=(("log.flush.interval.ms", "100"),))
_MOVES = replace(_HOUSE, nodes=1, dirs=3, kinds=("replica move", "replica move", "disk stall"), trouble_s=25.0)
_VOTERS = replace(_LEAN, kinds=("voter's new disk", "crash"), trouble_s=12.0)
_ROTTEN_VOTERS = replace(_LEAN, scribe=True, kinds=("metadata rot", "crash"), trouble_s=12.0)
# A controller that is cut off, and does not know it yet, is asked again.
_RETRIES = replace(_LEAN, scribe=True, kinds=("isolate",))
_BLACKOUTS = replace(_WITHOUT_GROUPS, consumers=1, flushes=True, kinds=("blackout",))
_APPENDS = Plan(trouble_s=8.0, writers=1, readers=False, bystanders=True, kinds=("append failures",))


@dataclass(slots=True, frozen=True)
class Variant:
    """What is wrong, how to make it so, and within how many seeds from 0 on it shows in which world."""

    name: str
    break_it: Callable[[], Iterator[None]]
    seeds_max: int
    plan: Plan

    @contextmanager
    def broken(self) -> Iterator[None]:
        yield from self.break_it()


VARIANTS = [
    # replication
    Variant("acknowledge before the in-sync replicas have it", broken.ack_before_isr, 12, _PLAIN),
    Variant("truncate by high watermark", broken.truncate_by_high_watermark, 60, _PLAIN),
    Variant("do not say where logs diverge", broken.never_diverge, 100, _PLAIN),
    Variant("serve beyond the high watermark", broken.read_beyond_high_watermark, 5, _PLAIN),
    Variant("let any replica lead", broken.any_replica_may_lead, 12, _PLAIN),
    Variant("shrink the ISR before the controller agreed", broken.shrink_isr_unasked, 12, _ISR),
    Variant("expand the ISR before the follower caught up", broken.expand_isr_early, 20, _ISR),
    Variant("do not begin an epoch with a new leader", broken.keep_leader_epoch, 5, _PLAIN),
    Variant("lead what another incarnation led", broken.lead_in_another_incarnation, 150, _REBOOT),
    Variant("take any sequence of a producer", broken.take_any_sequence, 5, _PLAIN),
    # the quorum
    Variant("vote for a shorter log", broken.vote_for_anybody, 60, _QUORUM),
    Variant("vote twice in an epoch", broken.vote_twice, 12, _ELECTIONS),
    Variant("forget votes over a restart", broken.forget_votes, 5, _ELECTIONS),
    Variant("write votes without a flush", broken.write_votes_without_flush, 20, _POWER_ELECTIONS),
    Variant("skip the flush of the metadata", broken.skip_metadata_flush, 5, _POWER),
    Variant("act as controller on an old image", broken.control_at_once, 20, _CONTROL),
    Variant("append what is outdated", broken.append_what_is_outdated, 12, _THREADS),
    Variant("take any disk for the voter", broken.take_any_disk_for_the_voter, 100, _MEMBERS),
    Variant("change voters before the last change is committed", broken.change_voters_uncommitted, 80, _MEMBERS),
    # housekeeping
    Variant(
        "compact beyond the last stable offset",
        broken.compact_beyond_the_last_stable_offset,
        5,
        replace(_HOUSE, kinds=("slow link", "topic change")),
    ),
    Variant(
        "let a topic inherit the checkpoints of a former one",
        broken.inherit_checkpoints,
        80,
        replace(_HOUSE, nodes=1, kinds=("crash",), trouble_s=20.0),
    ),
    Variant(
        "make replicas anew while their dir is away",
        broken.make_replicas_anew,
        60,
        replace(_HOUSE, dirs=3, kinds=("dir away", "dir away", "crash"), trouble_s=25.0),
    ),
    Variant("take gaps for losses", disks.take_gaps_for_losses, 40, _FORGETFUL_HOUSE),
    Variant("vote without memory", disks.vote_without_memory, 12, _VOTERS),
    Variant("let jobs outlive their log", disks.let_jobs_outlive_their_log, 40, _BUSY_HOUSE),
    Variant("undo deletions by moves", disks.undo_deletions_by_moves, 60, _MOVES),
    Variant("believe in flushes that only began", disks.believe_in_flushes_that_began, 40, _FLUSHING_HOUSE),
    Variant("checkpoint what is not flushed", disks.checkpoint_what_is_not_flushed, 5, _FLUSHING_HOUSE),
    Variant("start with damaged metadata", disks.start_with_damaged_metadata, 40, _ROTTEN_VOTERS),
    Variant("fetch metadata before the flush", disks.fetch_before_the_flush, 40, _POWER_ELECTIONS),
    Variant("tell an old high watermark", disks.tell_an_old_high_watermark, 40, _CONTROL),
    Variant("answer from the uncommitted image", disks.answer_from_the_uncommitted_image, 60, _RETRIES),
    Variant("tell before the flush", disks.tell_before_the_flush, 12, _BLACKOUTS),
    Variant("read open transactions", disks.read_open_transactions, 5, _WITHOUT_GROUPS),
    Variant("let a task fail and begin anew", disks.fail_at_an_answer, 12, _PLAIN),
    Variant("fail the shard with the request", disks.fail_the_shard_with_the_request, 5, _APPENDS),
    # coordinators
    Variant("lose a transaction marker", broken.lose_a_marker, 12, _WITHOUT_GROUPS),
    Variant("forget aborted transactions", broken.forget_aborted_transactions, 5, _WITHOUT_GROUPS),
    Variant("answer before the records are committed", broken.answer_before_commit, 12, _GROUPS),
    Variant("take offsets from anybody", broken.commit_as_anybody, 100, _GROUPS),
    Variant("give a partition before it was given up", broken.give_before_taken, 5, _GROUPS),
    Variant("never end a session", broken.never_end_sessions, 20, _GROUPS),
]


def seeds_until_noticed(variant: Variant) -> int | None:
    """How many seeds it takes, or None if more than stated."""
    with variant.broken():
        for seed in range(variant.seeds_max):
            if play(seed, variant.plan).violations:
                return seed + 1
    return None

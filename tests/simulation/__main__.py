"""`make simulate SEEDS=1000`: play many seeds and report. Replay a failed one with `--from SEED --seeds 1 --story`."""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter

from tests.simulation.scenario import Plan, Verdict, plan_of, play
from tests.simulation.variants import VARIANTS, Variant, seeds_until_noticed

_FEW = 5
_TELLS_EVERY = 20  # seeds


def _play(job: tuple[int, Plan]) -> tuple[Verdict, float]:
    """And how much processor time it took."""
    began = time.process_time()
    verdict = play(*job)
    return verdict, time.process_time() - began


def _warm_up() -> None:
    """What every world needs is imported, compiled and out of the collector's way before the workers are born."""
    play(0, Plan(trouble_s=0.5, spare_nodes=1, housekeeping=True))
    gc.collect()
    gc.freeze()


def _named(name: str) -> Variant:
    return next(each for each in VARIANTS if each.name == name)


def _try(name: str) -> tuple[str, int | None]:
    return name, seeds_until_noticed(_named(name))


def _try_variants(named: str, workers: int) -> int:
    missed = 0
    asked = [each.name for each in VARIANTS if named in each.name]
    with multiprocessing.Pool(workers, maxtasksperchild=1) as pool:  # a broken node stays in the process that broke it
        for name, seeds in pool.imap(_try, asked, chunksize=1):
            limit = _named(name).seeds_max
            missed += seeds is None
            print(f"{name}: {f'noticed after {seeds} seeds' if seeds else f'MISSED in {limit}'}", flush=True)
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--trouble", type=float, default=10.0, help="virtual seconds of trouble per seed")
    parser.add_argument(
        "--pace", type=float, default=0.5, help="how long troubles last; timeouts too (1: three seconds)"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long, with what was played")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--story", action="store_true", help="print what happened")
    parser.add_argument("--variants", action="store_true", help="break nodes on purpose instead, and see it noticed")
    parser.add_argument("--named", default="", help="of the broken ones, only those whose name has this in it")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if given.variants:
        _warm_up()
        return _try_variants(given.named, given.workers)
    seeds = range(given.first, given.first + given.seeds)
    jobs = [(seed, plan_of(seed, nodes=given.nodes, trouble_s=given.trouble, pace=given.pace)) for seed in seeds]
    started = time.monotonic()
    _warm_up()
    failed: list[Verdict] = []
    faults: Counter[str] = Counter()
    virtual_s, cpu_s, acked, transactions, events, played = 0.0, 0.0, 0, 0, 0, 0
    with multiprocessing.Pool(min(given.workers, len(jobs)), maxtasksperchild=100) as pool:
        for verdict, took_s in pool.imap_unordered(_play, jobs):
            played += 1
            cpu_s += took_s
            faults += verdict.faults
            virtual_s += verdict.virtual_s
            acked += verdict.acked
            transactions += verdict.transactions
            events += verdict.events
            if given.story:
                print(*verdict.lines, sep="\n")
            if verdict.violations:
                failed.append(verdict)
                print(f"seed {verdict.seed} FAILED", *verdict.violations[:_FEW], sep="\n    ", flush=True)
            if played % _TELLS_EVERY == 0:
                print(f"{played} seeds, {len(failed)} failed", flush=True)
            if time.monotonic() - started > given.minutes * 60:
                break
    elapsed_s = time.monotonic() - started
    print(
        f"\n{played} seeds in {elapsed_s:.0f} s ({played / elapsed_s:.2f} a second, {cpu_s / max(1, played):.2f} s of "
        f"a processor each): {virtual_s / 3600:.1f} virtual hours, "
        f"{events} events, {acked} records acknowledged, {transactions} transactions, {len(failed)} failed"
    )
    print("faults:", ", ".join(f"{kind} {count}" for kind, count in faults.most_common()))
    if failed:
        print("failed seeds:", *sorted(verdict.seed for verdict in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

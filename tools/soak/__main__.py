"""Half an hour of everything at once on two engines with tight budgets.

    python -m tools.soak [--minutes 30] [--seed 1]

Prints a line each minute and a verdict; the exit code is 1 when anything was violated.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys

from .soak import Soak, describe
from .watch import MAX_GROWTH, MIB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    logging.basicConfig(level=logging.WARNING)
    seconds = 60.0 * args.minutes
    print(describe(seconds), flush=True)
    result = Soak(seconds, args.seed, lambda line: print(line, flush=True)).run()
    for growth in result.growths:
        print(
            f"engine {growth.engine}: PSS {growth.pss_before / MIB:.1f} -> "
            f"{growth.pss_after / MIB:.1f} MiB, RSS {growth.rss_before / MIB:.1f} -> "
            f"{growth.rss_after / MIB:.1f} MiB, grew {growth.share:+.2%} ({MAX_GROWTH:.0%} allowed)"
        )
    costs = (f"{c.engine} {c.activity.value} {c.error:.0%}" for c in result.costs)
    print(f"steps foreseen wrong by (median): {', '.join(costs)}")
    print(f"asked: {dict(result.ways)}; refused: {dict(result.refused)}")
    print(f"{result.answers} answers, {result.samples} of them compared with the plain loop")
    print("FAILED" if result.violations else "all holds")
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())

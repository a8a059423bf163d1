"""Run the benchmarks and print Markdown: `python -m benchmarks.run [decode latency growth]`."""

from __future__ import annotations

import argparse

from . import decode, history_growth, latency
from .machine import describe_machine
from .models import demo_model, random_model

NAMES = ("decode", "latency", "growth")
SHAPE = ("qwen2.5-0.5b", "Q8_0")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, the demo model only")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(
            f"unknown benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}"
        )
    print(f"Machine: {describe_machine()}\n", flush=True)
    for name in arguments.names:
        {"decode": _decode, "latency": _latency, "growth": _growth}[name](arguments.quick)
    return 0


def _decode(quick: bool) -> None:
    print(f"## Decoding: action against a bare llama.cpp loop\n\n{decode.HEADER}", flush=True)
    print(decode.measure_decode(demo_model(), 96, rounds=5 if quick else 30).row(), flush=True)
    if not quick:
        print(decode.measure_decode(random_model(*SHAPE), 96, rounds=9).row(), flush=True)
    print()


def _latency(quick: bool) -> None:
    print(f"## Image published to frame registered\n\n{latency.HEADER}", flush=True)
    print(latency.measure_latency(8 if quick else 40).row(), flush=True)
    print()


def _growth(quick: bool) -> None:
    models = [demo_model()] if quick else [demo_model(), random_model(*SHAPE)]
    for model in models:
        print(f"## Time to the first token, {model.label}\n\n{history_growth.HEADER}", flush=True)
        rounds = 3 if quick or model is not models[0] else 9
        for row in history_growth.measure_growth(model, rounds):
            print(row.row(), flush=True)
        print()


if __name__ == "__main__":
    raise SystemExit(main())

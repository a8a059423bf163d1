"""Run benchmarks and print Markdown: `python -m benchmarks.run [NAME ...]`.

`growth`, `rebuild`, `transfer`, `llama_server` and `policies` need no ROS. The last two run only
when they are named: `llama_server` builds a llama-server on its first run, `policies` takes half an
hour.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from .machine import describe_machine
from .models import demo_model, random_model
from .policies_options import add_policies_options, run_policies

SHAPE = ("qwen2.5-0.5b", "Q8_0")
# Imports are inside the functions: `transfer` runs on machines without ROS.
_ONLY_BY_NAME = {"llama_server", "policies"}


def main() -> int:
    arguments = _arguments()
    machine = describe_machine()
    print(f"Machine: {machine}\n", flush=True)
    for name in arguments.names:
        _BENCHMARKS[name](arguments)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ", ".join(_BENCHMARKS)
    usual = [name for name in _BENCHMARKS if name not in _ONLY_BY_NAME]
    parser.add_argument(
        "names", nargs="*", default=usual, help=f"of {names}; default: {' '.join(usual)}"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, the demo model only")
    add_policies_options(parser)
    transfer = parser.add_argument_group("transfer")
    transfer.add_argument(
        "--engines", default="cpu,rpc", metavar="DEVICE,DEVICE", help="default: %(default)s"
    )
    transfer.add_argument(
        "--minutes", type=float, default=11.0, help="about how long (default: %(default)g)"
    )
    transfer.add_argument(
        "--threads", type=int, default=0, help="of engines on CPUs; 0: all cores but one"
    )
    transfer.add_argument("--json", type=Path, help="file for every single figure")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(_BENCHMARKS)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; there are {names}")
    if len(set(arguments.engines.split(","))) != 2:
        parser.error(f"--engines takes two different devices, not {arguments.engines!r}")
    return arguments


def _decode(arguments: argparse.Namespace) -> None:
    from . import decode

    print(f"## Decoding: action against a bare llama.cpp loop\n\n{decode.HEADER}", flush=True)
    rounds = 5 if arguments.quick else 30
    print(decode.measure_decode(demo_model(), 96, rounds=rounds).row(), flush=True)
    if not arguments.quick:
        print(decode.measure_decode(random_model(*SHAPE), 96, rounds=9).row(), flush=True)
    print()


def _latency(arguments: argparse.Namespace) -> None:
    from . import latency

    print(f"## Image published to frame registered\n\n{latency.HEADER}", flush=True)
    print(latency.measure_latency(8 if arguments.quick else 40).row(), flush=True)
    print()


def _growth(arguments: argparse.Namespace) -> None:
    from . import history_growth

    models = [demo_model()] if arguments.quick else [demo_model(), random_model(*SHAPE)]
    for model in models:
        print(f"## Time to the first token, {model.label}\n\n{history_growth.HEADER}", flush=True)
        rounds = 3 if arguments.quick or model is not models[0] else 9
        for row in history_growth.measure_growth(model, rounds):
            print(row.row(), flush=True)
        print()


def _rebuild(arguments: argparse.Namespace) -> None:
    from . import rebuild

    models = [demo_model()] if arguments.quick else [demo_model(), random_model(*SHAPE)]
    for model in models:
        print(f"## First tokens when the oldest frames are dropped, {model.label}\n")
        print(rebuild.HEADER, flush=True)
        for row in rebuild.measure_rebuilds(model):
            print(row.row(), flush=True)
        print()


def _transfer(arguments: argparse.Namespace) -> None:
    from . import transfer, transfer_report

    lengths: tuple[int, ...] = (256, 1024, 1536, 4096)
    minutes = arguments.minutes
    if arguments.quick:
        model, lengths, minutes = demo_model(), (256, 1536), 0.5
    else:
        model = random_model(*SHAPE, encoder="demo", context_tokens=8192)
    first, second = arguments.engines.split(",")
    plan = transfer.Plan(
        devices=(first, second),
        kv_types=("q8_0", "f16"),
        lengths=lengths,
        seconds=60.0 * minutes,
        n_threads=arguments.threads,
    )
    about = transfer.describe(plan, model)
    print("\n".join(f"- {line}" for line in about), flush=True)
    cases = transfer.measure_transfer(model, plan, lambda line: print(f"- {line}", flush=True))
    print(f"\n{transfer_report.report(cases)}", flush=True)
    if arguments.json is not None:
        document = {
            "machine": describe_machine(),
            "about": about,
            "plan": asdict(plan),
            "cases": [asdict(case) for case in cases],
        }
        arguments.json.write_text(json.dumps(document, indent=1))


def _planning(arguments: argparse.Namespace) -> None:
    from . import planning

    print(f"## Decisions of the planner\n\n{planning.HEADER}", flush=True)
    for time in planning.measure_planning(200 if arguments.quick else 2000):
        print(time.row(), flush=True)
    print(f"\n### The coordinator's whole decision\n\n{planning.WHOLE_HEADER}", flush=True)
    for row in planning.whole_rows(100 if arguments.quick else 1000):
        print(row, flush=True)
    print(f"\n### Whether to take frames over\n\n{planning.TAKE_OVER_HEADER}", flush=True)
    for row in planning.take_over_rows(50 if arguments.quick else 300):
        print(row, flush=True)
    print()


def _llama_server(arguments: argparse.Namespace) -> None:
    from tools.setup import llama_server as setup

    from . import llama_server, stand_ins

    executable = setup.ensure()
    quick = (llama_server.Plan(rounds=1, rate_rounds=1, frames=12),)
    full = (
        llama_server.Plan(rounds=3, rate_rounds=8),
        llama_server.Plan(rounds=1, rate_rounds=2, short_answer=4, questions=4),
    )
    names: tuple[stand_ins.ShapeName, ...] = ("demo", "qwen2.5-0.5b")
    plans = dict(zip(names, quick if arguments.quick else full, strict=False))
    for name, plan in plans.items():
        model = stand_ins.stand_in_model(name)
        print(f"## Against llama-server, {model.label}\n", flush=True)
        result = llama_server.measure(
            model, plan, executable, lambda line: print(f"- {line}", flush=True)
        )
        print(f"\n{llama_server.report(result)}\n", flush=True)


def _policies(arguments: argparse.Namespace) -> None:
    run_policies(arguments, describe_machine())


_BENCHMARKS: dict[str, Callable[[argparse.Namespace], None]] = {
    "decode": _decode,
    "latency": _latency,
    "growth": _growth,
    "rebuild": _rebuild,
    "transfer": _transfer,
    "policies": _policies,
    "planning": _planning,
    "llama_server": _llama_server,
}


if __name__ == "__main__":
    raise SystemExit(main())

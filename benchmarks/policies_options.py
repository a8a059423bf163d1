"""The options of the policies benchmark."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TypeVar


def add_policies_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("policies")
    group.add_argument(
        "--setup", default="soc", metavar="SETUP",
        help="soc:N+N (cores of a CPU engine and an RPC server that compute alike), rpc:N+N (the "
        "CPU engine with rearranged weights), cpus:N+N (two CPU engines) or DEVICE,DEVICE; "
        "default: %(default)s",
    )  # fmt: skip
    group.add_argument("--model", default="0.5b", choices=("demo", "0.5b", "3b"))
    group.add_argument("--kv", default="q8_0", choices=("q8_0", "f16"))
    group.add_argument(
        "--policies", default="", metavar="POLICY,...", help="only these; default: all"
    )
    group.add_argument(
        "--workloads", default="burst,live", metavar="NAME,...", help="default: %(default)s"
    )
    group.add_argument("--runs", type=int, default=3, help="of each burst (default: %(default)s)")
    group.add_argument(
        "--live-runs", type=int, default=1, help="at each load (default: %(default)s)"
    )
    group.add_argument(
        "--seconds", type=float, default=20.0, help="of each live run (default: %(default)g)"
    )
    group.add_argument(
        "--limit", type=float, default=1800.0,
        help="seconds after which no run is begun any more (default: %(default)g)",
    )  # fmt: skip
    group.add_argument(
        "--objective", default="completion", choices=("completion", "first_token"), help="of sdep"
    )
    group.add_argument(
        "--results", type=Path,
        help="file with a line of JSON for every run; what it has is not done again",
    )  # fmt: skip
    group.add_argument(
        "--traces", type=Path, metavar="FOLDER", help="write a trace of every run there"
    )


def run_policies(arguments: argparse.Namespace, machine: str) -> None:
    """Raises SystemExit for options that contradict each other, and for folders that cannot be
    made or written to."""
    from . import policies, policies_report
    from .policies_results import Results
    from .policies_setup import ModelName, endless_model, parse_setup

    try:
        setup = parse_setup(arguments.setup, arguments.kv)
    except ValueError as error:
        raise SystemExit(f"--setup: {error}") from error
    if arguments.traces is not None:
        _make_folder(arguments.traces, "--traces")
    if arguments.results is not None:
        _make_folder(arguments.results.parent, "--results")
    name: ModelName = "demo" if arguments.quick else arguments.model
    plan = policies.Plan(
        setup=setup,
        model_name=name,
        kv_type=arguments.kv,
        policies=_chosen(arguments.policies, policies.all_policies(setup), "--policies"),
        workloads=_chosen(arguments.workloads, policies.WORKLOADS, "--workloads"),
        runs=1 if arguments.quick else arguments.runs,
        live_runs=arguments.live_runs,
        live_s=3.0 if arguments.quick else arguments.seconds,
        limit_s=arguments.limit,
        objective=arguments.objective,
        traces=arguments.traces,
    )
    model = endless_model(name)
    about = policies.describe(plan, model)
    print("## Policies\n\n" + "\n".join(f"- {line}" for line in about), flush=True)
    results = Results(arguments.results)
    results.note(machine=machine, about=about)
    policies.measure_policies(model, plan, results, lambda text: print(f"- {text}", flush=True))
    print(f"\n{policies_report.report(results.runs)}\n", flush=True)


def _make_folder(folder: Path, option: str) -> None:
    """Now, and not after minutes of calibration. Raises SystemExit."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SystemExit(
            f"{option}: nothing can be written to the folder {folder}: {error}"
        ) from error


_T = TypeVar("_T", bound=str)


def _chosen(text: str, possible: tuple[_T, ...], option: str) -> tuple[_T, ...]:
    if not text:
        return possible
    wanted = text.split(",")
    unknown = [name for name in wanted if name not in list[str](possible)]
    if unknown:
        raise SystemExit(f"{option}: no {', '.join(unknown)}; there are: {', '.join(possible)}")
    return tuple(name for name in possible if name in wanted)

"""`ros2 run edge_vlm_ros model check`: can this model run on this machine, and where?"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

from edge_vlm_ros.engines.config import EngineConfig, KvType
from edge_vlm_ros.engines.device_text import parse_device
from edge_vlm_ros.engines.devices import list_devices
from edge_vlm_ros.engines.errors import EngineError
from edge_vlm_ros.engines.model import LlamaModel
from edge_vlm_ros.model_profile import ModelProfile, load_profile
from edge_vlm_ros.ros.share import find_model_profile
from edge_vlm_ros.runtime.config import ConfigError, RuntimeConfig, StreamConfig

from .model_findings import (
    Finding,
    UsedEncoder,
    check_encoders,
    check_files,
    check_geometry,
    check_header,
    check_template,
    fetch_commands,
    note,
    ok,
    problem,
)
from .model_memory import Share, cells, check_memory, shares
from .numbers import whole_number

_EPILOG = """exit codes:
  0  it can run here
  1  it cannot; every PROBLEM says what to do
  2  wrong arguments, or a profile that cannot be read

Nothing is downloaded. A large model takes a while: its digest is computed and a picture encoded."""


def main(args: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(args)
    try:
        path = find_model_profile(arguments.profile)
        config, of_file = _config(arguments, load_profile(path))
    except (OSError, ValueError, ImportError) as error:
        print(f"model: {error}", file=sys.stderr)
        return 2
    profile = config.profile
    print(f"{profile.name}: {profile.description}\n{path}\n")
    return 0 if _Check(config, of_file).run() else 1


class _Check:
    """Prints what is found as it is found: some of it takes long. ``of_file`` are the findings
    about the parameter file, which are told among the others."""

    def __init__(self, config: RuntimeConfig, of_file: Sequence[Finding] = ()) -> None:
        self._config = config
        self._of_file = of_file
        self._profile: ModelProfile = config.profile
        self._n_problems = 0

    def run(self) -> bool:
        self._tell(check_files(self._profile))
        model = self._language()
        encoder = self._encoder()
        parts = self._memory(model, encoder)
        self._tell(self._of_file)
        self._tell(_check_devices(self._config.engines))
        if parts:
            _print_places(self._config, model, encoder, parts)
        if encoder is not None:
            encoder.opened.close()
        if model is not None:
            model.close()
        commands = fetch_commands(self._profile)
        if commands:
            print("\nTo fetch what is missing (hf: pip install huggingface_hub)")
            print("\n".join(f"  {command}" for command in commands))
        verdict = f"no, see PROBLEM ({self._n_problems})" if self._n_problems else "yes"
        print(f"\nCan run here: {verdict}")
        return not self._n_problems

    def _tell(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            print(f"{finding.outcome:<8} {finding.subject:<16} {finding.text}", flush=True)
            self._n_problems += finding.outcome == "PROBLEM"

    def _language(self) -> LlamaModel | None:
        if not self._profile.language.file.is_file():
            return None
        before = self._n_problems
        self._tell(check_header(self._profile))
        if self._n_problems > before:
            return None
        try:
            model = LlamaModel(self._profile.language.file, repack=False)
        except EngineError as error:
            self._tell([problem("language model", str(error))])
            return None
        forkable = "full attention: histories can be forked"
        self._tell([ok("language model", f"{model.description}; {forkable}")])
        self._tell(check_template(self._profile, model))
        for kv_type in sorted({engine.kv_type for engine in self._config.engines}):
            self._tell(check_geometry(model, kv_type))
        return model

    def _encoder(self) -> UsedEncoder | None:
        if not any(backend.file.is_file() for backend in self._profile.encoder.backends):
            return None
        findings, encoder = check_encoders(self._profile, self._config.vision.n_threads)
        self._tell(findings)
        return encoder

    def _memory(self, model: LlamaModel | None, encoder: UsedEncoder | None) -> tuple[Share, ...]:
        if model is None:
            self._tell([note("memory", "not known before the language model can be loaded")])
            return ()
        file = None if encoder is None else encoder.backend.file
        try:
            parts = tuple(shares(self._config, model, file))
        except ConfigError as error:
            self._tell([problem("context", str(error))])
            return ()
        self._tell(check_memory(parts))
        return parts


def _check_devices(engines: Iterable[EngineConfig]) -> Iterable[Finding]:
    names = [info.name for info in list_devices()]
    for engine in engines:
        device = parse_device(engine.device, allow_remote=True)
        if device.kind == "local" and device.name not in names:
            yield problem(
                f"engine {engine.name}",
                f"there is no device {engine.device}, only {', '.join(names)}: another one needs a "
                "llama-cpp-python built with its backend",
            )


def _print_places(
    config: RuntimeConfig,
    model: LlamaModel | None,
    encoder: UsedEncoder | None,
    parts: Sequence[Share],
) -> None:
    assert model is not None
    print("\nMemory")
    for part in parts:
        where = f" on {part.device}" if part.device else ""
        print(f"  {part.n_bytes / 2**20:8.1f} MiB  {part.what}{where}")
    print("What runs where")
    n_cells = cells(config, model)
    for engine in config.engines:
        cores = f"cores {list(engine.cpus)}" if engine.cpus else "any core"
        threads = f"{engine.threads} thread{'s' if engine.threads > 1 else ''} on {cores}"
        print(
            f"  language on engine {engine.name}: device {engine.device}, {threads}, "
            f"{n_cells[engine.name]} KV cells {engine.kv_type}"
        )
    if encoder is not None:
        encoders = encoder.opened.encoders
        contexts = f", {len(encoders)} contexts" if len(encoders) > 1 else ""
        print(f"  encoder: {encoders[0].backend}{contexts}")


def _config(
    arguments: argparse.Namespace, profile: ModelProfile
) -> tuple[RuntimeConfig, tuple[Finding, ...]]:
    """What the node would run with, and what is wrong with it here.

    Raises ConfigError, ValueError, OSError and ProfileError; ImportError without ROS 2.
    """
    if arguments.params_file is not None:
        return _config_of_file(arguments.params_file, profile)
    streams = tuple(StreamConfig(f"camera{index}") for index in range(arguments.streams))
    engine = EngineConfig(
        name=re.sub(r"[^a-z0-9]+", "_", arguments.device.lower()).strip("_") or "engine",
        device=arguments.device,
        n_threads=arguments.threads,
        n_ctx=arguments.n_ctx,
        kv_type=cast(KvType, arguments.kv_type),
        allow_remote=True,
    )
    return RuntimeConfig(profile, streams, (engine,)), ()


def _config_of_file(path: Path, profile: ModelProfile) -> tuple[RuntimeConfig, tuple[Finding, ...]]:
    """The file may be another computer's: engines go without the cores that this one lacks."""
    # Reads ROS parameters, so it needs rclpy; the rest does not.
    from edge_vlm_ros.ros.parameter_file import read_values
    from edge_vlm_ros.ros.settings import runtime_config

    node, streams, engines = read_values(path)
    usable = os.sched_getaffinity(0)
    findings = []
    for name, values in engines.items():
        missing = sorted(set(values["cpus"]) - usable)
        if missing:
            there = [cpu for cpu in values["cpus"] if cpu in usable]
            engines[name] = {**values, "cpus": there}
            findings.append(
                problem(
                    f"engine {name}",
                    f"cpus {missing} are not among the cores that this process may use: "
                    f"{sorted(usable)}. Correct engine.{name}.cpus if the file is meant for this "
                    "machine; all else is checked without them",
                )
            )
    return replace(runtime_config(node, streams, engines), profile=profile), tuple(findings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ros2 run edge_vlm_ros model",
        description="Look after models.",
        epilog="`model check --help` says more.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    check = verbs.add_parser(
        "check",
        help="can this model run on this machine?",
        description="Check a model profile: files, digests, header, template, encoders, memory; "
        "say what will run where.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = check.add_argument
    add("profile", metavar="PROFILE", help="a name in config/models, or the path of a profile")
    add(
        "--params-file",
        type=Path,
        metavar="FILE",
        help="the node's parameters: its streams, engines and limits instead of those below",
    )
    add(
        "--streams",
        type=whole_number(1),
        default=1,
        metavar="N",
        help="camera streams (default: 1)",
    )
    add("--device", default="cpu", help="device of the language engine (default: cpu)")
    add("--threads", type=int, default=0, metavar="N", help="0: all cores but one (default)")
    add("--n-ctx", type=int, default=0, metavar="N", help="KV cells; 0: as needed (default)")
    add("--kv-type", default="q8_0", choices=get_args(KvType), help="default: q8_0")
    return parser


if __name__ == "__main__":
    sys.exit(main())

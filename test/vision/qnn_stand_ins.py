"""Stand-ins for onnxruntime and onnxruntime-qnn, with an NPU that takes what a file says.

A model file is text: the words are operations. The NPU takes all but LayerNormalization; a file
with EPContext is a compiled one. What a session computes is the mean of its input, everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

NPU = "QNNExecutionProvider"
FALLBACK_DISABLED = "graph nodes are assigned to the default CPU EP, but fallback is disabled"


class Options:
    def __init__(self) -> None:
        self.log_severity_level = 2
        self.entries: dict[str, str] = {}
        self.provider: dict[str, str] = {}
        self.devices: list[Any] = []

    def add_session_config_entry(self, name: str, value: str) -> None:
        self.entries[name] = value

    def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
        self.devices, self.provider = devices, options


@dataclass
class StandIns:
    """What the stand-ins do and what was done with them."""

    starts: bool = True
    """The NPU's backend."""
    honest: bool = True
    """A session with the CPU in it is refused when that was asked for."""
    refuses: Callable[[str], bool] = lambda words: False
    """Files that no session is made of."""
    output: Callable[[np.ndarray], Any] = lambda image: np.full((1, 49, 256), image.mean())
    opened: list[Path] = field(default_factory=list)
    options: list[Options] = field(default_factory=list)
    fed: list[np.ndarray] = field(default_factory=list)
    onnxruntime: Any = None
    plugin: Any = None

    def __post_init__(self) -> None:
        self.onnxruntime = ModuleType("onnxruntime")
        self.plugin = ModuleType("onnxruntime_qnn")
        registered: list[str] = []

        def register(name: str, path: str) -> None:
            if name in registered:
                raise RuntimeError("library is already registered")
            registered.append(name)

        self.onnxruntime.__dict__.update(
            __version__="1.30.0",
            register_execution_provider_library=register,
            get_ep_devices=lambda: [SimpleNamespace(ep_name=name) for name in registered],
            SessionOptions=Options,
            GraphOptimizationLevel=SimpleNamespace(ORT_DISABLE_ALL=0),
            InferenceSession=lambda path, sess_options: Session(self, Path(path), sess_options),
        )
        self.plugin.__dict__.update(
            __version__="2.7.0",
            build_and_package_info=SimpleNamespace(qnn_version="2.51.0"),
            get_ep_name=lambda: NPU,
            get_library_path=lambda: "plugin.so",
            get_qnn_htp_path=lambda: "libQnnHtp.so",
        )


class Session:
    def __init__(self, owner: StandIns, path: Path, options: Options) -> None:
        self._owner = owner
        owner.opened.append(path)
        owner.options.append(options)
        words = path.read_text()
        if owner.refuses(words):
            raise RuntimeError("cannot be loaded")
        operations = words.split()
        self._of = {
            NPU: [w for w in operations if owner.starts and w != "LayerNormalization"],
            "CPUExecutionProvider": [
                w for w in operations if not owner.starts or w == "LayerNormalization"
            ],
        }
        with_cpu = options.entries.get("session.disable_cpu_ep_fallback") != "1"
        if self._of["CPUExecutionProvider"] and owner.honest and not with_cpu:
            raise RuntimeError(FALLBACK_DISABLED)
        if options.entries.get("ep.context_enable") == "1":
            assert options.entries["ep.context_embed_mode"] == "1"
            compiled = f"EPContext {len(owner.opened)}"  # no two are equal
            Path(options.entries["ep.context_file_path"]).write_text(compiled)

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name="image", type="tensor(float)", shape=[1, 3, 224, 224])]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name="embeds", type="tensor(float)", shape=[1, 49, 256])]

    def get_provider_graph_assignment_info(self) -> list[Any]:
        """A partition for each operation, as a library is free to make them."""
        return [
            SimpleNamespace(
                ep_name=provider,
                get_nodes=lambda op_type=op_type: [SimpleNamespace(op_type=op_type)],
            )
            for provider, operations in self._of.items()
            for op_type in operations
        ]

    def run(self, outputs: list[str], feed: dict[str, np.ndarray]) -> list[Any]:
        assert outputs == ["embeds"] and list(feed) == ["image"]
        self._owner.fed.append(feed["image"])
        return [self._owner.output(feed["image"])]

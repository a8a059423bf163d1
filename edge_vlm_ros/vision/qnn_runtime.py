"""Qualcomm's NPU (HTP) as ONNX Runtime's plugin offers it: library, device and sessions.

The plugin puts onto the CPU what the NPU does not take, and all of a model when the NPU does not
start, without a word. Here that is an error.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import mmap
import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import EncoderError
from .onnx_runtime import import_onnxruntime

if TYPE_CHECKING:
    import onnxruntime

REQUIREMENT = "onnxruntime-qnn==2.7.0"
"""What to install: the version that all of this was run with. It needs Python 3.11 or newer."""

_SILENT, _ERRORS = 4, 3


@dataclass(frozen=True)
class HtpTarget:
    """The NPU to compile for, as the vendor numbers SoCs and architectures."""

    soc_model: int
    htp_arch: int

    def __str__(self) -> str:
        return f"soc_model {self.soc_model}, htp_arch {self.htp_arch}"


class QnnRuntime:
    """The plugin, and the NPU it found. On x86-64 the plugin holds an emulator of every NPU."""

    def __init__(self) -> None:
        """Find everything that is needed.

        Raises:
            EncoderError: no NPU or no permission to use it, a missing library, or versions that do
                not fit; with what to install.
        """
        self.emulated = platform.machine() == "x86_64"
        if not self.emulated:
            check_board(Path("/dev"))
        self._onnxruntime = import_onnxruntime()
        self._plugin = _import_plugin()
        _register(self._onnxruntime, self._plugin)
        self._name: str = self._plugin.get_ep_name()
        devices = [
            device for device in self._onnxruntime.get_ep_devices() if device.ep_name == self._name
        ]
        if not devices:
            raise EncoderError(
                "onnxruntime-qnn finds no NPU here; it looks for /dev/fastrpc-cdsp on boards, and "
                "needs Linux on aarch64 or x86-64"
            )
        self._device = devices[0]

    @property
    def versions(self) -> str:
        """Of ONNX Runtime, the plugin and QNN: compiled models and numbers hold for these."""
        of_qnn = getattr(self._plugin.build_and_package_info, "qnn_version", "unknown")
        return f"{self._onnxruntime.__version__}, {self._plugin.__version__}, QNN {of_qnn}"

    @property
    def plugin_version(self) -> str:
        return str(self._plugin.__version__)

    def open(
        self, model: Path, target: HtpTarget, *, compiled: Path | None = None
    ) -> onnxruntime.InferenceSession:
        """A session with every operation on the NPU.

        Args:
            model: quantised (QDQ) ONNX file, or one compiled before.
            target: the NPU.
            compiled: write the compiled model to this file, to be opened faster.

        Raises:
            EncoderError: with the reason that was found out.
        """
        options = self._options(target, log_level=_SILENT)  # what goes wrong is said below
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        if compiled is not None:
            options.add_session_config_entry("ep.context_enable", "1")
            options.add_session_config_entry("ep.context_file_path", os.fspath(compiled))
            options.add_session_config_entry("ep.context_embed_mode", "1")  # one file
        try:
            session = self._onnxruntime.InferenceSession(os.fspath(model), sess_options=options)
        except Exception as error:  # its exception classes share no base of their own
            raise EncoderError(self._reason(model, target, error)) from error
        if elsewhere := self._elsewhere(session):
            raise EncoderError(_not_all(model, target, elsewhere))
        return session

    def _options(self, target: HtpTarget, *, log_level: int) -> onnxruntime.SessionOptions:
        options = self._onnxruntime.SessionOptions()
        options.log_severity_level = log_level
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        settings = {
            "backend_path": self._plugin.get_qnn_htp_path(),
            "soc_model": str(target.soc_model),
            "htp_arch": str(target.htp_arch),
            "htp_performance_mode": "burst",
            # Otherwise input and output would be quantised on the CPU.
            "offload_graph_io_quantization": "0",
        }
        options.add_provider_for_devices([self._device], settings)
        return options

    def _elsewhere(self, session: onnxruntime.InferenceSession) -> Counter[str]:
        """Operations that are not on the NPU: how many of which kind."""
        return Counter(
            node.op_type
            for part in session.get_provider_graph_assignment_info()
            if part.ep_name != self._name
            for node in part.get_nodes()
        )

    def _reason(self, model: Path, target: HtpTarget, error: Exception) -> str:
        """Why a session with everything on the NPU could not be opened: the library's own text is
        the same for most reasons."""
        if is_compiled(model):
            return (
                f"{model} was compiled for another NPU than {target}, by another version than "
                f"onnxruntime-qnn {self.plugin_version}, or is damaged ({error}); compile it again"
            )
        if not _contains(model, b"QuantizeLinear"):
            return (
                f"{model} is not quantised, and this NPU ({target}) cannot run it in floating "
                "point: make a QDQ model of it with `python -m tools.convert_encoder qdq`"
            )
        options = self._options(target, log_level=_ERRORS)
        options.graph_optimization_level = (
            self._onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # keeps the operations' names
        )
        try:
            with_cpu = self._onnxruntime.InferenceSession(os.fspath(model), sess_options=options)
        except Exception:
            return f"ONNX Runtime cannot load {model} ({error}); make the file again"
        elsewhere = self._elsewhere(with_cpu)
        if not elsewhere:
            return f"ONNX Runtime cannot compile {model} for the NPU: {error}"
        total = sum(len(part.get_nodes()) for part in with_cpu.get_provider_graph_assignment_info())
        if elsewhere.total() < total:
            return _not_all(model, target, elsewhere)
        return (
            f"the NPU does not start with {target}; ONNX Runtime's own reason is on the standard "
            "error output, after 'QNN SetupBackend failed'. Check soc_model and htp_arch in the "
            "model profile and, on the board, that the DSP runs "
            "(cat /sys/class/remoteproc/*/state) and that FastRPC's library and the DSP's "
            "firmware are of one release"
        )


def check_board(devices: Path) -> None:
    """See whether the processor's NPU can be reached: driver, permission, library.

    Raises:
        EncoderError: with what to install.
    """
    nodes = sorted(devices.glob("fastrpc-cdsp*"))
    if not nodes:
        raise EncoderError(
            f"there is no {devices}/fastrpc-cdsp: this is not a Qualcomm board, its kernel has no "
            "FastRPC driver or has not started the DSP (dmesg | grep -i -E 'fastrpc|cdsp'), or "
            "this is a container without the device (docker run --device /dev/fastrpc-cdsp)"
        )
    if refusal := _refusal(nodes):
        raise EncoderError(
            f"no permission to use {nodes[0]} ({refusal}): add yourself to the group that "
            f"`ls -l {nodes[0]}` shows (sudo usermod -aG GROUP $USER, then log in again), or "
            "install the udev rules of FastRPC (Debian, Ubuntu: fastrpc-support); a container "
            f"needs --device {nodes[0]}"
        )
    try:
        ctypes.CDLL("libcdsprpc.so")
    except OSError as error:
        raise EncoderError(
            f"FastRPC's library cannot be loaded ({error}): install it (Debian, Ubuntu: "
            "libfastrpc1, and libfastrpc-dev where libcdsprpc.so is in that; others: libcdsprpc1 "
            "or the board's BSP)"
        ) from error


def is_compiled(model: Path) -> bool:
    """Whether the file holds code for an NPU instead of operations."""
    return _contains(model, b"EPContext")


def _import_plugin() -> ModuleType:
    try:
        return importlib.import_module("onnxruntime_qnn")
    except ImportError as error:
        raise EncoderError(
            f"onnxruntime-qnn is not installed ({error}); pip install {REQUIREMENT} "
            "onnxruntime==1.30.0 (it needs Python 3.11 or newer)"
        ) from error


@functools.cache  # registering it again is an error
def _register(runtime: ModuleType, plugin: ModuleType) -> None:
    try:
        runtime.register_execution_provider_library(plugin.get_ep_name(), plugin.get_library_path())
    except Exception as error:  # AttributeError before 1.22, and exceptions without a common base
        raise EncoderError(
            f"onnxruntime {runtime.__version__} cannot load the plugin of onnxruntime-qnn "
            f"{plugin.__version__} ({error}); install onnxruntime 1.24.2 or newer"
        ) from error


def _not_all(model: Path, target: HtpTarget, elsewhere: Counter[str]) -> str:
    kinds = ", ".join(f"{n} {kind}" for kind, n in elsewhere.most_common(5))
    return (
        f"{model} has operations that the NPU ({target}) cannot run: {kinds}; make the model with "
        "`python -m tools.convert_encoder qdq`, whose kinds of quantisation (w8a16, w8a8) it can"
    )


def _refusal(nodes: Sequence[Path]) -> str:
    """Why no device can be opened; empty if one can. Rights of the file do not say it all: a
    container may be kept from a device that it sees."""
    refusal = ""
    for node in nodes:
        try:
            os.close(os.open(node, os.O_RDWR))
        except OSError as error:
            refusal = error.strerror or str(error)
        else:
            return ""
    return refusal


def _contains(file: Path, text: bytes) -> bool:
    """Names of operations stand in an ONNX file as they are."""
    try:
        with file.open("rb") as stream, _mapped(stream) as data:
            return data.find(text) >= 0
    except (OSError, ValueError):  # ValueError: an empty file
        return False


def _mapped(stream: Any) -> mmap.mmap:
    return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)

"""Keeps models compiled for an NPU, which takes up to minutes, on disk for the next start."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..model_profile import ProfileError, sha256_file
from .errors import EncoderError
from .qnn_runtime import HtpTarget, QnnRuntime

if TYPE_CHECKING:
    import onnxruntime

_logger = logging.getLogger(__name__)


def default_folder() -> Path:
    """``qnn`` in the user's cache folder of this package (XDG base directories)."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says to ignore relative paths.
    root = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return root / "edge_vlm_ros" / "qnn"


def open_compiled(
    runtime: QnnRuntime, model: Path, target: HtpTarget, folder: Path
) -> onnxruntime.InferenceSession:
    """A session of ``model``, from ``folder`` if it was compiled before, which is done otherwise.

    A file there is named after what it was made from and by (digest of the model, version of the
    plugin, NPU) and after its own digest: QNN loads damaged files without complaint. Where nothing
    can be written the model is compiled at every start.

    Raises:
        EncoderError: see ``QnnRuntime.open``.
    """
    folder = folder / runtime.plugin_version
    stem = f"{_digest(model)[:16]}-soc{target.soc_model}-v{target.htp_arch}"
    for file in sorted(folder.glob(f"{stem}-*.onnx")):
        session = _from_cache(runtime, file, target)
        if session is not None:
            return session
    _logger.info("compiling %s for the NPU; this is done once", model)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=folder, prefix="unfinished-")
    except OSError as error:
        _logger.warning("compiled encoders cannot be kept in %s: %s", folder, error)
        return runtime.open(model, target)
    with scratch:
        made = Path(scratch.name) / "compiled.onnx"
        session = runtime.open(model, target, compiled=made)
        os.replace(made, folder / f"{stem}-{_digest(made)[:16]}.onnx")
    return session


def _from_cache(
    runtime: QnnRuntime, file: Path, target: HtpTarget
) -> onnxruntime.InferenceSession | None:
    try:
        if _digest(file)[:16] != file.stem.rpartition("-")[2]:
            raise EncoderError("it is damaged")
        return runtime.open(file, target)
    except EncoderError as error:
        _logger.warning("compiled encoder %s is made again: %s", file, error)
        file.unlink(missing_ok=True)
        return None


def _digest(file: Path) -> str:
    try:
        return sha256_file(file)
    except ProfileError as error:
        raise EncoderError(str(error)) from error

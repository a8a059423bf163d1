"""A vision encoder on the NPU of a Rockchip SoC."""

from __future__ import annotations

import gc
import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from ..model_profile import EncoderProfile, RknnBackend
from . import rknn_library
from .encoder import Embeddings, RgbImage, check_embeddings, check_pixels
from .encoder_identity import encoder_identity
from .errors import EncoderError
from .profiled_encoder import ProfiledEncoder

_log = logging.getLogger(__name__)

FRAMES_PER_COLLECTION = 100
_Output = npt.NDArray[np.float32]


def open_contexts(profile: EncoderProfile, backend: RknnBackend) -> tuple[RknnEncoder, ...]:
    """As many encoders as the backend has contexts, each on a core of its own if several.

    Raises EncoderError, with none left open.
    """
    if backend.contexts == 1:
        return (RknnEncoder(profile, backend),)
    opened: list[RknnEncoder] = []
    try:
        for core in range(backend.contexts):
            opened.append(RknnEncoder(profile, backend, core=core))
    except EncoderError:
        for encoder in opened:
            encoder.close()
        raise
    return tuple(opened)


class RknnEncoder(ProfiledEncoder):
    """The ``Encoder`` of a backend with ``type: rknn``: one context of the NPU runtime."""

    def __init__(
        self, profile: EncoderProfile, backend: RknnBackend, *, core: int | None = None
    ) -> None:
        """Load the model into the NPU and run it once.

        Args:
            profile: the encoder part of a model profile.
            backend: one of its backends.
            core: the one NPU core to use; None uses those of ``backend.core_mask``.

        Raises:
            EncoderError: no NPU, no rights to it, a missing library, a file that this board
                cannot run, or a model whose output differs from the profile.
        """
        self._profile, self._file = profile, backend.file
        self._cores = backend.core_mask if core is None else str(core)
        self._identity, self._frames = b"", 0
        _check_file(backend)
        self._lite: Any = None
        self._start(rknn_library.rknnlite_class())
        try:
            self._watch = _RunWatch(self._lite)
            version = _runtime_version(self._lite)
            self._identity = encoder_identity(profile, backend, {"runtime": version})
            # What a run that fails would give as the first frame's embeddings.
            self._last_rgb = np.zeros((*profile.size, 3), np.uint8)
            self._last = self._infer(self._last_rgb)
        except BaseException:
            self.close()
            raise
        self._backend = f"RKNN, NPU {_cores_text(self._cores)}, runtime {version}"

    def encode(self, rgb: RgbImage) -> Embeddings:
        """Encode uint8 [height, width, 3] to float32 [n_tokens, n_embd]; see ``Encoder``."""
        if self._lite is None:
            raise EncoderError("the encoder has been closed; make a new one")
        # The runtime does not look: it would read past the end of a smaller picture.
        check_pixels(rgb, self._profile.size)
        embeddings = self._infer(rgb)
        if np.array_equal(embeddings, self._last) and not np.array_equal(rgb, self._last_rgb):
            embeddings = self._infer_again(rgb, embeddings)
        self._last_rgb, self._last = rgb.copy(), embeddings.copy()
        self._frames += 1
        if self._frames % FRAMES_PER_COLLECTION == 0:
            gc.collect()  # RKNNLite leaves cycles that hold buffers
        return embeddings

    def close(self) -> None:
        """Give the NPU's memory back."""
        lite, self._lite = self._lite, None
        if lite is None:
            return
        try:
            lite.release()
        except Exception:
            _log.exception("RKNNLite could not release %s", self._file)
        gc.collect()

    def _start(self, lite_class: Any) -> None:
        platforms: list[str] = []
        with rknn_library.logging_levels_kept(), rknn_library.errors_said() as said:
            self._lite = _call(said, lite_class, verbose=False)
            failed = self._lite is None or not self._load(said, lite_class)
            if self._lite is not None and failed:
                platforms = _platforms(self._lite, str(self._file))
                self.close()
        if failed:
            raise EncoderError(
                f"the NPU cannot run {self._file} on {_cores_text(self._cores)}: "
                f"{rknn_library.why_not_started(said, platforms)}"
            )

    def _load(self, said: list[str], lite_class: Any) -> bool:
        if _call(said, self._lite.load_rknn, str(self._file)) != 0:
            return False
        mask = getattr(lite_class, f"NPU_CORE_{self._cores.upper()}")
        started: bool = _call(said, self._lite.init_runtime, core_mask=mask) == 0
        self._lite.rknn_data = None  # the whole file, of which the NPU has its own copy now
        return started

    def _infer(self, rgb: RgbImage) -> Embeddings:
        feed = np.ascontiguousarray(rgb)[np.newaxis]
        self._watch.code = 0
        with rknn_library.errors_said() as said:
            outputs = _call(said, self._lite.inference, inputs=[feed], data_format=["nhwc"])
        if self._watch.code != 0:
            said.append(f"rknn_run: {rknn_library.code_text(self._watch.code)}")
        elif isinstance(outputs, list) and outputs:
            return self._checked(outputs)
        reason = " ".join(said[-1].split()) if said else "RKNNLite gave no outputs"
        hint = rknn_library.advice(reason) or "look for rknpu in `sudo dmesg`"
        raise EncoderError(f"the NPU could not encode a frame: {reason[-300:]}; {hint}")

    def _checked(self, outputs: list[_Output]) -> Embeddings:
        if len(outputs) != 1:
            raise EncoderError(
                f"the model {self._file} has {len(outputs)} outputs; only encoders with the "
                "embeddings as their one output can be used"
            )
        expected = (self.n_tokens, self.n_embd)
        output = outputs[0]
        if _without_ones(output.shape) == _without_ones(expected):
            output = output.reshape(expected)
        return check_embeddings(output, *expected)

    def _infer_again(self, rgb: RgbImage, suspect: Embeddings) -> Embeddings:
        """The embeddings of ``rgb``, whose first result was that of other pixels: what a failing
        run leaves. Telling a failure from equal results takes a third picture."""
        between = self._infer(255 - rgb)
        embeddings = self._infer(rgb) if not np.array_equal(between, suspect) else between
        if np.array_equal(embeddings, between):
            raise EncoderError(
                "the NPU gives the same embeddings for different pictures: its runs fail without "
                "an error, or the model is converted wrongly; look for rknpu in `sudo dmesg`"
            )
        return embeddings


class _RunWatch:
    """Notes the return code of each run, which RKNNLite drops."""

    def __init__(self, lite: Any) -> None:
        self.code = 0
        runtime = getattr(lite, "rknn_runtime", None)
        run = getattr(runtime, "run", None)
        if runtime is None or not callable(run):
            return  # another version of RKNNLite: equal results are noticed all the same

        def noted(*arguments: Any, **named: Any) -> Any:
            result = run(*arguments, **named)
            code = result[0] if isinstance(result, tuple) else result
            self.code = code if isinstance(code, int) else 0
            return result

        try:
            runtime.run = noted
        except (AttributeError, TypeError):
            _log.debug("return codes of rknn_run cannot be seen with this RKNNLite")


def _call(said: list[str], function: Any, *arguments: Any, **named: Any) -> Any:
    """The result, or None after an exception, whose text is added to ``said``."""
    try:
        return function(*arguments, **named)
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
        return None


def _check_file(backend: RknnBackend) -> None:
    try:
        with open(backend.file, "rb") as stream:
            magic = stream.read(4)
    except OSError as error:
        raise EncoderError(
            f"cannot read the encoder file {backend.file} ({error.strerror}); make it with "
            "`python -m tools.convert_encoder rknn`"
        ) from error
    if magic != b"RKNN":
        raise EncoderError(
            f"{backend.file} is not an .rknn file; make one with "
            "`python -m tools.convert_encoder rknn`"
        )


def _platforms(lite: Any, file: str) -> list[str]:
    """SoCs that a file was converted for, [] if RKNNLite cannot tell."""
    try:
        return [str(name) for name in lite.list_support_target_platform(file).popitem()[1]]
    except Exception:
        return []


def _runtime_version(lite: Any) -> str:
    """Versions of the runtime library and the driver, on one line."""
    text = str(_call([], lite.get_sdk_version) or "")
    words = [line.strip().strip("=") for line in text.splitlines() if ": " in line]
    return ", ".join(words) or "of unknown version"


def _cores_text(cores: str) -> str:
    if cores in ("auto", "all"):
        return "any core" if cores == "auto" else "all cores"
    numbers = cores.split("_")
    return f"core {cores}" if len(numbers) == 1 else f"cores {', '.join(numbers)}"


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)

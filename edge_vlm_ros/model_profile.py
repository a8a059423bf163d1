"""Model profile: one YAML file that says all about a vision-language model that is not weights.

Files, preprocessing, the text wrapped around frames and questions, and sensible limits. Paths in
the YAML are relative to the folder of the YAML itself.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from .history import Grid


class ProfileError(ValueError):
    """A model profile, or a file it names, that cannot be used. Names file, field and remedy."""


def _resolved(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str) and value and info.context:
        # Not Path.resolve(): a link keeps its name, which says more than the blob it leads to.
        return Path(os.path.normpath(info.context["folder"] / Path(value).expanduser()))
    return value


ProfilePath = Annotated[Path, BeforeValidator(_resolved)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
NonEmpty = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(ge=1)]
PerChannel = tuple[float, float, float]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LanguageProfile(_Part):
    """The language model: a GGUF file and the number of positions it was trained on."""

    file: ProfilePath
    sha256: Sha256 | None = None
    context_tokens: Positive


class OnnxBackend(_Part):
    """ONNX Runtime on the CPU or an NVIDIA GPU. ``input`` and ``output`` name float32 tensors."""

    type: Literal["onnx"]
    file: ProfilePath
    sha256: Sha256 | None = None
    provider: Literal["cpu", "cuda"] = "cpu"
    input: NonEmpty
    output: NonEmpty
    layout: Literal["nchw", "nhwc"] = "nchw"


class QnnBackend(_Part):
    """ONNX Runtime with Qualcomm's NPU (HTP): a quantised (QDQ) ONNX file with float32 tensors
    [1, 3, height, width] and [1, n_tokens, n_embd].

    ``soc_model`` and ``htp_arch`` as the vendor numbers them; 35 and 68 are the QCS6490.
    """

    type: Literal["qnn"]
    file: ProfilePath
    sha256: Sha256 | None = None
    input: NonEmpty
    output: NonEmpty
    soc_model: Positive = 35
    htp_arch: Positive = 68


class RknnBackend(_Part):
    """The NPU of Rockchip SoCs: a .rknn file that takes uint8 RGB [1, height, width, 3] and knows
    mean and std itself.

    ``core_mask`` says which NPU cores one context uses. With ``contexts`` above 1 frames are
    encoded side by side, context n on core n alone.
    """

    type: Literal["rknn"]
    file: ProfilePath
    sha256: Sha256 | None = None
    core_mask: Literal["auto", "0", "1", "2", "0_1", "0_1_2", "all"] = "auto"
    contexts: int = Field(default=1, ge=1, le=3)

    @model_validator(mode="after")
    def _contexts_have_a_core_each(self) -> RknnBackend:
        if self.contexts > 1 and self.core_mask != "auto":
            raise ValueError(
                f"{self.contexts} contexts have a core each; leave core_mask at auto, not "
                f"{self.core_mask}"
            )
        return self


class MtmdBackend(_Part):
    """A projector file (mmproj GGUF) that llama.cpp's multimodal library runs on ``device``, with
    its own preprocessing of the resized frame: scale, mean and std of the profile are not used."""

    type: Literal["mtmd"]
    file: ProfilePath
    sha256: Sha256 | None = None
    device: NonEmpty = "cpu"


EncoderBackend = Annotated[
    OnnxBackend | QnnBackend | RknnBackend | MtmdBackend, Field(discriminator="type")
]


class EncoderProfile(_Part):
    """The vision encoder and how camera pixels become its input.

    ``backends`` are tried in this order: the first that starts here and passes the self-test
    against ``reference`` is used. An input value is ``(pixel * scale - mean) / std``, per channel
    in RGB order. ``size`` is (height, width) in pixels. ``grid`` says how the tokens lie, [rows,
    columns] or [rows, columns, before, after] with tokens like text around them: for language
    models with M-RoPE (Qwen2-VL, Qwen2.5-VL, Qwen3-VL), and only for them.
    """

    backends: tuple[EncoderBackend, ...] = Field(min_length=1)
    size: tuple[Positive, Positive]
    resize: Literal["stretch", "center_crop", "pad"]
    pad_value: int = Field(default=0, ge=0, le=255)
    scale: float = Field(default=1.0 / 255.0, gt=0)
    mean: PerChannel = (0.0, 0.0, 0.0)
    std: tuple[
        Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]
    ] = (1.0, 1.0, 1.0)
    n_tokens: Positive
    n_embd: Positive
    grid: Grid | None = None
    reference: ProfilePath | None = None

    @model_validator(mode="after")
    def _grid_has_all_tokens(self) -> EncoderProfile:
        if self.grid is None:
            return self
        if min(self.grid.rows, self.grid.columns) < 1 or min(self.grid) < 0:
            raise ValueError(f"grid {list(self.grid)}: rows and columns must be at least 1")
        if self.grid.n_tokens != self.n_tokens:
            raise ValueError(
                f"grid {list(self.grid)} has {self.grid.n_tokens} tokens, n_tokens says "
                f"{self.n_tokens}"
            )
        return self


class TemplateProfile(_Part):
    """The text around frames and turns. A stream always stands inside an open user turn.

    ``open`` starts a history; a frame is ``frame_prefix`` + image tokens + ``frame_suffix``; a
    question is followed by ``ask``, a committed answer by ``close``. An answer ends at any of
    ``stop_tokens``, each the text of one token.
    """

    open: str
    frame_prefix: str
    frame_suffix: str
    ask: NonEmpty
    close: NonEmpty
    stop_tokens: tuple[NonEmpty, ...] = Field(min_length=1)


class HistoryProfile(_Part):
    """How much a stream remembers.

    At ``max_frames`` frames the oldest are dropped until ``keep_frames`` are left, and of the
    committed turns the newest ``max_turns``.
    """

    max_frames: Positive
    keep_frames: Positive
    max_turns: int = Field(ge=0)

    @model_validator(mode="after")
    def _keeps_fewer_than_it_holds(self) -> HistoryProfile:
        if self.keep_frames >= self.max_frames:
            raise ValueError(
                f"keep_frames ({self.keep_frames}) must be less than max_frames "
                f"({self.max_frames}); the rest is what one drop makes room for"
            )
        return self


class SourceProfile(_Part):
    """Where files of the model are published: a Hugging Face repository, or the web address of
    another folder, and the names they have there."""

    repository: NonEmpty
    files: tuple[NonEmpty, ...] = Field(min_length=1)


class ModelProfile(_Part):
    """Everything the package knows about one model; see ``load_profile``."""

    name: NonEmpty
    description: str = ""
    sources: tuple[SourceProfile, ...] = ()
    language: LanguageProfile
    encoder: EncoderProfile
    template: TemplateProfile
    history: HistoryProfile

    @model_validator(mode="after")
    def _frames_fit_the_context(self) -> ModelProfile:
        needed = self.history.max_frames * self.encoder.n_tokens
        if needed >= self.language.context_tokens:
            raise ValueError(
                f"history.max_frames ({self.history.max_frames}) frames of encoder.n_tokens "
                f"({self.encoder.n_tokens}) need {needed} tokens, but language.context_tokens is "
                f"{self.language.context_tokens}; lower max_frames"
            )
        return self


def load_profile(path: str | Path) -> ModelProfile:
    """Read a model profile.

    The files it names need not exist yet; see ``verify_files``.

    Args:
        path: the YAML file.

    Returns:
        The frozen profile, its paths absolute.

    Raises:
        ProfileError: unreadable file, YAML that does not parse, or a wrong, missing or unknown
            field. All wrong fields are named.
    """
    path = Path(path)
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(
            f"cannot read the model profile {path}: {error}; give the path of a profile YAML, "
            "for example config/models/demo.yaml"
        ) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ProfileError(f"{path} is not valid YAML: {error}; correct it there") from error
    if not isinstance(document, dict):
        raise ProfileError(
            f"{path} is not a model profile: it must be a mapping with name, language, encoder, "
            "template and history; start from config/models/demo.yaml"
        )
    try:
        return ModelProfile.model_validate(document, context={"folder": path.absolute().parent})
    except ValidationError as error:
        lines = "\n".join(explain(error))
        raise ProfileError(f"model profile {path} cannot be used:\n{lines}") from error


def verify_files(profile: ModelProfile) -> None:
    """Check that every file of a profile exists and has the digest that the profile states.

    Raises:
        ProfileError: a missing file or a wrong SHA-256, with the field that names it.
    """
    for field, path, expected in _files(profile):
        if not path.is_file():
            raise ProfileError(
                f"model {profile.name!r}: {field} names {path}, which is not a file; put it there "
                "or correct the path (paths are relative to the profile's folder)"
            )
        if expected is None:
            continue
        actual = sha256_file(path)
        if actual != expected:
            raise ProfileError(
                f"model {profile.name!r}: {path} has SHA-256 {actual}, but "
                f"{field.rpartition('.')[0]}.sha256 says {expected}; the file is damaged or "
                "another version: fetch it again, or correct the digest if the new file is meant"
            )


def _files(profile: ModelProfile) -> Iterator[tuple[str, Path, str | None]]:
    """Field, path and digest of the files that must be there. Which encoder files are needed is
    known when the backends are tried, so the missing files of all but the last are left out."""
    yield "language.file", profile.language.file, profile.language.sha256
    backends = profile.encoder.backends
    for index, backend in enumerate(backends):
        if index == len(backends) - 1 or backend.file.is_file():
            yield f"encoder.backends.{index}.file", backend.file, backend.sha256
    if profile.encoder.reference is not None:
        yield "encoder.reference", profile.encoder.reference, None


def template_identity(profile: ModelProfile) -> bytes:
    """32-byte digest of all text the template puts into a history.

    Stop tokens are left out: they end an answer but never change what a history computes.
    """
    template = profile.template
    parts = (
        ("open", template.open),
        ("frame_prefix", template.frame_prefix),
        ("frame_suffix", template.frame_suffix),
        ("ask", template.ask),
        ("close", template.close),
    )
    digest = hashlib.blake2b(b"edge_vlm_ros template 1", digest_size=32)
    for name, text in parts:
        encoded = text.encode("utf-8")
        digest.update(f"{name}:{len(encoded)}:".encode("ascii"))
        digest.update(encoded)
    return digest.digest()


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in lower-case hexadecimal.

    Raises:
        ProfileError: the file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error}; check the path and its rights") from error
    return digest.hexdigest()


def explain(error: ValidationError) -> Iterator[str]:
    """A line for each wrong field of a file: which, what it is, and what to do."""
    for problem in error.errors():
        field = ".".join(str(part) for part in problem["loc"]) or "profile"
        if problem["type"] == "missing":
            yield f"  {field}: is missing; add it"
        elif problem["type"] == "extra_forbidden":
            yield f"  {field}: is not a known field; remove it or correct its spelling"
        elif problem["type"] == "value_error":
            yield f"  {field}: {problem['ctx']['error']}"
        elif problem["type"] in ("model_type", "dict_type"):
            yield f"  {field}: is {problem['input']!r}; it must be a mapping of fields"
        else:
            expected = problem["msg"].replace("Input should", "it must", 1)
            yield f"  {field}: is {problem['input']!r}; {expected[:1].lower()}{expected[1:]}; " + (
                "correct the value"
            )

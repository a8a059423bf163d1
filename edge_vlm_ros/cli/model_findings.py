"""What `model check` finds out about a profile's files, header, template and encoders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import llama_cpp.llama_cpp as llama

from edge_vlm_ros.engines import native_log
from edge_vlm_ros.engines.config import KvType
from edge_vlm_ros.engines.model import BATCH_INVARIANT_FTYPES, LlamaModel
from edge_vlm_ros.gguf_file import GgufError, GgufFile
from edge_vlm_ros.model_profile import (
    EncoderBackend,
    ModelProfile,
    ProfileError,
    SourceProfile,
    sha256_file,
)
from edge_vlm_ros.vision.errors import EncoderError
from edge_vlm_ros.vision.opening import OpenedEncoder, open_encoder

Outcome = Literal["ok", "note", "PROBLEM"]

_MARKUP = re.compile(r"<[^<>\s]+>")
_FTYPE_NAMES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    32: "BF16",
}
_Q8_BLOCK = 32


@dataclass(frozen=True)
class Finding:
    """``note`` is worth knowing, with ``PROBLEM`` the model cannot run here."""

    outcome: Outcome
    subject: str
    text: str


def ok(subject: str, text: str) -> Finding:
    return Finding("ok", subject, text)


def note(subject: str, text: str) -> Finding:
    return Finding("note", subject, text)


def problem(subject: str, text: str) -> Finding:
    return Finding("PROBLEM", subject, text)


# -------------------------------------------------------------------------------- files
def check_files(profile: ModelProfile) -> Iterator[Finding]:
    """The language file must be there, and one file of the encoder's backends."""
    language = profile.language
    yield _check_file(profile, "language", language.file, language.sha256, needed=True)
    backends = profile.encoder.backends
    any_there = any(backend.file.is_file() for backend in backends)
    for index, backend in enumerate(backends):
        subject = f"encoder {index + 1}, {backend.type}"
        # Without any file, the one that runs on every machine is asked for: the last.
        needed = not any_there and index == len(backends) - 1
        yield _check_file(profile, subject, backend.file, backend.sha256, needed=needed)
    reference = profile.encoder.reference
    if reference is None:
        yield note(
            "reference",
            "none: the encoder's self-test looks for inf and nan only. To make one: python -m "
            "tools.make_encoder_reference PROFILE.yaml PICTURE.png --out FILE",
        )
    else:
        yield _check_file(profile, "reference", reference, None, needed=True)


def _check_file(
    profile: ModelProfile, subject: str, path: Path, digest: str | None, *, needed: bool
) -> Finding:
    if not path.is_file():
        text = f"there is no file {path}. {_how_to_get(profile, path)}"
        return problem(subject, text) if needed else note(subject, text)
    size = f"{path}, {path.stat().st_size / 1e6:.1f} MB"
    if digest is None:
        return ok(subject, f"{size}; the profile states no digest")
    try:
        actual = sha256_file(path)
    except ProfileError as error:
        return problem(subject, str(error))
    if actual != digest:
        return problem(
            subject,
            f"{path} has SHA-256 {actual}, the profile says {digest}: fetch it again, or correct "
            "the digest if another version is meant",
        )
    return ok(subject, f"{size}, SHA-256 as stated")


def _how_to_get(profile: ModelProfile, path: Path) -> str:
    if _source(profile, path) is not None:
        return "Fetch it, see below"
    if path == profile.encoder.reference:
        return (
            "Make it where the encoder is right: python -m tools.make_encoder_reference "
            "PROFILE.yaml PICTURE.png"
        )
    if path.suffix in (".rknn", ".onnx"):
        return "It is made from the model's encoder: docs/models.md, converting an encoder"
    return "Put it there, or correct the path (relative paths begin at the profile's folder)"


def _source(profile: ModelProfile, path: Path) -> SourceProfile | None:
    return next((source for source in profile.sources if path.name in source.files), None)


def fetch_commands(profile: ModelProfile) -> tuple[str, ...]:
    """Commands that bring the files that are missing here and published to their places."""
    wanted = [profile.language.file, *(backend.file for backend in profile.encoder.backends)]
    commands: dict[tuple[str, Path], list[str]] = {}
    for path in wanted:
        source = _source(profile, path)
        if source is not None and not path.is_file():
            names = commands.setdefault((source.repository, path.parent), [])
            names += [path.name] if path.name not in names else []
    return tuple(_command(*place, names) for place, names in commands.items())


def _command(repository: str, folder: Path, names: Sequence[str]) -> str:
    if "://" in repository:
        urls = " ".join(f"{repository.rstrip('/')}/{name}" for name in names)
        return f"curl -L --create-dirs --output-dir {folder} --remote-name-all {urls}"
    return f"hf download {repository} {' '.join(names)} --local-dir {folder}"


# ----------------------------------------------------------------------------- language
def check_header(profile: ModelProfile) -> Iterator[Finding]:
    """The language file's header against the profile."""
    try:
        header = GgufFile(profile.language.file)
    except GgufError as error:
        yield problem("GGUF header", str(error))
        return
    if header.architecture == "clip":
        yield problem(
            "GGUF header",
            f"{header.path.name} is a projector (mmproj), not a language model: exchange the files",
        )
        return
    yield ok("GGUF header", f"{header.architecture}, {header.n_tensors} tensors, file complete")
    yield _check_weights(header)
    yield _check_context(profile, header)
    yield _check_width(profile, header)


def _check_weights(header: GgufFile) -> Finding:
    ftype = header.number("general.file_type")
    if ftype is None:
        return note("weights", "the header does not say of which type the weights are")
    name = _FTYPE_NAMES.get(ftype, f"type {ftype}")
    if ftype in BATCH_INVARIANT_FTYPES:
        return ok("weights", f"{name}: with kv_type q8_0 answers are bit-equal to their reference")
    return note(
        "weights",
        f"{name}: answers may differ from their serial reference by rounding and are decoded one "
        "at a time unless engine.NAME.exact is false; Q8_0 and Q4_0 files are exact in batches",
    )


def _check_context(profile: ModelProfile, header: GgufFile) -> Finding:
    says, has = profile.language.context_tokens, header.of_architecture("context_length")
    if has is not None and says > has:
        return problem(
            "context",
            f"language.context_tokens is {says}, the file was trained on {has}: lower it",
        )
    trained = "" if has is None else f", the file was trained on {has}"
    return ok("context", f"{says} tokens{trained}")


def _check_width(profile: ModelProfile, header: GgufFile) -> Finding:
    says, has = profile.encoder.n_embd, header.of_architecture("embedding_length")
    if has is not None:  # with deepstack a frame has values for further layers too
        has *= 1 + (header.of_architecture("n_deepstack_layers") or 0)
    if has is not None and says != has:
        return problem(
            "embeddings",
            f"encoder.n_embd is {says}, the language model takes {has}: correct it, or the files "
            "do not belong together",
        )
    return ok("embeddings", f"{profile.encoder.n_tokens} a frame, each {says} wide")


def check_geometry(model: LlamaModel, kv_type: KvType) -> Iterator[Finding]:
    """Whether the KV cache can have this type."""
    odd = [dim for dim in model.head_dims if dim % _Q8_BLOCK]
    if kv_type == "q8_0" and odd:
        yield problem(
            "KV cache",
            f"heads of {model.head_dims} values cannot be stored as q8_0, which has blocks of 32: "
            "set engine.NAME.kv_type: f16",
        )


# ----------------------------------------------------------------------------- template
def check_template(profile: ModelProfile, model: LlamaModel) -> Iterator[Finding]:
    """Whether the vocabulary knows what the template is made of."""
    template = profile.template
    pieces = {
        "open": template.open,
        "frame_prefix": template.frame_prefix,
        "frame_suffix": template.frame_suffix,
        "ask": template.ask,
        "close": template.close,
    }
    for name, text in pieces.items():
        split = [mark for mark in _MARKUP.findall(text) if _n_tokens(model, mark) != 1]
        if split:
            yield problem(
                f"template.{name}",
                f"{', '.join(split)}: not one token of this vocabulary, so the model would read it "
                "as plain text; the template belongs to another model",
            )
    counts = ", ".join(f"{name} {_n_tokens(model, text)}" for name, text in pieces.items())
    yield ok("template", f"tokens: {counts}")
    yield from _check_stops(profile, model)
    yield from _check_bos(template.open, model)


def _n_tokens(model: LlamaModel, text: str) -> int:
    return len(model.tokenize(text, parse_special=True))


def _check_stops(profile: ModelProfile, model: LlamaModel) -> Iterator[Finding]:
    for name in profile.template.stop_tokens:
        try:
            token = model.special_token(name)
        except ValueError as error:
            yield problem("stop token", f"{error}: an answer would never end there")
            continue
        if model.is_end(token):
            yield ok("stop token", f"{name} is token {token}")
        else:
            yield note("stop token", f"{name} is token {token}, no end of turn in the file's eyes")


def _check_bos(opening: str, model: LlamaModel) -> Iterator[Finding]:
    if not llama.llama_vocab_get_add_bos(model.vocab):
        return
    bos = llama.llama_vocab_bos(model.vocab)
    if model.tokenize(opening, parse_special=True)[:1] != (bos,):
        yield note(
            "template.open",
            f"the file asks for a beginning-of-text token (number {bos}) and template.open does "
            "not begin with it: put its text there if the model's own prompt has one",
        )


# ------------------------------------------------------------------------------ encoders
@dataclass(frozen=True)
class UsedEncoder:
    """The backend that the node would use, and its encoders, open."""

    backend: EncoderBackend
    opened: OpenedEncoder


def check_encoders(
    profile: ModelProfile, threads: int
) -> tuple[tuple[Finding, ...], UsedEncoder | None]:
    """Try every backend by itself; the first that starts and passes its self-test is used."""
    native_log.install()  # an encoder may load a vocabulary before any engine
    findings: list[Finding] = []
    used: UsedEncoder | None = None
    for index, backend in enumerate(profile.encoder.backends):
        subject = f"encoder {index + 1}, {backend.type}"
        if not backend.file.is_file():
            findings.append(note(subject, "not tried: its file is missing"))
            continue
        try:
            opened = _open_alone(profile, backend, threads)
        except EncoderError as error:
            findings.append(note(subject, f"is not used here: {error}"))
            continue
        told = f"{opened.encoders[0].backend}: {opened.self_test.message}"
        findings.append(ok(subject, told))
        if used is None:
            used = UsedEncoder(backend, opened)
        else:
            opened.close()
    if used is None:
        findings.append(problem("encoder", "none of the backends starts here and computes right"))
    return tuple(findings), used


def _open_alone(profile: ModelProfile, backend: EncoderBackend, threads: int) -> OpenedEncoder:
    alone = profile.encoder.model_copy(update={"backends": (backend,)})
    try:
        return open_encoder(alone, threads=threads, language=profile.language.file)
    except EncoderError as error:
        # With one backend the reason is all that is of interest.
        reason = str(error).partition(" is not used: ")[2]
        raise EncoderError(reason or str(error)) from error

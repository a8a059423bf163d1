"""The identity of an encoder: equal identities give equal embeddings for equal pixels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from ..model_profile import EncoderBackend, EncoderProfile, ProfileError, sha256_file
from .errors import EncoderError

_SHAPING = {"size", "resize", "pad_value", "scale", "mean", "std", "n_tokens", "n_embd"}


def encoder_identity(
    profile: EncoderProfile, backend: EncoderBackend, settings: Mapping[str, str | int]
) -> bytes:
    """32-byte digest of the file, the preprocessing, the backend's fields and ``settings`` (what
    else decides the output: the runtime's version and the like).

    Raises EncoderError when the file cannot be read.
    """
    try:
        file_digest = sha256_file(backend.file)
    except ProfileError as error:
        raise EncoderError(str(error)) from error
    parts = {
        "file": file_digest,
        "preprocessing": profile.model_dump(mode="json", include=_SHAPING),
        "backend": backend.model_dump(mode="json", exclude={"file", "sha256"}),
        "settings": dict(settings),
    }
    text = json.dumps(parts, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8"), digest_size=32).digest()

"""What all encoders of a model profile have in common."""

from __future__ import annotations

from ..model_profile import EncoderProfile


class ProfiledEncoder:
    """The values of the ``Encoder`` protocol that are known before a frame is encoded."""

    _profile: EncoderProfile
    _identity: bytes
    _backend: str

    @property
    def identity(self) -> bytes:
        """32-byte digest of the file, its preprocessing and the runtime's version."""
        return self._identity

    @property
    def input_size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self._profile.size

    @property
    def n_tokens(self) -> int:
        """Rows of the embeddings."""
        return self._profile.n_tokens

    @property
    def n_embd(self) -> int:
        """Columns of the embeddings."""
        return self._profile.n_embd

    @property
    def backend(self) -> str:
        """What runs the encoder, for people."""
        return self._backend

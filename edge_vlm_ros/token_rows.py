"""What the layers of a language model get for a token: its row of the embedding matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .gguf_file import GgufError, GgufFile

# Their graphs treat tokens and embeddings differently: tokens are scaled, or take other weights.
_OTHER_FOR_TOKENS = ("cogvlm", "gemma-embedding", "gemma3", "gemma3n", "gemma4")


def token_rows(file: GgufFile, tokens: Sequence[int], n_columns: int) -> npt.NDArray[np.float32]:
    """Embeddings that llama.cpp computes like ``tokens``, float32 [len(tokens), n_columns].

    ``n_columns`` is what a row of a frame has. In models with deepstack that is more than a token
    has: where an image has what is added after further layers, a token has zeros.

    Raises GgufError when an embedding would not be computed like its token, or is not in the file.
    """
    if tokens and file.architecture in _OTHER_FOR_TOKENS:
        raise GgufError(
            f"model {file.path.name}: {file.architecture} computes tokens otherwise than "
            "embeddings, so the tokens around its images cannot be part of a frame"
        )
    rows = file.rows("token_embd.weight", tokens)
    return np.pad(rows, ((0, 0), (0, n_columns - rows.shape[1])))

"""From camera pixels to projected embeddings: encoders, embedding cache, gates and the worker."""

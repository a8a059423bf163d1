"""What has been moved between engines and host memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TransferCounts:
    """Counted since start; sizes in bytes and tokens."""

    full_imports: int = 0
    delta_imports: int = 0
    failed_imports: int = 0
    exported_bytes: int = 0
    imported_bytes: int = 0
    replayed_tokens: int = 0
    evicted_trunks: int = 0

"""Where the package's shared files are: installed, or in the source tree."""

from __future__ import annotations

from pathlib import Path


def share_directory() -> Path:
    """The folder with ``config`` and ``models``."""
    source = Path(__file__).resolve().parents[2]
    if (source / "package.xml").is_file() and (source / "config").is_dir():
        return source
    from ament_index_python.packages import get_package_share_directory

    return Path(get_package_share_directory("edge_vlm_ros"))


def find_model_profile(name: str) -> Path:
    """The file of a model profile.

    ``name`` is empty (the demo model), the name of a file in config/models without its ending, a
    path relative to the package's share folder, or any other path. Raises FileNotFoundError.
    """
    wanted = Path(name or "demo").expanduser()
    share = share_directory()
    candidates = [
        share / "config" / "models" / wanted.with_name(wanted.name + ".yaml"),
        share / wanted,
        wanted,
    ]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    known = ", ".join(sorted(path.stem for path in (share / "config" / "models").glob("*.yaml")))
    raise FileNotFoundError(
        f"model_profile {name!r} is neither a file nor one of the profiles in "
        f"{share / 'config' / 'models'}: {known}"
    )

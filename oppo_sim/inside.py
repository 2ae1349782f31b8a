"""Files of a folder that somebody else may have made."""

from pathlib import Path

from oppo_sim.errors import OppoError


def file_inside(root: Path, name: str) -> Path:
    """``root / name``, which is a file of the folder itself, or missing.

    Raises OppoError for a link that leads out of the folder, whose contents nobody named, and for what is no
    file, such as a pipe, which would be waited for.
    """
    path = root / name
    try:
        inside = path.resolve().is_relative_to(root.resolve())
    except (OSError, ValueError, RuntimeError) as error:  # links in a circle, a name with a NUL byte
        raise OppoError(f"{str(path)!r} cannot be a file of {root} ({error}): name another folder") from None
    if not inside:
        raise OppoError(
            f"{path} is a link out of the folder and is not read: put a copy of the file in its place"
        )
    if path.exists() and not path.is_file():
        raise OppoError(f"{path} is no plain file and is not read: put the file in its place")
    return path

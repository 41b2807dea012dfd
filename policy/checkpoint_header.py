"""What a checkpoint says of itself, read without its weights and without PyTorch."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from ttm.policy.errors import UserError, first_line
from ttm.policy.spec import PolicySpec

FORMAT = "1"


def read_header(path: Path | str) -> dict[str, str]:
    """Return the metadata of a checkpoint; see `ttm.policy.run.checkpoint`.

    Raises `UserError` if the file is missing, truncated, or no checkpoint of this version.
    """
    if not Path(path).is_file():
        raise UserError(
            f"{path}: no such checkpoint; give the .safetensors file that `ttm train` wrote"
        )
    try:
        with safe_open(str(path), framework="numpy") as file:
            header = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path}: not a whole safetensors file ({first_line(error)}); copy it again, or train anew"
        ) from error
    version = header.get("ttm_format")
    if version is None:
        raise UserError(
            f"{path}: a safetensors file, but not a policy; give one that `ttm train` wrote"
        )
    if version != FORMAT:
        raise UserError(
            f"{path}: checkpoint format {version}, this version reads {FORMAT}; update or train anew"
        )
    return dict(header)


def read_checkpoint_spec(path: Path | str) -> PolicySpec:
    """Return what a checkpoint's policy observes and commands. Raises `UserError` as `read_header`."""
    header = read_header(path)
    try:
        return PolicySpec.from_json(header["spec"])
    except (KeyError, UserError) as error:
        raise UserError(f"{path}: {misfit(error)}") from error


def misfit(error: Exception) -> str:
    """Return what is said of a checkpoint whose content is not as expected."""
    return (
        f"this checkpoint was written by another version or is damaged ({first_line(error)}); "
        "train it again with this version"
    )

"""Snapshots of the hub's repositories, and whose fault it is when one cannot be had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcrl.config.seam import HpcrlError, InfrastructureError, UserError

REFUSALS = (401, 403, 404)
"""Answers of the hub that another attempt will not change."""


def snapshot(repo_id: str, where: str, **options: Any) -> Path:
    """The folder of a repository in the hub's cache, downloaded if need be.

    Args:
        where: the config key that names the repository, for messages.
        **options: of `huggingface_hub.snapshot_download` (repo_type, revision, allow_patterns, local_files_only).

    Raises:
        UserError: not a hub id; unknown, gated or private; not in the cache while the hub is switched off.
        InfrastructureError: the hub is out of reach, overloaded or broken.
    """
    from huggingface_hub import errors, snapshot_download

    client_error: type[Exception] = errors.HfHubHTTPError.__bases__[0]  # of the HTTP client, which has changed its name
    try:
        return Path(snapshot_download(repo_id, **options))
    except errors.HFValidationError as error:
        raise UserError(f"{where}: {repo_id} is neither a folder nor a hub id: {error}") from error
    except (errors.LocalEntryNotFoundError, client_error, ConnectionError, TimeoutError) as error:
        raise _verdict(error, repo_id, where, options) from error


def _verdict(error: BaseException, repo_id: str, where: str, options: dict[str, Any]) -> HpcrlError:
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    cause = error.__cause__ or error if isinstance(error, LocalEntryNotFoundError) else error
    first = (str(cause) or type(cause).__name__).splitlines()[0]
    kind = "--repo-type dataset " if options.get("repo_type") == "dataset" else ""
    if isinstance(cause, OfflineModeIsEnabled) or options.get("local_files_only"):
        return UserError(
            f"{where}: {repo_id} is neither a local folder nor in the hub's cache, and the hub is offline. Fetch it"
            f" where there is internet (hf download {kind}{repo_id}) into the HF_HOME of this machine, or give a folder"
        )
    if isinstance(cause, GatedRepoError):
        return UserError(f"{where}: {repo_id} is gated: accept its terms on the hub, and set HF_TOKEN")
    if isinstance(cause, HfHubHTTPError) and cause.response.status_code in REFUSALS:
        return UserError(f"{where}: the hub has no {repo_id}, or it is private and HF_TOKEN may not read it ({first})")
    return InfrastructureError(f"{where}: {repo_id} could not be had from the hub: {first}")

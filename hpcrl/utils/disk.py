"""A full disk, whatever an error on its way made of it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from hpcrl.config.seam import NoSpaceError


def disk_is_full(error: BaseException) -> bool:
    """Whether a full disk, or quota, is what an error came from."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        cause = waiting.pop()
        if cause is None or cause in seen:
            continue
        seen.append(cause)
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        waiting += [cause.__cause__, cause.__context__]
        # torch.distributed.checkpoint gathers the errors of all ranks: {rank: (error, traceback)}
        waiting += [failure[0] for failure in getattr(cause, "failures", {}).values()]
    return False


@contextmanager
def naming_full_disks() -> Iterator[None]:
    """Turn what a full disk made of the block's work into a NoSpaceError, which survives the way between processes."""
    try:
        yield
    except Exception as error:
        if disk_is_full(error):
            raise NoSpaceError(f"no space left: {error}; free some and `resume`") from error
        raise

"""A time limit on a call, in whatever thread the caller runs."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

GRACE = 1.0
"""Seconds that a call over its limit is given to end once it has been told to."""


class _TimeIsUp(BaseException):
    """Raised inside a call that is over its limit; no `except Exception` there holds it up."""


def call_within(seconds: float | None, function: Callable[[], Any]) -> Any:
    """The value of `function()`, or TimeoutError after `seconds`; None: no limit.

    An alarm signal would reach the main thread alone, so the call runs in a thread of its own and has an exception
    raised in it when its time is up. That ends it at its next Python instruction; a call that hangs inside native
    code goes on in the background, and nobody waits for it.
    """
    if seconds is None:
        return function()
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            outcome["value"] = function()
        except _TimeIsUp:
            pass
        except Exception as error:  # noqa: BLE001 - raised in the caller below
            outcome["error"] = error

    thread = threading.Thread(target=work, name="score", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_TimeIsUp))
        thread.join(GRACE)
        raise TimeoutError(f"no score within {seconds:g} seconds")
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]

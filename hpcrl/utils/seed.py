"""Randomness keyed by what is computed, never by global state, so that a trajectory can be made again."""

from __future__ import annotations

import hashlib

import numpy as np


def stable_key(*parts: str | int) -> int:
    """A 128-bit key of the parts; equal parts give equal keys on every machine and in every process."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def turn_key(seed: int, step: int, uid: str, sample: int, turn: int) -> int:
    """The key of one assistant turn of one trajectory."""
    return stable_key("turn", seed, step, uid, sample, turn)


def generator(key: int) -> np.random.Generator:
    """A counter-based generator of the key."""
    return np.random.Generator(np.random.Philox(key=key))

"""Score functions, one file each, chosen by a row's data_source."""

from hpcrl.utils.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "default_compute_score": "hpcrl.rewards.registry",
        "find_score_function": "hpcrl.rewards.registry",
        "register_score_function": "hpcrl.rewards.registry",
    },
)

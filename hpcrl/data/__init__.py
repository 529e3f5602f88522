"""Prompts: from sources to parquet, and from parquet to batches."""

from hpcrl.utils.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "split_files": "hpcrl.data.layout",
        "PromptDataset": "hpcrl.data.dataset",
        "ResumableLoader": "hpcrl.data.loader",
        "sequential_batches": "hpcrl.data.loader",
        "SFTDataset": "hpcrl.data.sft",
        "truncate_tokens": "hpcrl.data.lengths",
    },
)

"""Deep checks, as the first act of a stage: what needs imports, a tokenizer or rows, said before workers start."""

from __future__ import annotations

from itertools import islice

from hpcrl.data.dataset import PromptDataset
from hpcrl.data.tool_schemas import tool_schemas
from hpcrl.stage import StageJob
from hpcrl.tools import check_tools
from hpcrl.trainer.ppo.reward import check_reward
from hpcrl.utils.chat import check_template
from hpcrl.utils.run import load_run_tokenizer, train_files, val_files

SAMPLED_ROWS = 100


def check_sampling(job: StageJob) -> None:
    """Tools and chat template.

    Raises:
        UserError: with what to change.
    """
    config = job.config
    check_tools(config)
    tokenizer = load_run_tokenizer(job.folder, config)
    check_template(tokenizer, tool_schemas(config), config.data.apply_chat_template_kwargs)


def check_training(job: StageJob) -> None:
    """Tools, chat template, and the score functions of sampled rows; raises UserError with what to change."""
    check_sampling(job)
    for files in (train_files(job.folder, job.config), val_files(job.folder, job.config)):
        if files:
            rows = PromptDataset(files, job.config.data, tokenizer=None)
            sampled = (rows[i] for i in range(len(rows)))
            check_reward(job.config, sorted({row["data_source"] for row in islice(sampled, SAMPLED_ROWS)}))

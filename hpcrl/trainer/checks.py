"""Deep checks, as the first act of a stage: what needs imports, a tokenizer or rows, said before workers start."""

from __future__ import annotations

from itertools import islice

from hpcrl.data.dataset import PromptDataset
from hpcrl.data.tool_schemas import tool_schemas
from hpcrl.stage import StageJob
from hpcrl.tools import check_tools
from hpcrl.trainer.ppo.reward import check_reward
from hpcrl.utils.run import load_run_tokenizer, prompt_files
from hpcrl.workers.rollout.chat import check_template

SAMPLED_ROWS = 100


def check_training(job: StageJob) -> None:
    """Tools, chat template, and the score functions of sampled rows.

    Raises:
        UserError: with what to change.
    """
    config = job.config
    check_tools(config)
    tokenizer = load_run_tokenizer(job.folder, config)
    check_template(tokenizer, tool_schemas(config), config.data.apply_chat_template_kwargs)
    files = prompt_files(job.folder, config)
    for split in (files.train, files.val):
        if split:
            rows = PromptDataset(split, config.data, tokenizer=None)
            sampled = (rows[i] for i in range(len(rows)))
            check_reward(config, sorted({row["data_source"] for row in islice(sampled, SAMPLED_ROWS)}))

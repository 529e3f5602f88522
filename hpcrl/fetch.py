"""The fetch stage: bring the model into the run folder, as a folder that every later stage loads."""

from __future__ import annotations

import logging
import sys

from hpcrl.config.seam import UserError
from hpcrl.stage import StageJob, stage_main

logger = logging.getLogger(__name__)


def run(job: StageJob) -> None:
    """Fetch `model.path` into stages/fetch/out/model; load its config and tokenizer once to see that they are whole.

    Raises:
        UserError: the model cannot be had, or cannot be loaded.
    """
    from transformers import AutoConfig

    from hpcrl.models.fetch import fetch_model, hide_progress_bars
    from hpcrl.utils.tokenizer import hf_tokenizer

    model = job.config.actor_rollout_ref.model
    if model.path is None:
        raise UserError("actor_rollout_ref.model.path: the fetch stage has nothing to fetch")
    out = job.out / "model"
    job.heartbeat("fetch")
    if not sys.stderr.isatty():
        hide_progress_bars()
    fetch_model(model.path, out, trust_remote_code=model.trust_remote_code)
    try:
        config = AutoConfig.from_pretrained(out, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"actor_rollout_ref.model.path: {model.path} cannot be loaded: {error}") from error
    tokenizer = hf_tokenizer(str(out), trust_remote_code=model.trust_remote_code)
    if tokenizer.chat_template is None:
        raise UserError(f"actor_rollout_ref.model.path: the tokenizer of {model.path} has no chat template")
    logger.info("fetched %s: %s, %d tokens, into %s", model.path, config.model_type, len(tokenizer), out)


if __name__ == "__main__":
    stage_main("fetch", run)

"""How prompts, samples, mini-batches, micro-batches and ranks divide: the numbers, their checks, their table."""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.config.schema import Config


@dataclass(frozen=True)
class Batches:
    """The sizes of one training step. Prompts and samples are named as such: samples = prompts x n."""

    prompts: int
    n: int
    mini_prompts: int
    micro_samples: int | None
    ranks: int
    ppo_epochs: int

    @classmethod
    def of(cls, config: Config) -> Batches:
        actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
        return cls(
            prompts=config.data.train_batch_size,
            n=rollout.n,
            mini_prompts=actor.ppo_mini_batch_size,
            micro_samples=None if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu,
            ranks=config.trainer.nnodes * config.trainer.n_gpus_per_node,
            ppo_epochs=actor.ppo_epochs,
        )

    @property
    def samples(self) -> int:
        return self.prompts * self.n

    @property
    def mini_samples(self) -> int:
        return self.mini_prompts * self.n

    def problems(self) -> list[str]:
        """What does not divide, one line each; every line names the options to change."""
        found = []
        if self.samples % self.ranks:
            found.append(
                f"data.train_batch_size x rollout.n = {self.prompts} x {self.n} = {self.samples} samples"
                f" do not divide by {self.ranks} ranks (trainer.nnodes x trainer.n_gpus_per_node)"
            )
        if self.prompts < self.mini_prompts:
            found.append(
                f"data.train_batch_size = {self.prompts} prompts is smaller than"
                f" actor.ppo_mini_batch_size = {self.mini_prompts} prompts"
            )
        elif self.prompts % self.mini_prompts:
            found.append(
                f"data.train_batch_size = {self.prompts} prompts does not divide by"
                f" actor.ppo_mini_batch_size = {self.mini_prompts} prompts"
            )
        if self.mini_samples % self.ranks:
            found.append(
                f"actor.ppo_mini_batch_size x rollout.n = {self.mini_prompts} x {self.n} = {self.mini_samples} samples"
                f" do not divide by {self.ranks} ranks"
            )
        elif self.micro_samples and (self.mini_samples // self.ranks) % self.micro_samples:
            found.append(
                f"a mini-batch's share of a rank, {self.mini_samples} / {self.ranks} ="
                f" {self.mini_samples // self.ranks} samples, does not divide by"
                f" actor.ppo_micro_batch_size_per_gpu = {self.micro_samples} samples"
            )
        return found


def batch_arithmetic(config: Config) -> str:
    """A short table of one training step's sizes, as it is logged once at the start and printed with errors."""
    sizes = Batches.of(config)
    trainer, actor = config.trainer, config.actor_rollout_ref.actor
    micro = (
        f"up to {actor.ppo_max_token_len_per_gpu} tokens (actor.use_dynamic_bsz)"
        if actor.use_dynamic_bsz
        else f"{sizes.micro_samples or '?'} samples (actor.ppo_micro_batch_size_per_gpu)"
    )
    step = f"{sizes.prompts} prompts x {sizes.n} = {sizes.samples} samples (data.train_batch_size x rollout.n)"
    mini = f"{sizes.mini_prompts} prompts x {sizes.n} = {sizes.mini_samples} samples"
    on_rank = (
        f"{_ratio(sizes.samples, sizes.ranks)} samples a step, {_ratio(sizes.mini_samples, sizes.ranks)} a mini-batch"
    )
    rows = {
        "step": step,
        "mini-batch": f"{mini} (actor.ppo_mini_batch_size x rollout.n)",
        "updates": f"{_ratio(sizes.prompts, sizes.mini_prompts)} mini-batches x {sizes.ppo_epochs} ppo_epochs",
        "ranks": f"{trainer.nnodes} nodes x {trainer.n_gpus_per_node} = {sizes.ranks}",
        "on one rank": on_rank,
        "micro-batch": micro,
    }
    return "\n".join(f"{name:<12}{text}" for name, text in rows.items())


def _ratio(total: int, parts: int) -> str:
    return f"{total} / {parts} = {total / parts:g}"

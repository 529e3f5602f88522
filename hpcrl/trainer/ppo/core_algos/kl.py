"""Estimators of the KL divergence against the reference policy, and the coefficient's controllers.

The estimators k1, k2, k3 are those of http://joschu.net/blog/kl-approx.html.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpcrl.trainer.ppo.core_algos.masked import masked_mean, option


def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kl_penalty: str) -> Tensor:
    """KL(policy ‖ reference) at sampled tokens, in nats.

    Args:
        logprob: log-probs of the policy (bs, response_length).
        ref_logprob: log-probs of the reference (bs, response_length).
        kl_penalty: kl or k1: log π/π_ref; abs: its absolute value; mse or k2: half its square; low_var_kl or k3:
            r - log r - 1 with r = π_ref/π, clamped to [-10, 10]. A `+` at the end keeps that value and takes the
            gradient of k2, which is unbiased for the KL (k3's own is not, and vanishes where k3 is clamped).

    Returns: (bs, response_length). Raises NotImplementedError for any other name.
    """
    value = _estimate(logprob, ref_logprob, kl_penalty.removesuffix("+"))
    if not kl_penalty.endswith("+"):
        return value
    k2 = 0.5 * (logprob - ref_logprob).square()
    return k2 - k2.detach() + value.detach()


def _estimate(logprob: Tensor, ref_logprob: Tensor, name: str) -> Tensor:
    log_ratio = logprob - ref_logprob
    if name in ("kl", "k1"):
        return log_ratio
    if name == "abs":
        return log_ratio.abs()
    if name in ("mse", "k2"):
        return 0.5 * log_ratio.square()
    if name in ("low_var_kl", "k3"):
        log_r = (-log_ratio).clamp(-20, 20)
        return (log_r.exp() - log_r - 1).clamp(-10, 10)
    raise NotImplementedError(f"Unknown KL estimator: {name}; known: kl, k1, abs, mse, k2, low_var_kl, k3, each with +")


class FixedKLController:
    """A coefficient that stays."""

    def __init__(self, kl_coef: float) -> None:
        self.value = kl_coef

    def update(self, current_kl: float, n_steps: int) -> None:
        """Nothing changes."""

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


class AdaptiveKLController:
    """A coefficient that follows a target KL (https://arxiv.org/abs/1909.08593, section 2.2)."""

    def __init__(self, init_kl_coef: float, target_kl: float, horizon: int) -> None:
        self.value = init_kl_coef
        self.target = target_kl
        self.horizon = horizon

    def update(self, current_kl: float, n_steps: int) -> None:
        """Move towards the target, by at most 20 % a horizon; `n_steps`: samples since the last update."""
        error = min(max(current_kl / self.target - 1, -0.2), 0.2)
        self.value *= 1 + error * n_steps / self.horizon

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


def get_kl_controller(kl_ctrl: Any) -> FixedKLController | AdaptiveKLController:
    """The controller of `algorithm.kl_ctrl` (type, kl_coef, target_kl, horizon)."""
    kind = option(kl_ctrl, "type", "fixed")
    if kind == "fixed":
        return FixedKLController(kl_coef=option(kl_ctrl, "kl_coef", 0.001))
    if kind == "adaptive":
        horizon = option(kl_ctrl, "horizon", 10_000)
        if horizon <= 0:
            raise ValueError(f"kl_ctrl.horizon must be greater than 0, and is {horizon}")
        return AdaptiveKLController(option(kl_ctrl, "kl_coef", 0.001), option(kl_ctrl, "target_kl", 0.1), horizon)
    raise NotImplementedError(f"Unknown kl_ctrl.type: {kind}; known: fixed, adaptive")


def compute_rewards(token_level_scores: Tensor, old_log_prob: Tensor, ref_log_prob: Tensor, kl_ratio: float) -> Tensor:
    """Scores less kl_ratio times the k1 estimate of the KL; all (bs, response_length)."""
    return token_level_scores - kl_ratio * (old_log_prob - ref_log_prob)


def apply_kl_in_reward(
    token_level_scores: Tensor,
    old_log_probs: Tensor,
    ref_log_prob: Tensor,
    response_mask: Tensor,
    kl_ctrl: FixedKLController | AdaptiveKLController,
    kl_penalty_name: str = "kl",
) -> tuple[Tensor, dict[str, float]]:
    """Token rewards with the KL penalty subtracted on the policy's own tokens; then the controller is updated.

    All tensors (bs, response_length). Returns (token_level_rewards, metrics).
    """
    kld = torch.where(response_mask.bool(), kl_penalty(old_log_probs, ref_log_prob, kl_penalty_name), 0.0)
    beta = kl_ctrl.value
    current = masked_mean(kld, response_mask, dim=-1).mean().item()
    kl_ctrl.update(current_kl=current, n_steps=token_level_scores.shape[0])
    metrics = {"actor/reward_kl_penalty": current, "actor/reward_kl_penalty_coeff": beta}
    return token_level_scores - beta * kld, metrics

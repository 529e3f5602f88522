from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from hpcrl.config import from_dict
from hpcrl.config.algorithm import ADV_ESTIMATORS
from hpcrl.config.keys import allowed_values, annotation_at
from hpcrl.config.refusals import REFUSED_VALUES
from hpcrl.trainer.ppo import core_algos

AGG_MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
CLIP = {"clip_ratio": 0.2, "clip_ratio_low": None, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}


def batch(seed: int = 0, rows: int = 6, length: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(rows, length, generator=generator)
    return {
        "old_log_prob": old,
        "log_prob": old + 0.5 * torch.randn(rows, length, generator=generator),
        "advantages": torch.randn(rows, length, generator=generator),
        "response_mask": (torch.rand(rows, length, generator=generator) > 0.3).float(),
    }


@pytest.mark.parametrize(
    "config",
    [
        CLIP,
        SimpleNamespace(**CLIP),
        OmegaConf.create(CLIP),
        from_dict({"actor_rollout_ref": {"actor": {"clip_ratio_high": 0.28}}}).actor_rollout_ref.actor,
    ],
    ids=["mapping", "object", "omegaconf", "dataclass"],
)
def test_config_may_be_anything_with_the_fields(config: object) -> None:
    data = batch()
    loss, metrics = core_algos.compute_policy_loss_vanilla(**data, config=config)
    want = core_algos.compute_policy_loss(**data, cliprange=0.2, cliprange_high=0.28)
    torch.testing.assert_close(loss, want[0])
    assert metrics["actor/pg_clipfrac"] == pytest.approx(want[1].item())


def test_clip_ratio_alone_takes_effect() -> None:
    data = batch()
    wide = core_algos.compute_policy_loss_vanilla(**data, config={"clip_ratio": 10.0})[1]
    narrow = core_algos.compute_policy_loss_vanilla(**data, config={"clip_ratio": 1e-3})[1]
    assert wide["actor/pg_clipfrac"] < narrow["actor/pg_clipfrac"]


def test_compute_policy_loss_refuses_missing_ranges() -> None:
    with pytest.raises(ValueError, match="cliprange is required"):
        core_algos.compute_policy_loss(**batch())
    with pytest.raises(ValueError, match="clip_ratio_c must be greater than 1"):
        core_algos.compute_policy_loss(**batch(), cliprange=0.2, clip_ratio_c=1.0)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("token-mean", r"\(global\) batch_num_tokens is required when dp_size > 1"),
        ("seq-mean-token-sum", "global_batch_size is required when dp_size > 1"),
        ("seq-mean-token-mean", "global_batch_size is required when dp_size > 1"),
    ],
)
def test_agg_loss_needs_global_counts_over_ranks(mode: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        core_algos.agg_loss(torch.ones(2, 3), torch.ones(2, 3), mode, dp_size=2)


def test_agg_loss_unknown_mode() -> None:
    with pytest.raises(ValueError, match="Invalid loss_agg_mode: mean"):
        core_algos.agg_loss(torch.ones(2, 3), torch.ones(2, 3), "mean")


@pytest.mark.parametrize("mode", AGG_MODES)
def test_agg_loss_ignores_nan_under_the_mask_and_empty_batches(mode: str) -> None:
    losses = torch.tensor([[1.0, float("nan")], [2.0, 3.0]], requires_grad=True)
    loss = core_algos.agg_loss(losses, torch.tensor([[1.0, 0.0], [1.0, 1.0]]), mode)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(losses.grad).all()
    assert core_algos.agg_loss(losses, torch.zeros(2, 2), mode) == 0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    cut=st.integers(1, 5),
    mode=st.sampled_from(AGG_MODES),
    name=st.sampled_from(sorted(core_algos.POLICY_LOSS_REGISTRY)),
)
def test_gradient_does_not_depend_on_the_cut_or_the_ranks(seed: int, cut: int, mode: str, name: str) -> None:
    """Micro-batches whose gradients are averaged over two ranks give the gradient of the whole batch at once."""
    policy_loss = core_algos.get_policy_loss_fn(name)
    data = batch(seed)
    mask = data["response_mask"]
    counts = {"batch_num_tokens": int(mask.sum()), "global_batch_size": int((mask.sum(-1) > 0).sum())}
    whole = data["log_prob"].clone().requires_grad_()
    policy_loss(**{**data, "log_prob": whole}, loss_agg_mode=mode, config=CLIP)[0].backward()
    cutted = data["log_prob"].clone().requires_grad_()
    config = core_algos.with_batch_info(CLIP, dp_size=2, **counts)
    for rows in (slice(0, cut), slice(cut, None)):
        part = {key: value[rows] for key, value in {**data, "log_prob": cutted}.items()}
        (policy_loss(**part, loss_agg_mode=mode, config=config)[0] / 2).backward()
    torch.testing.assert_close(cutted.grad, whole.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in core_algos.ADV_ESTIMATOR_REGISTRY if name not in ("gae", "remax")])
def test_advantages_stand_on_own_tokens_and_reach_over_tool_answers(name: str) -> None:
    """A tool's answer (mask 0) gets no advantage; the tokens before it share in what is earned after it."""
    rewards = torch.zeros(4, 5)
    rewards[0, 4] = rewards[2, 4] = 1.0
    mask = torch.tensor([[1.0, 1.0, 0.0, 0.0, 1.0]]).expand(4, 5)
    advantages, _ = core_algos.get_adv_estimator_fn(name)(
        **({} if name == "reinforce_plus_plus" else {"index": ["p", "p", "q", "q"]}),
        token_level_rewards=rewards,
        response_mask=mask,
        config={"gamma": 1.0},
    )
    assert (advantages[:, 2:4] == 0).all()
    assert (advantages[0, [0, 1, 4]] > 0).all()
    torch.testing.assert_close(advantages[0, 0], advantages[0, 4])


def test_passk_needs_groups() -> None:
    with pytest.raises(ValueError, match="grpo_passk needs at least 2 samples of each prompt"):
        core_algos.compute_grpo_passk_outcome_advantage(torch.ones(2, 1), torch.ones(2, 1), ["a", "b"])


def test_registries_refuse_second_functions_and_unknown_names() -> None:
    def other(**_: object) -> None: ...

    with pytest.raises(ValueError, match="Policy loss vanilla has already been registered"):
        core_algos.register_policy_loss("vanilla")(other)
    with pytest.raises(ValueError, match="Adv estimator grpo has already been registered"):
        core_algos.register_adv_est("grpo")(other)
    with pytest.raises(ValueError, match="Unknown advantage estimator simply: GRPO"):
        core_algos.get_adv_estimator_fn("GRPO")
    with pytest.raises(ValueError, match=r"Unsupported loss mode: x\. Supported modes are: \['vanilla'"):
        core_algos.get_policy_loss_fn("x")
    assert core_algos.get_adv_estimator_fn(core_algos.AdvantageEstimator.GRPO) is core_algos.get_adv_estimator_fn(
        "grpo"
    )


def test_schema_names_what_is_registered_or_refuses_it_with_a_reason() -> None:
    refused = REFUSED_VALUES["algorithm.adv_estimator"]
    assert set(ADV_ESTIMATORS) | set(refused) == set(core_algos.ADV_ESTIMATOR_REGISTRY)
    assert not set(ADV_ESTIMATORS) & set(refused)
    assert {e.value for e in core_algos.AdvantageEstimator} == set(core_algos.ADV_ESTIMATOR_REGISTRY)
    loss_modes = allowed_values(annotation_at(["actor_rollout_ref", "actor", "policy_loss", "loss_mode"]))
    assert set(loss_modes) == set(core_algos.POLICY_LOSS_REGISTRY)


def test_grpo_groups_by_any_index_and_keeps_singletons() -> None:
    rewards = torch.zeros(5, 3)
    rewards[:, 2] = torch.tensor([1.0, 0.0, 4.0, 1.0, 1.0])
    mask = torch.tensor([[1.0, 0.0, 1.0]]).expand(5, 3)
    by_name, _ = core_algos.compute_grpo_outcome_advantage(rewards, mask, np.array(["a", "a", "b", "c", "c"], object))
    by_number, _ = core_algos.compute_grpo_outcome_advantage(rewards, mask, torch.tensor([7, 7, 3, 5, 5]))
    torch.testing.assert_close(by_name, by_number)
    half = 0.5 / (0.5**0.5 + 1e-6)
    torch.testing.assert_close(by_name[:, 0], torch.tensor([half, -half, 4.0, 0.0, 0.0]))
    assert (by_name[:, 1] == 0).all()


def test_estimate_advantages_hands_on_the_options_of_the_config() -> None:
    rewards, mask = torch.tensor([[3.0], [1.0]]), torch.ones(2, 1)
    config = from_dict({"algorithm": {"norm_adv_by_std_in_grpo": False}}).algorithm
    advantages, returns = core_algos.estimate_advantages(
        config, token_level_rewards=rewards, response_mask=mask, index=["u", "u"], old_log_probs=mask
    )
    torch.testing.assert_close(advantages, torch.tensor([[1.0], [-1.0]]))
    torch.testing.assert_close(returns, advantages)
    with pytest.raises(ValueError, match="grpo needs index, which the batch does not hold"):
        core_algos.estimate_advantages(config, token_level_rewards=rewards, response_mask=mask)


@pytest.mark.parametrize("name", ["k1+", "kl+", "abs+", "k3+", "low_var_kl+"])
def test_straight_through_has_the_gradient_of_k2(name: str) -> None:
    ref = torch.tensor([-1.0, -2.0, -30.0])
    log_prob = torch.tensor([-1.5, -1.0, -0.5], requires_grad=True)
    core_algos.kl_penalty(log_prob, ref, name).sum().backward()
    torch.testing.assert_close(log_prob.grad, log_prob.detach() - ref)


@pytest.mark.parametrize("name", ["full", "k4", "+"])
def test_unknown_kl_estimator(name: str) -> None:
    with pytest.raises(NotImplementedError, match="Unknown KL estimator"):
        core_algos.kl_penalty(torch.zeros(1), torch.zeros(1), name)


def test_kl_in_reward_counts_own_tokens_and_moves_the_controller() -> None:
    controller = core_algos.get_kl_controller({"type": "adaptive", "kl_coef": 0.5, "target_kl": 0.1, "horizon": 10})
    scores = torch.tensor([[0.0, 0.0, 1.0]])
    old, ref = torch.tensor([[-1.0, -1.0, -1.0]]), torch.tensor([[-2.0, float("nan"), -1.5]])
    mask = torch.tensor([[1.0, 0.0, 1.0]])
    rewards, metrics = core_algos.apply_kl_in_reward(scores, old, ref, mask, controller)
    torch.testing.assert_close(rewards, torch.tensor([[-0.5, 0.0, 0.75]]))
    assert metrics == {
        "actor/reward_kl_penalty": pytest.approx(0.75),
        "actor/reward_kl_penalty_coeff": 0.5,
    }
    assert controller.value == pytest.approx(0.5 * (1 + 0.2 / 10))
    restored = core_algos.get_kl_controller({"type": "adaptive"})
    restored.load_state_dict(controller.state_dict())
    assert restored.value == controller.value


def test_get_kl_controller() -> None:
    fixed = core_algos.get_kl_controller(from_dict({}).algorithm.kl_ctrl)
    fixed.update(100.0, 100)
    assert isinstance(fixed, core_algos.FixedKLController) and fixed.value == 0.001
    with pytest.raises(NotImplementedError, match=r"Unknown kl_ctrl\.type: pid"):
        core_algos.get_kl_controller({"type": "pid"})
    with pytest.raises(ValueError, match="horizon must be greater than 0"):
        core_algos.get_kl_controller({"type": "adaptive", "horizon": 0})

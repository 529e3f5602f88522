"""Learning-rate schedules."""

import pytest

from hpcrl.config.actor import OptimConfig
from hpcrl.workers.engine.optim import lr_factor


def test_constant_after_linear_warm_up() -> None:
    config = OptimConfig(lr_warmup_steps=3)
    assert [lr_factor(step, config, 10) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_warm_up_by_ratio() -> None:
    config = OptimConfig(lr_warmup_steps_ratio=0.2)
    assert lr_factor(0, config, 10) == pytest.approx(1 / 3) and lr_factor(2, config, 10) == 1.0


def test_linear_and_cosine_end_at_the_floor() -> None:
    for kind in ("linear", "cosine"):
        config = OptimConfig(lr_scheduler_type=kind, min_lr_ratio=0.1)
        assert lr_factor(0, config, 10) == 1.0
        assert lr_factor(10, config, 10) == pytest.approx(0.1)
        assert lr_factor(99, config, 10) == pytest.approx(0.1)
        assert lr_factor(5, config, 10) == pytest.approx(0.55)

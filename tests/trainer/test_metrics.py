"""Numbers of validations and evaluations."""

import itertools

import pytest

from hpcrl import DataProto
from hpcrl.trainer.metrics import pass_at_k, validation_metrics


@pytest.mark.parametrize(("n", "correct", "k"), [(4, 1, 1), (4, 1, 2), (5, 3, 2), (6, 0, 3), (3, 3, 2), (4, 3, 2)])
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(n: int, correct: int, k: int) -> None:
    draws = list(itertools.combinations([1] * correct + [0] * (n - correct), k))
    assert pass_at_k(correct, n, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws))


def test_validation_names_and_values() -> None:
    batch = DataProto.from_dict(
        non_tensors={
            "data_source": ["a", "a", "a", "a", "b", "b"],
            "uid": ["1", "1", "2", "2", "3", "3"],
            "__num_turns__": [2] * 6,
        }
    )
    metrics = validation_metrics(batch, [1.0, 0.0, 0.0, 0.0, 1.0, 1.0], None)
    assert metrics["val-core/a/reward/mean@2"] == 0.25
    assert metrics["val-core/a/reward/best@2/mean"] == 0.5
    assert metrics["val-core/b/reward/mean@2"] == 1.0
    accurate = validation_metrics(batch, [0.0] * 6, [1.0] * 6)
    assert accurate["val-core/a/acc/mean@2"] == 1.0 and accurate["val-aux/a/reward/mean@2"] == 0.0

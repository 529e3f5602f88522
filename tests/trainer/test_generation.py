"""Fan-out over ranks."""

from hypothesis import given
from hypothesis import strategies as st

from hpcrl import DataProto
from hpcrl.trainer.generation import repeat_prompts, split_by_prompt


@given(st.integers(1, 20), st.integers(1, 4), st.integers(1, 6))
def test_every_row_once_and_samples_of_a_prompt_together(prompts: int, n: int, ranks: int) -> None:
    uids = [str(p) for p in range(prompts) for _ in range(n)]
    shares = split_by_prompt(uids, ranks)
    assert [row for share in shares for row in share] == list(range(prompts * n))
    assert all(len(share) % n == 0 for share in shares)
    counts = [len(share) // n for share in shares]
    assert max(counts) - min(counts) <= 1


def test_samples_are_numbered_within_a_prompt() -> None:
    repeated = repeat_prompts(DataProto.from_dict(non_tensors={"uid": ["a", "b"]}), 3)
    assert list(repeated.non_tensor_batch["uid"]) == ["a"] * 3 + ["b"] * 3
    assert list(repeated.non_tensor_batch["sample"]) == [0, 1, 2, 0, 1, 2]

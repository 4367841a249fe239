from __future__ import annotations

from da3po.runtime.seeds import sample_seed


def test_a_seed_is_the_same_everywhere_and_fits_in_63_bits() -> None:
    assert sample_seed(1, "rollout", 0, 0) == 6529493955648171098
    assert all(0 <= sample_seed(1, "rollout", key, 3) < 2**63 for key in range(1000))


def test_every_argument_matters() -> None:
    seeds = {
        sample_seed(*args) for args in ((1, "a", 2, 3), (2, "a", 2, 3), (1, "b", 2, 3), (1, "a", 3, 3), (1, "a", 2, 4))
    }
    assert len(seeds) == 5


def test_samples_of_a_step_all_differ() -> None:
    assert len({sample_seed(1, "rollout", key, index) for key in range(512) for index in range(16)}) == 512 * 16

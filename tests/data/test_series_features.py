"""Features look back and targets look ahead, each exactly as far as it says; scaling is fitted on what is there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paddle_stable.data.series_features import Scaling


@pytest.mark.parametrize("kind", ["standard", "robust"])
@pytest.mark.parametrize("value", [0.0, 0.1, 7.3, 1e9 / 3])
def test_a_column_that_never_moves_is_scaled_to_nothing(kind: Any, value: float) -> None:
    """The mean of many equal values need not equal them to the last bit, nor is their deviation 0."""
    values = np.full((80, 1), value)
    scaling = Scaling.fit(values, kind)
    assert scaling.scale.tolist() == [1.0]
    np.testing.assert_allclose(scaling.apply(values), 0.0, atol=1e-6)

"""The embedded digits, read without importing scikit-learn, are scikit-learn's."""

import pytest
import torch
from sklearn.datasets import load_digits

from fedddp.data.digits import Source


def test_the_digits_are_scikit_learns():
    raw, data = load_digits(), Source().load()
    inputs = torch.cat([data.test.inputs, data.train.inputs])
    targets = torch.cat([data.test.targets, data.train.targets])
    ours = sorted(zip(inputs.flatten(1).tolist(), targets.tolist(), strict=True))
    theirs = sorted(zip(raw.data.astype(int).tolist(), raw.target.tolist(), strict=True))
    assert ours == theirs
    assert inputs.dtype == torch.uint8
    assert len(data.test.targets) == 359


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.0, 2.0, 1e-5, 0.99999])
def test_a_test_set_of_nothing_or_of_everything_is_refused(fraction):
    with pytest.raises(ValueError, match=f"data.test_fraction={fraction}: must be"):
        Source(test_fraction=fraction).load()

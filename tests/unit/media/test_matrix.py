"""Drawing of a matrix as a heat map."""

from __future__ import annotations

import numpy as np

from quintet.media.chart import draw_matrix


def test_the_largest_number_is_the_brightest_square() -> None:
    values = np.array([[0.0, 0.5, 1.0], [0.2, 0.1, 0.0]])
    image = draw_matrix(values, ["one", "two"], ["a", "b", "c"], square=10)
    left = image.shape[1] - 30
    centres = image[[5, 15]][:, [left + 5, left + 15, left + 25]].astype(int).sum(-1)
    assert centres.argmax() == values.argmax()
    assert centres[0, 0] == centres[1, 2] == centres.min()
    assert centres[0, 1] > centres[1, 0] > centres[1, 1]
    assert image.dtype == np.uint8
    assert left > 0
    assert image.shape[0] > 20


def test_equal_numbers_and_long_labels_are_drawn() -> None:
    image = draw_matrix(np.zeros((1, 1)), ["a name that goes on " * 20], ["x"])
    assert image.shape[1] < 600

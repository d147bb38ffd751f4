import math

import pytest
from icml_deepcontour import GoldenSection, Problem


@pytest.mark.parametrize("top", [0.1, 1.0, math.pi, 4.9])
def test_the_interval_holds_the_top_of_a_parabola(top):
    problem = Problem(lambda x: -((x - top) ** 2), 0.0, 5.0)
    maximum = GoldenSection(1e-5).solve(problem)
    assert maximum.low <= top <= maximum.high
    assert maximum.high - maximum.low <= 1e-5


def test_the_sine_is_highest_at_half_pi():
    maximum = GoldenSection(1e-6).solve(Problem(math.sin, 0.0, 3.0))
    assert maximum.position == pytest.approx(math.pi / 2, abs=1e-6)


def test_an_empty_interval_is_refused():
    with pytest.raises(ValueError, match="give low < high"):
        GoldenSection().solve(Problem(math.sin, 3.0, 0.0))


def test_a_tolerance_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="must be positive"):
        GoldenSection(0.0)

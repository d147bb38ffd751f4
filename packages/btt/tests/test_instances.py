import numpy as np
import pytest
from icml_btt import SignedGraphs, disagreements, gnp, planted
from icml_btt.instances import _bernoulli_pairs, thirds


def test_pairs_are_drawn_independently_with_their_probability():
    rng = np.random.default_rng(0)
    count = np.zeros((7, 7))
    both = 0
    for _ in range(8_000):
        drawn = _bernoulli_pairs(7, 0.3, rng)
        count[drawn[:, 0], drawn[:, 1]] += 1
        rows = {tuple(row) for row in drawn.tolist()}
        both += {(0, 1), (5, 6)} <= rows
    assert count[np.tril_indices(7)].sum() == 0
    share = count[np.triu_indices(7, 1)] / 8_000
    assert np.abs(share - 0.3).max() < 5 * np.sqrt(0.21 / 8_000)
    assert abs(both / 8_000 - 0.09) < 5 * np.sqrt(0.09 * 0.91 / 8_000)


def test_each_pair_comes_once_in_large_graphs():
    drawn = _bernoulli_pairs(50_000, 1e-4, np.random.default_rng(1))
    assert len(np.unique(drawn[:, 0] * 50_000 + drawn[:, 1])) == len(drawn)
    assert (drawn[:, 0] < drawn[:, 1]).all()
    assert drawn.max() < 50_000
    expected = 50_000 * 49_999 / 2 * 1e-4
    assert abs(len(drawn) - expected) < 5 * np.sqrt(expected)


@pytest.mark.parametrize(
    "options", [{}, {"weighted": True}, {"density": 0.5}, {"density": 0.5, "weighted": True}]
)
def test_the_truth_costs_the_noise(options):
    graph, truth = (instance := planted(80, 5, 0.1, seed=3, **options)).graph, instance.truth
    expected = 0.1 * 80 * 79 / 2 * options.get("density", 1.0)
    # a weight uniform on (0, 2] has mean 1 and mean square 4/3
    assert abs(disagreements(graph, truth) - expected) < 5 * np.sqrt(4 / 3 * expected)
    assert graph.complete == (options.get("density", 1.0) == 1.0)
    assert graph.unweighted == (not options.get("weighted", False))


def test_without_noise_the_truth_costs_nothing():
    for seed in range(5):
        instance = planted(40, 6, 0.0, seed=seed)
        assert disagreements(instance.graph, instance.truth) == 0


def test_only_noise_turns_every_judgement():
    instance = planted(12, 3, 1.0, seed=0)
    same = instance.truth[:, None] == instance.truth
    assert ((instance.graph.sign_table > 0) == ~same)[np.triu_indices(12, 1)].all()


@pytest.mark.parametrize("kind", ["planted", "gnp"])
def test_samples_do_not_depend_on_how_many_are_drawn(kind):
    sampler = SignedGraphs(kind, vertices=20)
    two, three = sampler.sample(2, seed=4), sampler.sample(3, seed=4)
    for a, b in zip(two, three, strict=False):
        np.testing.assert_array_equal(a.graph.ends, b.graph.ends)
    assert not np.array_equal(three[0].graph.ends, three[1].graph.ends)


def test_the_graph_of_thirds_is_written_out():
    graph = thirds().graph
    assert (graph.n, len(graph.ends), graph.complete) == (8, 18, True)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: planted(-1, 2, 0.1, seed=0), "n=-1"),
        (lambda: planted(5, 0, 0.1, seed=0), "clusters=0"),
        (lambda: planted(5, 2, 1.5, seed=0), "noise=1.5"),
        (lambda: gnp(5, float("nan"), seed=0), "probability=nan"),
        (lambda: gnp(5, 0.5, seed=0, density=-1), "density=-1"),
        (lambda: SignedGraphs("tree"), "kind='tree'"),
        (lambda: SignedGraphs().sample(-1, seed=0), "-1 instances"),
    ],
)
def test_wrong_options_are_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()

"""Answers: checks, draws, grades, groups without a link, and files that are not trusted."""

from __future__ import annotations

import numpy as np
import pytest
from icml_idealpoint import from_grades, read_comparisons, read_series
from icml_idealpoint.comparisons import as_comparisons, components


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([[0, 5]], r"pair 0 is \[0, 5\], but items are 0 to 3"),
        ([[0, 1], [2, 2]], "pair 1 compares item 2 with itself"),
        ([], "shape"),
        (np.zeros((0, 2), int), "no comparisons; at least two items"),
        ([[0, 1, 2, 3]], r"shape \[1, 4\]"),
        ([[0, 1, -1]], "annotator -1 is negative"),
    ],
)
def test_bad_pairs_are_named(pairs, message):
    with pytest.raises(ValueError, match=message):
        as_comparisons(pairs, 4)


def test_other_dtypes_outcomes_and_weights_are_named():
    with pytest.raises(TypeError, match="numbers of items, which are integers"):
        as_comparisons([[0.5, 1.0]], 4)
    with pytest.raises(ValueError, match=r"outcome 0.7; expected 1"):
        as_comparisons([[0, 1]], 4, outcomes=[0.7])
    with pytest.raises(ValueError, match="weights must be positive"):
        as_comparisons([[0, 1]], 4, weights=[0.0])


def test_a_lost_comparison_is_turned_around():
    found = as_comparisons([[0, 1], [2, 3]], 4, outcomes=[0, 0.5])
    assert found.winner.tolist() == [1, 2]
    assert found.outcome.tolist() == [1.0, 0.5]


def test_grades_become_pairs_within_each_annotator_only():
    found = from_grades([1, 2, 3, 1], annotators=["a", "a", "b", "b"])
    assert sorted(
        zip(found.winner.tolist(), found.loser.tolist(), found.annotator.tolist(), strict=True)
    ) == [
        (1, 0, 0),
        (2, 3, 1),
    ]
    with pytest.raises(ValueError, match="nothing can be compared"):
        from_grades([1, 1, 2], annotators=[0, 0, 1])


def test_groups_without_a_link_are_found():
    answers = as_comparisons([[0, 1], [1, 2], [4, 5]], 7)
    assert components(answers, 7) == [[0, 1, 2], [4, 5]]


def test_a_csv_with_names_annotators_and_draws(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("winner,loser,annotator,outcome\na,b,Ann,1\nc,a,Bob,\nb,c,Ann,0.5\n")
    found = read_comparisons(path, {"a": 0, "b": 1, "c": 2})
    assert found.winner.tolist() == [0, 2, 1]
    assert found.annotator.tolist() == [0, 1, 0]
    assert found.outcome.tolist() == [1.0, 1.0, 0.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("left,right\n1,2\n", "expected winner,loser"),
        ("winner,loser\na,zzz\n", "line 2: no series is called 'zzz'"),
        ("winner,loser,weight\na,b,much\n", "line 2: 'much' is no number"),
        ("winner,loser\n", "holds no comparisons"),
    ],
)
def test_bad_files_of_answers_are_named(tmp_path, text, message):
    path = tmp_path / "pairs.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_comparisons(path, {"a": 0, "b": 1})


def test_series_from_every_kind_of_file(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "b.csv").write_text("time,u,v\n0.5,1,2\n1.5,3,4\n")
    (folder / "a.csv").write_text("time,u,v\n1,5,6\n")
    found = read_series(folder)
    assert found.names == ["a", "b"]
    assert found.series[1].tolist() == [[1, 2], [3, 4]]
    assert found.times is not None
    assert found.times[1].tolist() == [0.5, 1.5]
    np.savez(tmp_path / "s.npz", x=np.ones(3), y=np.ones((2, 1)))
    assert [s.shape for s in read_series(tmp_path / "s.npz").series] == [(3, 1), (2, 1)]
    np.save(tmp_path / "s.npy", np.arange(6.0).reshape(2, 3))
    assert read_series(tmp_path / "s.npy").series[1][:, 0].tolist() == [3, 4, 5]
    (tmp_path / "s.csv").write_text("1,2\n3,4\n")
    assert len(read_series(tmp_path / "s.csv").series) == 2


def test_hostile_files_are_refused(tmp_path):
    objects = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "objects.npz", x=objects)
    with pytest.raises(ValueError, match="expected numbers"):
        read_series(tmp_path / "objects.npz")
    huge = tmp_path / "huge.npy"
    np.save(huge, np.ones(3))
    huge.write_bytes(huge.read_bytes().replace(b"(3,)", b"(9999999999999,)"[:4]))
    with huge.open("wb") as stream:
        np.lib.format.write_array_header_1_0(
            stream, {"descr": "<f8", "fortran_order": False, "shape": (2**40, 4)}
        )
    with pytest.raises(ValueError, match="more than"):
        read_series(huge)
    (tmp_path / "not.npz").write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match="is no NPZ file"):
        read_series(tmp_path / "not.npz")
    (tmp_path / "x.pkl").write_bytes(b"\x80")
    with pytest.raises(ValueError, match="is none of"):
        read_series(tmp_path / "x.pkl")
    with pytest.raises(FileNotFoundError):
        read_series(tmp_path / "nowhere")

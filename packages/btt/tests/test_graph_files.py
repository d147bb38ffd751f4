import io
import zipfile

import numpy as np
import pytest
from icml_btt import SignedGraph, gnp, read_graph
from scipy import sparse


def edges_of(graph):
    ends = [(graph.name(u), graph.name(v)) for u, v in graph.ends.tolist()]
    return dict(zip(ends, zip(graph.sign.tolist(), graph.weight.tolist(), strict=True), strict=True))


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "ann,bob,1\nbob,cy,-1\nann,cy,+1,2.5\n",
        "left,right,sign,weight\nann,bob,+,\nbob,cy,-,1\nann,cy,same,2.5\n",
        "# judged by hand\n\nann\tbob\tpositive\nbob\tcy\tnegative\nann\tcy\t1.0\t2.5\n",
        "ann;bob;1;1\nbob;cy;different\ncy;ann;1;2.5\n",
        "ann bob 1\nbob   cy -1\nann cy 1 2.5\n",
        '"ann","bob","1"\r\n"bob","cy","-1"\r\n"ann","cy","1","2.5"\r\n',
        "\ufeffann,bob,1\nbob,cy,-1\nann,cy,1,2.5",
    ],
)
def test_edge_lists_in_every_dialect(text, tmp_path):
    graph = read_graph(write(tmp_path / "edges.csv", text), missing="free")
    assert edges_of(graph) == {("ann", "bob"): (1, 1.0), ("bob", "cy"): (-1, 1.0), ("ann", "cy"): (1, 2.5)}


def test_names_may_hold_separators_in_quotes(tmp_path):
    path = write(tmp_path / "edges.csv", '"Doe, Jane","Doe, J.",1\n')
    assert read_graph(path).ids == ("Doe, J.", "Doe, Jane")


def test_integer_names_are_integers_and_leading_zeros_are_not(tmp_path):
    assert read_graph(write(tmp_path / "a.csv", "10,9,1\n9,2,1\n")).ids == (2, 9, 10)
    assert read_graph(write(tmp_path / "b.csv", "010,9,1\n")).ids == ("010", "9")


def test_vertices_without_edges_and_pairs_without_opinion(tmp_path):
    graph = read_graph(write(tmp_path / "edges.csv", "a,b,1\nalone,,\na,c,0\n"))
    assert graph.ids == ("a", "alone", "b", "c")
    assert edges_of(graph) == {("a", "b"): (1, 1.0), ("a", "c"): (0, 0.0)}


def test_scores_are_judged_by_the_threshold(tmp_path):
    path = write(tmp_path / "scores.csv", "left,right,score\na,b,0.9\nb,c,0.4\na,c,0.5\n")
    graph = read_graph(path, threshold=0.5, missing="free")
    assert edges_of(graph) == {("a", "b"): (1, 1.0), ("b", "c"): (-1, 1.0), ("a", "c"): (1, 1.0)}


def test_the_same_pair_in_both_directions_counts_once(tmp_path):
    assert edges_of(read_graph(write(tmp_path / "e.txt", "1 2 1\n2 1 1\n"))) == {(1, 2): (1, 1.0)}


def test_matrices_as_text(tmp_path):
    rows = "1,0.9,0.1\n0.9,1,0.3\n0.1,0.3,1\n"
    plain = read_graph(write(tmp_path / "a.csv", rows), threshold=0.5, layout="matrix")
    assert edges_of(plain) == {(0, 1): (1, 1.0)}
    named = "id,x,y,z,w\nx,1,0.9,0.1,0\ny,0.9,1,0.3,0\nz,0.1,0.3,1,0.8\nw,0,0,0.8,1\n"
    graph = read_graph(write(tmp_path / "b.csv", named), threshold=0.5)
    assert graph.ids == ("w", "x", "y", "z")
    assert edges_of(graph) == {("x", "y"): (1, 1.0), ("w", "z"): (1, 1.0)}
    signed = read_graph(write(tmp_path / "c.tsv", "0\t1\n1\t0\n"))
    assert edges_of(signed) == {(0, 1): (1, 1.0)}


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_sparse_matrices(kind, tmp_path):
    graph = gnp(12, 0.4, seed=0, density=0.5, weighted=True).graph
    signed = graph.scores[0].asformat(kind)
    sparse.save_npz(tmp_path / "graph.npz", signed)
    assert edges_of(read_graph(tmp_path / "graph.npz", missing="free")) == edges_of(graph)


def test_dense_arrays(tmp_path):
    similarity = np.random.default_rng(0).random((9, 9)).astype(np.float32)
    similarity = (similarity + similarity.T) / 2
    expected = edges_of(SignedGraph.from_similarity(similarity, 0.5))
    np.save(tmp_path / "a.npy", similarity)
    np.savez(tmp_path / "b.npz", similarity)
    np.savez_compressed(tmp_path / "c.npz", similarity)
    for name in ("a.npy", "b.npz", "c.npz"):
        assert edges_of(read_graph(tmp_path / name, threshold=0.5)) == expected
    signs = np.where(similarity > 0.5, 1, -1).astype(np.int8)
    np.save(tmp_path / "d.npy", signs)
    assert edges_of(read_graph(tmp_path / "d.npy")) == expected


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "holds no edges"),
        ("# only a comment\n", {}, "holds no edges"),
        ("a,b,1\nb,c,2\n", {}, r"line 2: sign '2'; expected \+1, -1 or 0; a similarity needs a threshold"),
        ("a,b,1\nb,c,maybe\n", {}, r"line 2: sign 'maybe'; expected \+1, -1 or 0"),
        ("a,b,1\n\n# x\nb,c,1,nan\n", {}, "line 4: weight 'nan' is not a finite number"),
        ("a,b,1\nb,c,1,-2\n", {}, "line 2: weight -2 is negative; the sign belongs in the third field"),
        ("a,b,1\nb,c\n", {}, r"line 2: 2 fields; expected u,v,sign\[,weight\]"),
        ("a,b,1\nb,,1\n", {}, "line 2: an end of the edge is empty"),
        ("a,b,1\nb,a,-1\n", {}, "edge 'a', 'b' is listed with two signs"),
        ("a,b,0.5\nb,c,inf\n", {"threshold": 0.1}, "line 2: similarity 'inf' is not a finite number"),
        ('a,b,1\n"b,c,1\n', {}, "line 2: unexpected end of data"),
        ("a,b,1\n" + "x" * 200_000 + ",c,1\n", {}, "line 2: field larger than field limit"),
        ("1,2,3,4,5\n", {}, "not square: 1 rows of 5 entries"),
        ("1,0,0,0,0\n1,0\n", {}, "line 2: the matrix is not square"),
        ("0,1\n1,x\n", {}, "line 2: entry 'x' is not a finite number"),
        ("id,a,b\na,0,1\nc,1,0\n", {"layout": "matrix"}, "line 3: row 'c' comes where column 'b' does"),
        ("0,1\n2,0\n", {}, r"not symmetric: entry \(0, 1\) is 1"),
        ("a,b,1\n", {"layout": "tree"}, "layout='tree'"),
        ("a,b,1\n", {"threshold": float("nan")}, "threshold must be finite"),
        ("a,b,1\n", {"missing": "what"}, "missing='what'"),
        ("a,b,1\n", {"max_bytes": 3}, "has 6 bytes; at most 3 are read"),
    ],
)
def test_wrong_text_is_refused_with_its_line(text, options, message, tmp_path):
    path = write(tmp_path / "edges.csv", text)
    with pytest.raises(ValueError, match=message) as caught:
        read_graph(path, **options)
    assert options.keys() & {"layout", "threshold"} or str(path) in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_bytes(b"a,b,1\n\xff\xfe,c,1\n")
    with pytest.raises(ValueError, match="is not UTF-8 text after line"):
        read_graph(path)


def test_missing_files_and_directories(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.csv: no such file"):
        read_graph(tmp_path / "nothing.csv")
    with pytest.raises(ValueError, match="is a directory"):
        read_graph(tmp_path)


class Trap:
    """What a hostile file would like to have unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("the file ran code",))


def test_pickles_are_not_loaded(tmp_path):
    trap = np.array([[Trap()]], dtype=object)
    np.save(tmp_path / "trap.npy", trap, allow_pickle=True)
    np.savez(tmp_path / "trap.npz", trap)
    np.savez(tmp_path / "parts.npz", format="csr", shape=[1, 1], data=trap[0], indices=[0], indptr=[0, 1])
    for name in ("trap.npy", "trap.npz", "parts.npz"):
        with pytest.raises(ValueError, match="Python objects"):
            read_graph(tmp_path / name)


def header(shape, dtype="<f8"):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def test_headers_that_promise_too_much_allocate_nothing(tmp_path):
    huge = header((10**6, 10**6))
    (tmp_path / "huge.npy").write_bytes(huge + b"0" * 80)
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("arr_0.npy", huge + b"0" * 80)
    for name in ("huge.npy", "huge.npz"):
        with pytest.raises(ValueError, match="the header promises shape"):
            read_graph(tmp_path / name)


def test_archives_that_unpack_to_too_much_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("arr_0.npy", header((2000, 2000), "|i1") + b"\0" * 4_000_000)
    assert (tmp_path / "bomb.npz").stat().st_size < 100_000
    with pytest.raises(ValueError, match="unpacks to more than 100000 bytes"):
        read_graph(tmp_path / "bomb.npz", max_bytes=100_000)


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04", b"\x93NUMPY\x01\x00"])
def test_broken_archives_are_refused(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="not a"):
        read_graph(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": [0, 9]}, "an index lies outside 0, …, 2"),
        ({"indices": [0, -1]}, "an index lies outside"),
        ({"indices": [0.5, 1.0]}, "no 'indices' of integers"),
        ({"indptr": [0, 1]}, "indptr does not fit"),
        ({"indptr": [0, 3, 1, 2]}, "indptr decreases"),
        ({"indptr": [0, 1, 1, 9]}, "indptr does not fit"),
        ({"shape": [3, 4]}, "square matrix"),
        ({"shape": [2**40, 2**40]}, "square matrix"),
        ({"format": "bsr"}, "sparse format 'bsr'"),
        ({"data": [1.0 + 1j, 1.0]}, "no 'data' of real numbers"),
        ({"data": [1.0]}, "indptr does not fit"),
        ({"data": [1.0, 2.0]}, "not symmetric"),
    ],
)
def test_sparse_matrices_with_wrong_parts_are_refused(change, message, tmp_path):
    parts = {"format": "csr", "shape": [3, 3], "data": [1.0, 1.0], "indices": [1, 0], "indptr": [0, 1, 2, 2]}
    np.savez(tmp_path / "right.npz", **parts)
    assert edges_of(read_graph(tmp_path / "right.npz")) == {(0, 1): (1, 1.0)}
    np.savez(tmp_path / "wrong.npz", **(parts | change))
    with pytest.raises(ValueError, match=message):
        read_graph(tmp_path / "wrong.npz")


def test_an_archive_of_several_arrays_is_ambiguous(tmp_path):
    np.savez(tmp_path / "two.npz", a=np.eye(2), b=np.eye(2))
    with pytest.raises(ValueError, match="found \\['a', 'b'\\]"):
        read_graph(tmp_path / "two.npz")

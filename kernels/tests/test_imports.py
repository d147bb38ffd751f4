"""What an import costs, and what runs where libraries or directories are missing: each in a fresh process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import icml_kernels
import pytest

SUM = """
import torch
from icml_kernels import segment_sum_csr
ptr = torch.tensor([0, 2, 2, 3], dtype=torch.int32)
assert segment_sum_csr(torch.tensor([5.0, 2.0, 1.0]), ptr).tolist() == [7.0, 0.0, 1.0]
"""


def run(code: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter; a variable set to None is absent there."""
    merged = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    present = {k: v for k, v in merged.items() if v is not None}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=present, timeout=300
    )


def check_succeeds(code: str, **environment: str | None) -> str:
    done = run(code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_import_loads_nothing_heavy():
    check_succeeds(
        "import sys, icml_kernels; dir(icml_kernels)\n"
        "heavy = {'torch', 'numba', 'numpy', 'triton', 'jaxtyping'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert 'cfconv_table' in dir(icml_kernels) and 'HalfList' in icml_kernels.__all__"
    )


def test_neither_names_nor_calls_nor_derivatives_load_more_than_they_use():
    """Least of all ``torch._dynamo``, which takes longer to import than torch."""
    check_succeeds(
        "import sys\nfrom icml_kernels import cfconv_table, cfconv_mlp, pair_geometry, segment_sum_csr\n"
        "heavy = {'numba', 'triton', 'torch._dynamo'} & set(sys.modules)\nassert not heavy, heavy\n"
        + SUM
        + "x = torch.rand(3, requires_grad=True)\nsegment_sum_csr(x, ptr).sum().backward()\n"
        "heavy = {'triton', 'torch._dynamo'} & set(sys.modules)\nassert not heavy, heavy"
    )


def test_runs_without_numba_and_triton_and_says_so_once():
    stderr = check_succeeds("import sys; sys.modules['triton'] = sys.modules['numba'] = None\n" + SUM + SUM)
    assert stderr.count("numba cannot be imported") == 1
    assert stderr.count("runs plain torch") == 1


def test_unknown_name_is_told_what_there_is():
    with pytest.raises(AttributeError, match=r"no attribute 'cfconv'; it offers \[.*'cfconv_table'"):
        icml_kernels.cfconv


def test_every_public_name_is_there_and_is_no_submodule():
    for name in icml_kernels.__all__:
        assert callable(getattr(icml_kernels, name))
        assert not (Path(icml_kernels.__file__).parent / name).exists()


def install_elsewhere(folder: Path) -> Path:
    """A copy of the package that nobody may write to."""
    copy = folder / "site" / "icml_kernels"
    shutil.copytree(
        Path(icml_kernels.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__", "cases.py")
    )
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return copy


def files_in(folder: Path) -> set[Path]:
    return {p for p in folder.rglob("*") if p.is_file()}


def test_read_only_install_without_home_compiles_into_a_temporary_directory(tmp_path):
    copy = install_elsewhere(tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {
        "PYTHONPATH": str(copy.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(temporary),
        "HOME": None,
        "XDG_CACHE_HOME": None,
        "LOCALAPPDATA": None,
        "NUMBA_CACHE_DIR": None,
    }
    before = files_in(copy)
    here = f"import icml_kernels; assert icml_kernels.__file__.startswith({str(copy)!r})\n"
    check_succeeds(here + SUM, **environment)
    # The superuser may write anywhere, so that what counts is that nothing was written.
    assert files_in(copy) == before
    cached = files_in(temporary)
    assert any(p.suffix == ".nbi" for p in cached)
    check_succeeds(here + SUM, **environment)
    assert {p for p in files_in(temporary) if p.suffix == ".nbc"} == {p for p in cached if p.suffix == ".nbc"}
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o755)

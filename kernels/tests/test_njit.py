"""The compiled loops' options and cache directory."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from icml_kernels import njit as module
from icml_kernels.njit import balanced_rows, cache_directory, njit, threads


@pytest.fixture(autouse=True)
def forget_the_directory():
    cache_directory.cache_clear()
    yield
    cache_directory.cache_clear()


def test_nan_and_infinity_are_seen():
    @njit(cache=False)
    def is_nan(x):
        return x != x

    @njit(cache=False)
    def inverse(x):
        return 1.0 / x

    assert is_nan(float("nan"))
    assert not is_nan(1.0)
    # NumPy's division, not Python's exception.
    assert inverse(0.0) == np.inf


def test_numba_settings_of_the_user_are_left_alone(monkeypatch, tmp_path):
    before = numba.config.CACHE_DIR
    njit(lambda x: x + 1)
    assert before == numba.config.CACHE_DIR
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "chosen"))

    def increment(x):
        return x + 1

    compiled = njit(increment)
    assert compiled(1) == 2
    assert list((tmp_path / "chosen").rglob("*.nbi"))


def test_the_users_cache_directory_comes_first(monkeypatch, tmp_path):
    monkeypatch.setattr(module.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "icml-kernels" / "numba"


def test_a_directory_is_made_and_used(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_user_cache", lambda: tmp_path / "user" / "numba")
    assert cache_directory() == tmp_path / "user" / "numba"


def test_without_a_home_a_temporary_directory_serves(monkeypatch, tmp_path):
    for name in ("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path))
    assert cache_directory().parent.parent == tmp_path


def test_without_any_directory_loops_compile_and_one_warning_is_given(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(module, "_user_cache", lambda: file / "numba")
    monkeypatch.setattr(module, "_temporary_cache", lambda: file / "numba")
    with pytest.warns(RuntimeWarning, match="set NUMBA_CACHE_DIR to a writable directory") as given:
        first, second = njit(lambda x: x + 1), njit(lambda x: x + 2)
    assert len(given) == 1
    assert (first(1), second(1)) == (2, 3)


@pytest.mark.skipif(not hasattr(module.os, "getuid"), reason="owners and modes of directories are POSIX")
def test_a_directory_that_others_may_write_to_is_not_trusted(monkeypatch, tmp_path):
    shared = tmp_path / "shared" / "numba"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    monkeypatch.setattr(module, "_user_cache", lambda: shared)
    monkeypatch.setattr(module, "_temporary_cache", lambda: tmp_path / "own" / "numba")
    assert cache_directory() == tmp_path / "own" / "numba"


def test_shares_of_rows_are_balanced():
    ptr = np.array([0, 100, 100, 101, 150, 400, 400, 401])
    bounds = balanced_rows(ptr, 3)
    assert bounds.tolist() == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (0, 7)
    # No share is larger than its part and one row.
    assert np.diff(ptr[bounds]).max() <= 401 / 3 + 250
    even = np.arange(0, 1001, 10)
    assert np.diff(even[balanced_rows(even, 4)]).tolist() == [250] * 4


def test_no_rows_can_be_shared():
    assert balanced_rows(np.array([0]), 4).tolist() == [0] * 5


def test_threads_follow_torch(monkeypatch):
    monkeypatch.setattr(module.torch, "get_num_threads", lambda: 1)
    assert threads() == 1
    monkeypatch.setattr(module.torch, "get_num_threads", lambda: 10_000)
    assert threads() == numba.config.NUMBA_NUM_THREADS

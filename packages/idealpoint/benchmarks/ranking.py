"""Time of a fit and Kendall's tau on unseen items, beside what people use.

python packages/idealpoint/benchmarks/ranking.py [--small] [--out packages/idealpoint/benchmarks/results]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from icml_idealpoint import BradleyTerry, Bumps, IdealPointRanker, RankSVM, compare, kendall_tau

Answer = tuple[Any, Any]  # scores of unseen items and of compared ones; None where there are none


def boosted_trees(train: np.ndarray, test: np.ndarray, pairs: np.ndarray) -> Answer:
    """xgboost's pairwise ranking: each comparison is a query of two items."""
    import xgboost

    rows = train[pairs.ravel()]
    label, query = np.tile([1, 0], len(pairs)), np.repeat(np.arange(len(pairs)), 2)
    model = xgboost.XGBRanker(objective="rank:pairwise", n_estimators=100, max_depth=3, n_jobs=1)
    model.fit(rows, label, qid=query)
    return model.predict(test), model.predict(train)


def methods(small: bool) -> dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], Answer]]:
    """Each takes series to learn from, series to score, and comparisons."""
    steps = 10 if small else 150

    def ideal(metric: str, starts: int) -> Callable[..., Answer]:
        def call(train: np.ndarray, test: np.ndarray, pairs: np.ndarray) -> Answer:
            ranker = IdealPointRanker(metric, n_starts=starts, max_iter=steps, dtype="float32").fit(
                train, pairs
            )
            return ranker.predict(test), ranker.scores_

        return call

    def svm(features: str) -> Callable[..., Answer]:
        def call(train: np.ndarray, test: np.ndarray, pairs: np.ndarray) -> Answer:
            model = RankSVM(features).fit(train, pairs)
            return model.predict(test), model.predict(train)

        return call

    found: dict[str, Callable[..., Answer]] = {
        "soft TWED, 4 starts": ideal("soft_twed", 4),
        "soft TWED, 1 start": ideal("soft_twed", 1),
        "soft DTW, 4 starts": ideal("soft_dtw", 4),
        "Euclidean ideal point": ideal("euclidean", 4),
        "RankSVM, values": svm("values"),
        "RankSVM, summary": svm("summary"),
        "Bradley-Terry": lambda train, test, pairs: (None, BradleyTerry().fit(len(train), pairs).scores_),
    }
    if importlib.util.find_spec("choix") is not None:
        import choix

        found["choix"] = lambda train, test, pairs: (
            None,
            choix.opt_pairwise(len(train), pairs.tolist(), alpha=0.05),
        )
    if importlib.util.find_spec("xgboost") is not None:
        found["xgboost"] = boosted_trees
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = 1 if options.small else 5
    rows = []
    for name, method in methods(options.small).items():
        taus, train_taus, seconds = [], [], []
        for seed in range(seeds):
            X, severity = Bumps(48, 0.12).items(110, seed=seed)
            pairs = compare(-severity[:60], 500, flip=0.2, seed=seed)
            begin = time.perf_counter()
            unseen, compared = method(X[:60], X[60:], pairs)
            seconds.append(time.perf_counter() - begin)
            train_taus.append(kendall_tau(compared, -severity[:60]))
            if unseen is not None:
                taus.append(kendall_tau(unseen, -severity[60:]))
        row = {"case": name, "ours": {"seconds": min(seconds)}, "tau_compared": float(np.mean(train_taus))}
        row["tau_unseen"] = float(np.mean(taus)) if taus else None
        rows.append(row)
        unseen_text = f"{row['tau_unseen']:.3f}" if taus else "  -  "
        print(
            f"{name:24} {min(seconds):8.3f} s  unseen {unseen_text}  compared {row['tau_compared']:.3f}",
            flush=True,
        )
    environment = {
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
    }
    environment["peers"] = {p: version(p) for p in ("choix", "xgboost") if importlib.util.find_spec(p)}
    options.out.mkdir(parents=True, exist_ok=True)
    document = {"benchmark": "ranking", "environment": environment, "rows": rows}
    (options.out / "ranking.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""What `icml run` runs."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from icml_core import Run, resumable

if TYPE_CHECKING:
    from icml_idealpoint.mixture import IdealPointMixture
    from icml_idealpoint.ranker import IdealPointRanker
    from icml_idealpoint.series_files import NamedSeries

ANSWERS = "answers.csv"
_COLUMNS = ("winner", "loser", "annotator", "weight", "outcome")


def rank(
    *,
    run: Run,
    series: Path,
    pairs: Path,
    new: Path | None = None,
    metric: Literal["soft_twed", "soft_dtw", "twed", "dtw", "euclidean"] = "soft_twed",
    nu: float = 0.003,
    lam: float = 0.1,
    length: int | None = None,
    noise: Literal["per_annotator", "shared", "none"] = "per_annotator",
    sign: Literal["nearest", "farthest"] = "nearest",
    nan: Literal["raise", "drop", "mask"] = "raise",
    window: float | None = None,
    starts: int = 4,
    steps: int = 150,
    resamples: int = 60,
    groups: int = 1,
    picture: bool = True,
) -> dict[str, Any]:
    """Rank time series from pairwise comparisons, and score new ones.

    Writes ranking.csv (rank, item, score, low, high: a 90 % interval), ideal.csv (the ideal series),
    annotators.csv, metrics.jsonl, new.csv with --new, and the pictures ranking.png and ideal.png.

    With --groups above 1 annotators may fall into groups with an ideal series each, which are found too. Then
    ranking.csv and ideal.csv have a column group, annotators.csv the likeliest group of each and its
    probability, and new.csv a score in each group; there are no intervals, and a picture ranking_GROUP.png of
    each group. The summary's bic, lower is better, says how many groups the answers support.

    Args:
        series: folder of CSV files (rows are points, columns channels; a column time), .npz, .npy, .ts or
            .csv.
        pairs: CSV with the columns winner, loser, and annotator, weight, outcome (0.5 for a draw) where there
            are.
        new: series to score, in the same form.
        metric: distance from the ideal series.
        nu: stiffness of TWED, in standard deviations of the data per unit of time.
        lam: cost of a deletion of TWED, in standard deviations.
        length: points of the ideal series; the median length by default.
        noise: whose answers may be flipped at a rate of their own.
        sign: whether winners are near to the ideal series, or far from it as from a healthy prototype.
        nan: what to do with missing values.
        window: warping window as a share of the longer series.
        starts: first guesses.
        steps: of the optimisation.
        resamples: bootstrap samples for the intervals; 0 for none.
        groups: of annotators.
        picture: draw.
    """
    from icml_idealpoint.comparisons import read_comparisons
    from icml_idealpoint.ranker import IdealPointRanker
    from icml_idealpoint.series import as_series
    from icml_idealpoint.series_files import read_series

    items = read_series(series)
    answers = read_comparisons(pairs, items.number)
    more = read_series(new) if new is not None else None
    options: dict[str, Any] = {
        "metric": metric,
        "nu": nu,
        "lam": lam,
        "length": length,
        "noise": None if noise == "none" else noise,
        "sign": sign,
        "nan": nan,
        "window": window,
        "n_starts": starts,
        "max_iter": steps,
        "random_state": run.seed,
    }
    given = as_series(items.series, times=items.times, nan=nan)
    extra = None if more is None else as_series(more.series, times=more.times, nan=nan, name="new")
    if groups != 1:
        return _rank_groups(run, groups, options, (items, given), answers, (more, extra), picture)
    ranker = IdealPointRanker(**options)
    _fit(run, ranker, given, answers, steps)
    if resamples:
        ranker.bootstrap(resamples)
    _write_ranking(run, ranker, items)
    if more is not None and extra is not None:
        _write(
            run, "new.csv", ("item", "score"), zip(more.names, ranker.predict(extra).tolist(), strict=True)
        )
    reliability = ranker.reliability_.tolist()
    _write(run, "annotators.csv", ("annotator", "reliability"), enumerate(reliability))
    if picture:
        _draw(run, ranker, given, items.names)
    return {
        "items": len(items.names),
        "comparisons": len(answers),
        "agreement": ranker.score(given, answers),
        "loss": ranker.loss_,
        "converged": ranker.converged_,
        "least_reliability": min(reliability),
    }


@resumable(may_change=("questions", "answers"))
def ask(
    *,
    run: Run,
    series: Path,
    answers: Path | None = None,
    questions: int = 10,
    batches: int = 1,
    lam: float = 0.1,
    nu: float = 0.003,
    steps: int = 100,
    start: Path | None = None,
) -> dict[str, Any]:
    """Propose the pairs whose answers say most, take the answers, and rank.

    All answers so far are kept in answers.csv of the run, and --resume goes on from them. Answers come from a
    CSV file (winner,loser[,annotator]), or on a terminal one by one: 1 or 2 for the winner, = for a draw,
    empty to stop. Where there is neither, the proposals are written to questions.csv; put the winners into a
    file and resume with --answers.

    Args:
        series: as for idealpoint.rank.
        answers: CSV of new answers.
        questions: how many pairs to propose at a time.
        batches: how often to ask on a terminal.
        lam: cost of a deletion of TWED, in standard deviations.
        nu: stiffness of TWED.
        steps: of each fit.
        start: CSV of comparisons that are known from the start.
    """
    import numpy as np

    from icml_idealpoint.ranker import IdealPointRanker
    from icml_idealpoint.series import as_series
    from icml_idealpoint.series_files import read_series

    if questions < 1 or batches < 1:
        raise ValueError(f"--questions {questions} and --batches {batches} must be at least 1")
    items = read_series(series)
    given = as_series(items.series, times=items.times)
    rows = _known_answers(run, items, start, answers)
    ranker = IdealPointRanker(lam=lam, nu=nu, max_iter=steps, random_state=run.seed)
    proposals: list[tuple[int, int]] = []
    for _ in range(batches):
        proposals = _proposals(run, ranker, given, rows, items, questions, steps)
        _write(
            run,
            "questions.csv",
            ("first", "second"),
            [(items.names[a], items.names[b]) for a, b in proposals],
        )
        if not sys.stdin.isatty():
            break
        replies = _replies(proposals, items.names)
        rows += replies
        _write(run, ANSWERS, _COLUMNS, rows)
        if len(replies) < len(proposals):
            break
    _write(run, ANSWERS, _COLUMNS, rows)
    if rows:
        _proposals(run, ranker, given, rows, items, 1, steps)
        _write_ranking(run, ranker, items)
    waiting = int(np.size(proposals) // 2)
    return {"answers": len(rows), "proposed": waiting, "items": len(items.names)}


def distances(
    *,
    run: Run,
    series: Path,
    other: Path | None = None,
    metric: Literal["twed", "dtw"] = "twed",
    nu: float = 0.05,
    lam: float = 1.0,
    cost: Literal["norm", "squared"] = "norm",
    root: bool = False,
    window: float | None = None,
    nan: Literal["raise", "drop", "mask"] = "raise",
    precision: Literal["float32", "float64"] = "float64",
    jobs: int = -1,
) -> dict[str, Any]:
    """Write the matrix of elastic distances between series, as distances.npy and names.csv.

    Args:
        series: as for idealpoint.rank.
        other: the series of the columns; the same by default.
        metric: time warp edit distance, or dynamic time warping.
        nu: stiffness of TWED, in units of the values per unit of time.
        lam: cost of a deletion of TWED, in units of the values.
        cost: pointwise cost of DTW.
        root: take the square root of the result.
        window: warping window as a share of the longer series.
        nan: what to do with missing values.
        precision: of the result.
        jobs: threads; -1 for all.
    """
    import numpy as np

    from icml_idealpoint.distances import pairwise
    from icml_idealpoint.series import as_series
    from icml_idealpoint.series_files import read_series

    left = read_series(series)
    right = left if other is None else read_series(other)
    rows = as_series(left.series, times=left.times, nan=nan)
    columns = as_series(right.series, times=right.times, nan=nan, name="other")
    options = {"nu": nu, "lam": lam, "cost": cost, "root": root, "window": window, "dtype": precision}
    block = 1024
    with run.path("distances.npy") as temporary:
        shape = (len(rows), len(columns))
        out = np.lib.format.open_memmap(temporary, mode="w+", dtype=precision, shape=shape)
        with run.progress("distances", total=-(-len(rows) // block)) as bar:
            for first in range(0, len(rows), block):
                part = slice(first, first + block)
                pairwise(rows[part], columns, metric, **options, n_jobs=jobs, out=out[part])
                bar.advance(1)
        out.flush()
    _write(
        run,
        "names.csv",
        ("side", "name"),
        [("row", n) for n in left.names] + [("column", n) for n in right.names],
    )
    return {"rows": len(left.names), "columns": len(right.names), "largest": float(out.max())}


def _rank_groups(
    run: Run,
    groups: int,
    options: dict[str, Any],
    known: tuple[NamedSeries, Any],
    answers: Any,
    new: tuple[NamedSeries | None, Any],
    picture: bool,
) -> dict[str, Any]:
    import numpy as np

    from icml_idealpoint.mixture import IdealPointMixture
    from icml_idealpoint.plots import ranking

    (items, given), (more, extra), steps = known, new, options["max_iter"]
    mixture = IdealPointMixture(groups, **options)
    _fit(run, mixture, given, answers, steps)
    for turn, value in enumerate(mixture.history_):
        run.log(steps + 1 + turn, loglik=value)
    scores, ideals = mixture.scores_ - mixture.scores_.mean(0), mixture.ideal_points_
    order = np.argsort(-scores, axis=0, kind="stable")
    rows = [
        (group, place + 1, items.names[k], float(scores[k, group]))
        for group in range(groups)
        for place, k in enumerate(order[:, group].tolist())
    ]
    _write(run, "ranking.csv", ("group", "rank", "item", "score"), rows)
    channels = [f"channel_{c}" for c in range(ideals.shape[2])]
    points = [(group, *point) for group in range(groups) for point in ideals[group].tolist()]
    _write(run, "ideal.csv", ("group", *channels), points)
    likeliest, reliability = mixture.groups_.argmax(1), mixture.reliability_.tolist()
    people = zip(likeliest.tolist(), mixture.groups_.max(1).tolist(), reliability, strict=True)
    _write(
        run,
        "annotators.csv",
        ("annotator", "group", "probability", "reliability"),
        [(number, *person) for number, person in enumerate(people)],
    )
    if more is not None:
        header = ("item", *(f"score_{group}" for group in range(groups)))
        found = zip(more.names, mixture.predict(extra).tolist(), strict=True)
        _write(run, "new.csv", header, [(name, *each) for name, each in found])
    for group in range(groups if picture else 0):
        with run.path(f"ranking_{group}.png") as temporary:
            ranking(scores[:, group], temporary, names=items.names)
    theirs = likeliest[answers.annotator]
    apart = scores[answers.winner, theirs] - scores[answers.loser, theirs]
    right = np.where(apart > 0, answers.outcome, 1 - answers.outcome)
    return {
        "items": len(items.names),
        "comparisons": len(answers),
        "agreement": float(np.average(right, weights=answers.weight)),
        "weights": mixture.weights_.tolist(),
        "loglik": mixture.loglik_,
        "bic": mixture.bic(),
        "converged": mixture.converged_,
        "least_reliability": min(reliability),
    }


def _fit(
    run: Run, ranker: IdealPointRanker | IdealPointMixture, given: Any, answers: Any, steps: int
) -> None:
    with run.progress("ideal point", total=steps + 1) as bar:

        def report(step: int, loss: float) -> None:
            if step % 10 == 0:
                run.log(step, loss=loss)
            bar.advance(1, loss=loss)

        ranker.fit(given, answers, report=report)


def _known_answers(run: Run, items: NamedSeries, start: Path | None, new: Path | None) -> list[Sequence[Any]]:
    from icml_idealpoint.comparisons import read_comparisons

    kept = run.file(ANSWERS)
    sources = [kept if run.resumed and kept.is_file() and kept.read_text().count("\n") > 1 else start, new]
    rows: list[Sequence[Any]] = []
    for source in sources:
        if source is not None:
            found = read_comparisons(source, items.number)
            parts = (found.winner, found.loser, found.annotator, found.weight, found.outcome)
            for a, b, who, weight, outcome in zip(*(part.tolist() for part in parts), strict=True):
                rows.append((items.names[a], items.names[b], who, weight, outcome))
    return rows


def _proposals(
    run: Run,
    ranker: IdealPointRanker,
    given: Any,
    rows: Sequence[Sequence[Any]],
    items: NamedSeries,
    questions: int,
    steps: int,
) -> list[tuple[int, int]]:
    import numpy as np

    from icml_idealpoint.next_pairs import propose

    number = items.number
    seen = np.array([(number[row[0]], number[row[1]]) for row in rows], dtype=np.int64).reshape(-1, 2)
    if not len(rows):
        scores = np.random.default_rng(run.seed).normal(size=len(items.names)) * 1e-3
        return [tuple(pair) for pair in propose(scores, seen, questions).tolist()]
    table = np.column_stack([seen, [int(row[2]) for row in rows]])
    weights, outcomes = ([float(row[k]) for row in rows] for k in (3, 4))
    ranker.fit(given, table, weights=weights, outcomes=outcomes)
    return [tuple(pair) for pair in ranker.next_pairs(k=questions).tolist()]


def _replies(proposals: Sequence[tuple[int, int]], names: Sequence[str]) -> list[Sequence[Any]]:
    rows: list[Sequence[Any]] = []
    for a, b in proposals:
        reply = input(f"1: {names[a]}   2: {names[b]}   which wins (1, 2, =, empty to stop)? ").strip()
        if reply not in ("1", "2", "="):
            break
        first, second = (a, b) if reply != "2" else (b, a)
        rows.append((names[first], names[second], 0, 1.0, 0.5 if reply == "=" else 1.0))
    return rows


def _write_ranking(run: Run, ranker: IdealPointRanker, items: NamedSeries) -> None:
    import numpy as np

    scores = ranker.scores_ - ranker.scores_.mean()
    blank = np.full((len(scores), 2), np.nan)
    limits = getattr(ranker, "score_interval_", blank)
    order = np.argsort(-scores, kind="stable").tolist()
    rows = [
        (place + 1, items.names[k], float(scores[k]), *("" if np.isnan(v) else float(v) for v in limits[k]))
        for place, k in enumerate(order)
    ]
    _write(run, "ranking.csv", ("rank", "item", "score", "low", "high"), rows)
    ideal = ranker.ideal_point_
    _write(run, "ideal.csv", [f"channel_{c}" for c in range(ideal.shape[1])], ideal.tolist())


def _draw(run: Run, ranker: IdealPointRanker, given: Any, names: list[str]) -> None:
    from icml_idealpoint.plots import ideal_series, ranking

    with run.path("ranking.png") as temporary:
        ranking(ranker.scores_, temporary, intervals=getattr(ranker, "score_interval_", None), names=names)
    with run.path("ideal.png") as temporary:
        ideal_series(ranker, given, temporary)


def _write(run: Run, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with run.path(name) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)

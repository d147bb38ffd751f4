"""``icml verify``: scheduling, resuming, judging, reporting, over every executor."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest


def heed_interrupts():
    """In a child: what a shell starts in the background ignores SIGINT, and so would its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


DEADLY = """
from icml_core import ClaimSuite, Run
suite = ClaimSuite("deadly")

def _claim(measure, name):
    suite.claim(name, of=measure, figure="x", kind="every", at_most=1.0, statement="s", paper="p")

@suite.measure(seeds={"smoke": 1, "small": 5, "full": 5})
def calm(run: Run, seed: int):
    import time
    time.sleep(0.2)
    return {"x": 0.5}

@suite.measure(seeds={"smoke": 1, "small": 1, "full": 1})
def dies_once(run: Run, seed: int):
    import os, signal
    from pathlib import Path
    marker = Path(os.environ["DEADLY_MARKER"])
    if not marker.exists():
        marker.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return {"x": 0.25}

@suite.measure(seeds={"smoke": 1, "small": 1, "full": 1})
def always_dies(run: Run, seed: int):
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)

@suite.measure(seeds={"smoke": 1, "small": 2, "full": 2}, exclusive=True)
def threads(run: Run, seed: int):
    import os
    return {"x": 0.0, "threads": float(os.environ["OMP_NUM_THREADS"])}

@suite.measure(seeds={"smoke": 1, "small": 2, "full": 2})
def shared_threads(run: Run, seed: int):
    import os
    return {"x": 0.0, "threads": float(os.environ["OMP_NUM_THREADS"])}

for measure in (calm, dies_once, always_dies, threads, shared_threads):
    _claim(measure, measure.__name__)
suite.claim("threads-alone", of=threads, figure="threads", kind="every", statement="s", paper="p")
suite.claim("threads-shared", of=shared_threads, figure="threads", kind="every", statement="s", paper="p")
"""

PLUGIN = """
from icml_core import hookimpl

@hookimpl
def icml_claims():
    return "icml_{name}.claims:suite"
"""


def add_claims(site, name, source):
    site.add(name, PLUGIN.format(name=name), files={"claims.py": source})


@pytest.fixture
def deadly(site, monkeypatch):
    add_claims(site, "deadly", DEADLY)
    monkeypatch.setenv("DEADLY_MARKER", str(site.work / "marker"))
    return site


def verdicts(document):
    return {claim["id"]: claim["verdict"] for claim in document["claims"]}


def test_verdicts_report_and_status(good):
    done = good.icml("verify", "good", "--teeth")
    assert done.returncode == 1
    table = done.stdout.splitlines()
    assert any(line.startswith("small-error") and line.endswith("holds, bites") for line in table)
    assert any(line.startswith("toothless") and line.endswith("holds, blunt") for line in table)
    assert any(line.startswith("reported") and line.endswith("measured") for line in table)
    assert any(line.startswith("wrong") and line.endswith("fails") for line in table)
    folder = good.work / "icml-runs" / "verify" / "good"
    assert f"report: {folder.relative_to(good.work)}/report.html" in done.stdout
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 4
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "| small-error |" in (folder / "report.md").read_text()


def test_json_is_one_document_although_measures_print(good):
    done = good.icml("verify", "good", "--json")
    document = json.loads(done.stdout)
    assert document["plugin"] == "good"
    claim = document["claims"][0]
    promised = "id statement paper kind bound values low high unit verdict teeth seconds"
    assert set(promised.split()) <= set(claim)
    assert "noise on standard output" in done.stderr
    assert isinstance(json.loads(good.icml("verify", "good", "good", "--json").stdout), list)


def test_one_claim_alone_and_an_unknown_one(good):
    document = json.loads(good.icml("verify", "good", "--only", "small-error", "--json").stdout)
    assert [c["id"] for c in document["claims"]] == ["small-error"]
    assert document["claims"][0]["verdict"] == "holds"
    done = good.icml("verify", "good", "--only", "small-eror")
    assert done.returncode == 2
    assert "did you mean small-error?" in done.stderr


def test_status_is_0_when_all_hold_and_strict_wants_all_decided(site):
    add_claims(
        site,
        "mild",
        """
        from icml_core import ClaimSuite
        suite = ClaimSuite("mild")
        @suite.measure(seeds={"smoke": 1, "small": 1, "full": 1})
        def one(run, seed):
            return {"x": 0.5}
        @suite.measure(seeds={"smoke": 1, "small": 1, "full": 1}, needs=("not-there-at-all>=2",))
        def needy(run, seed):
            return {"x": 0.5}
        suite.claim("fine", of=one, figure="x", kind="every", at_most=1.0, statement="s", paper="p")
        suite.claim("open", of=one, figure="x", kind="mean", at_most=1.0, statement="s", paper="p")
        suite.claim("needs", of=needy, figure="x", kind="every", at_most=1.0, statement="s", paper="p")
        """,
    )
    done = site.icml("verify", "mild")
    assert done.returncode == 0
    assert "needs not-there-at-all>=2" in done.stdout
    assert site.icml("verify", "mild", "--strict").returncode == 1
    assert site.icml("verify", "mild", "--strict", "--only", "fine").returncode == 0


def test_the_same_code_is_measured_once_and_changed_code_again(good):
    assert good.spawn("verify", "good").stderr.count("seed") == 4
    assert good.spawn("verify", "good").stderr.count("seed") == 0
    assert good.spawn("verify", "good", "--force").stderr.count("seed") == 4
    method = good.folder / "icml_good" / "method.py"
    shared = good.folder / "icml_shared" / "__init__.py"
    shared.parent.mkdir()
    shared.write_text("")
    method.write_text(method.read_text() + "\nimport icml_shared\n")
    assert good.spawn("verify", "good").stderr.count("seed") == 4
    assert good.spawn("verify", "good").stderr.count("seed") == 0
    shared.write_text("# what another distribution gives it, changed\n")
    assert good.spawn("verify", "good").stderr.count("seed") == 4


def test_a_failing_measure_is_shown_at_once_and_the_rest_goes_on(site):
    source = """
        from icml_core import ClaimSuite
        suite = ClaimSuite("partly")
        @suite.measure(seeds={"smoke": 1, "small": 3, "full": 3})
        def shaky(run, seed):
            raise RuntimeError("no luck")
        @suite.measure(seeds={"smoke": 1, "small": 3, "full": 3})
        def fine(run, seed):
            return {"x": 0.5}
        @suite.measure(seeds={"smoke": 1, "small": 1, "full": 1})
        def infinite(run, seed):
            return {"x": float("nan")}
        for m in (shaky, fine, infinite):
            suite.claim(m.__name__, of=m, figure="x", kind="every", at_most=1.0, statement="s", paper="p")
        """
    add_claims(site, "partly", source)
    done = site.icml("verify", "partly", "--json")
    assert verdicts(json.loads(done.stdout)) == {"shaky": "error", "fine": "holds", "infinite": "error"}
    assert done.returncode == 1
    assert "RuntimeError: no luck" in done.stderr
    assert "not finite" in done.stderr
    stopped = site.icml("verify", "partly", "--fail-fast", "--force", "--json")
    assert stopped.stderr.count("shaky seed") == 1
    assert verdicts(json.loads(stopped.stdout))["fine"] == "error"


def test_a_killed_verification_continues_where_it_was(site):
    add_claims(
        site,
        "slow",
        """
        from icml_core import ClaimSuite
        suite = ClaimSuite("slow")
        @suite.measure(seeds={"smoke": 1, "small": 6, "full": 6})
        def slow(run, seed):
            import time
            time.sleep(0.5)
            return {"x": seed / 2**32}
        suite.claim("slow", of=slow, figure="x", kind="mean", at_most=1.0, statement="s", paper="p")
        """,
    )
    whole = json.loads(site.icml("verify", "slow", "--json", "--out", "whole").stdout)
    process = subprocess.Popen(
        [sys.executable, "-m", "icml_core", "verify", "slow", "--out", "killed"],
        cwd=site.work, env=site.environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    kept = site.work / "killed" / "slow" / "measures" / "slow"
    deadline = time.monotonic() + 60
    while len(list(kept.glob("*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    done = site.icml("verify", "slow", "--json", "--out", "killed")
    assert 0 < done.stderr.count("slow seed") < 6
    assert json.loads(done.stdout)["claims"][0]["values"] == whole["claims"][0]["values"]


@pytest.mark.parametrize("executor", ["in-process", "processes:2"])
def test_an_interrupt_keeps_what_was_measured(site, executor):
    add_claims(
        site,
        "slow",
        """
        from icml_core import ClaimSuite
        suite = ClaimSuite("slow")
        @suite.measure(seeds={"smoke": 1, "small": 50, "full": 50})
        def slow(run, seed):
            import time
            time.sleep(0.5)
            return {"x": 0.5}
        suite.claim("slow", of=slow, figure="x", kind="mean", at_most=1.0, statement="s", paper="p")
        """,
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "icml_core", "verify", "slow", "--out", "r", "--executor", executor],
        cwd=site.work, env=site.environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        preexec_fn=heed_interrupts, start_new_session=True,
    )  # fmt: skip
    kept = site.work / "r" / "slow" / "measures" / "slow"
    deadline = time.monotonic() + 60
    while not list(kept.glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "of 50 measures are kept in r/slow" in errors
    assert "Traceback" not in errors
    assert all(json.loads(p.read_text())["figures"] == {"x": 0.5} for p in kept.glob("*.json"))


def test_processes_survive_killed_workers(deadly):
    done = deadly.spawn("verify", "deadly", "--executor", "processes:2", "--json")
    document = json.loads(done.stdout)
    found = {claim["id"]: claim for claim in document["claims"]}
    assert (deadly.work / "marker").exists()
    assert found["calm"]["values"] == [0.5] * 5
    assert found["dies_once"]["verdict"] == "holds"
    assert found["always_dies"]["verdict"] == "error"
    assert "killed its worker 2 times" in found["always_dies"]["note"]
    assert found["threads"]["verdict"] == "holds"
    assert done.returncode == 1


def test_workers_share_the_cores(deadly):
    from icml_core.measuring import cores

    names = ["--only", "threads-alone", "--only", "threads-shared"]
    document = json.loads(
        deadly.spawn("verify", "deadly", *names, "--executor", "processes:2", "--json").stdout
    )
    found = {claim["id"]: claim["values"] for claim in document["claims"]}
    assert found["threads-alone"] == [float(cores())] * 2
    assert found["threads-shared"] == [float(max(1, cores() // 2))] * 2


@contextmanager
def dask_cluster(environment, folder):
    """Address of a scheduler with two workers, each brought back when it dies.

    Dask's own nannies, which do the same, now and then wait for ever on a busy machine.
    """
    file = folder / "scheduler.json"
    ended = threading.Event()

    def start(*command):
        host = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file)]
        return subprocess.Popen(
            [sys.executable, "-m", *command, *host], env=environment, cwd=folder, stderr=subprocess.DEVNULL
        )

    def keep_a_worker():
        while not ended.is_set():
            worker = start("distributed.cli.dask_worker", "--no-nanny", "--nthreads", "1")
            while worker.poll() is None and not ended.wait(0.05):
                pass
            worker.kill()
            worker.wait(30)

    scheduler = start("distributed.cli.dask_scheduler", "--port", "0")
    keepers = [threading.Thread(target=keep_a_worker) for _ in range(2)]
    try:
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        for keeper in keepers:
            keeper.start()
        yield json.loads(file.read_text())["address"]
    finally:
        ended.set()
        for keeper in keepers:
            if keeper.is_alive():
                keeper.join()
        scheduler.kill()
        scheduler.wait(30)


def test_dask_survives_killed_workers(deadly):
    pytest.importorskip("distributed")
    environment = deadly.environment() | {
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s",  # how long to call a dead worker
    }
    only = [word for name in ("calm", "dies_once", "always_dies") for word in ("--only", name)]
    with dask_cluster(environment, deadly.work) as address:
        words = ["verify", "deadly", "--executor", f"dask:{address}", "--json", *only]
        document = json.loads(deadly.spawn(*words, timeout=120).stdout)
    found = {claim["id"]: claim for claim in document["claims"]}
    assert found["calm"]["values"] == [0.5] * 5
    assert found["dies_once"]["verdict"] == "holds"
    assert found["always_dies"]["verdict"] == "error"
    assert "KilledWorker" in found["always_dies"]["note"]


@pytest.mark.parametrize(
    ("executor", "hint"),
    [
        ("process:2", "none of in-process"),
        ("processes:none", "how many"),
        ("dask:tcp://127.0.0.1:9", "no scheduler"),
    ],
)
def test_a_wrong_executor_is_one_line(deadly, executor, hint):
    done = deadly.icml("verify", "deadly", "--only", "calm", "--executor", executor)
    assert done.returncode == 2
    assert hint in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_smoke_runs_every_ablation_and_judges_nothing(good):
    document = json.loads(good.icml("verify", "good", "--scale", "smoke", "--json").stdout)
    assert set(verdicts(document).values()) == {"measured"}
    stored = good.work / "icml-runs" / "verify" / "good" / "measures" / "adding"
    assert {p.name for p in stored.glob("*.json")} == {
        "smoke-0.json",
        "smoke-0-off.json",
        "smoke-0-idle.json",
    }


def test_a_report_is_written_again_from_its_json(good):
    good.icml("verify", "good", "--teeth", "--out", "r")
    page = good.work / "r" / "good" / "report.html"
    before = page.read_text()
    page.unlink()
    done = good.icml("report", "r")
    assert done.returncode == 0
    assert "r/good/report.html" in done.stdout
    strip = [
        line for line in before.splitlines() if "clip" not in line and "id=" not in line and "#" not in line
    ]
    again = [
        line
        for line in page.read_text().splitlines()
        if "clip" not in line and "id=" not in line and "#" not in line
    ]
    assert [s for s in again if "<dd>" in s or "<td" in s] == [s for s in strip if "<dd>" in s or "<td" in s]
    assert good.icml("report", "nowhere").returncode == 2


def test_the_ledger_is_written_into_the_workspace_and_only_there(good):
    refused = good.icml("verify", "good", "--ledger")
    assert refused.returncode == 2
    assert "inside a clone" in refused.stderr
    (good.work / "uv.lock").write_text("")
    (good.work / "packages").mkdir()
    assert good.icml("verify", "good", "--ledger").returncode == 1
    ledger = json.loads((good.work / "docs" / "ledger" / "good.json").read_text())
    assert {c["id"]: c["teeth"] for c in ledger["claims"]}["toothless"] == "blunt"


def test_verify_wants_names_or_all(good):
    assert good.icml("verify").returncode == 2
    assert good.icml("verify", "good", "--all").returncode == 2
    assert "did you mean good?" in good.icml("verify", "godd").stderr

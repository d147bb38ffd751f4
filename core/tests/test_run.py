"""``icml run``: options in, a directory that is always valid out."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from icml_core import Run
from icml_core.run import read_record, write_atomically


def heed_interrupts():
    """In a child: what a shell starts in the background ignores SIGINT, and so would its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def read(path):
    return json.loads(path.read_text())


def test_a_run_leaves_its_result_record_and_configuration(good):
    done = good.icml("run", "good.sum", "--numbers", "3", "--numbers", "4", "--out", "r")
    assert done.returncode == 0, done.stderr
    assert "sum: 7" in done.stdout
    record = read(good.work / "r" / "run.json")
    assert record["status"] == "done"
    assert record["result"]["sum"] == 7
    assert record["options"]["numbers"] == [3, 4]
    assert record["options"]["step"] == {"size": 0.5, "kind": "plain", "count": 3}
    assert {"host", "python", "versions", "seconds", "peak_memory_bytes", "revision"} <= set(record)
    assert (good.work / "r" / "sum.txt").read_text() == "7.0"
    assert sorted(p.name for p in (good.work / "r").iterdir()) == [
        "config.toml",
        "metrics.jsonl",
        "run.json",
        "sum.txt",
    ]


CASES = {
    "plain": [],
    "empty list": ["--empty-numbers"],
    "negative numbers": ["--numbers", "-3", "--factor", "-1.5", "--pair", "-1", "-2"],
    "booleans": ["--no-flag"],
    "none": ["--none-name"],
    "nested none": ["--step.count", "none"],
    "spaces": ["--place", "a folder/with spaces", "--name", "a b"],
    "leading dash": ["--name=-dash", "--place=--odd"],
    "nested": ["--step.size", "0.25", "--step.kind", "fancy"],
    "enum": ["--color", "red-hot"],
    "unicode": ["--name", 'Ångström "quoted" \\ back'],
}


@pytest.mark.parametrize("case", CASES)
def test_options_survive_the_way_through_json_and_toml(good, case):
    """Command line to run.json, back by --config, then through config.toml: three equal configurations."""
    assert good.icml("run", "good.sum", *CASES[case], "--seed", "7", "--out", "a").returncode == 0
    done = good.icml("run", "good.sum", "--config", "a/run.json", "--out", "b")
    assert done.returncode == 0, done.stderr
    done = good.icml("run", "good.sum", "--config", "b/config.toml", "--out", "c")
    assert done.returncode == 0, done.stderr
    first, second, third = (read(good.work / name / "run.json")["options"] for name in "abc")
    assert first == second == third
    assert first["seed"] == 7


def test_the_command_line_wins_over_the_configuration(good):
    (good.work / "c.toml").write_text('factor = 3\nname = "from file"\n[step]\nkind = "fancy"\n')
    done = good.icml(
        "run", "good.sum", "--config", "c.toml", "--factor", "2", "--step.size", "9", "--out", "r"
    )
    assert done.returncode == 0, done.stderr
    options = read(good.work / "r" / "run.json")["options"]
    assert options["factor"] == 2
    assert options["name"] == "from file"
    assert options["step"] == {"size": 9.0, "kind": "fancy", "count": 3}


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--factr", "1"], "unknown option --factr; did you mean --factor?"),
        (["--step.sice", "1"], "did you mean --step.size?"),
        (["--factor", "many"], 'unable to convert "many" into float'),
        (["--rounds", "2.5"], "'2.5' is not an integer"),
        (["--numbers", "1", "--numbers", "1.5"], "'1.5' is not an integer"),
        (["--step.count", "0.5"], "'0.5' is not an integer"),
        (["--step.kind", "odd"], '"plain", "fancy"'),
        (["--color", "green"], '"red-hot", "blue"'),
        (["--factor"], "--factor requires an argument"),
        (["stray"], "stray"),
        (["--device", "tpu"], "auto, cpu, cuda"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["--resume", "nowhere"], "there is no run"),
        (["--fail", "early"], "factor 1.0 is early; give another"),
    ],
)
def test_a_wrong_option_is_one_line_status_2_and_no_directory(good, arguments, hint):
    done = good.icml("run", "good.sum", "--out", "r", *arguments)
    assert done.returncode == 2
    assert hint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert not (good.work / "r").exists()


@pytest.mark.parametrize(
    ("toml", "hint"),
    [
        ("factr = 1", "unknown key 'factr'; did you mean factor?"),
        ("[step]\nsice = 1", "unknown key 'step.sice'; did you mean step.size?"),
        ("rounds = 2.5", "rounds = 2.5 is not an integer"),
        ("rounds = true", "rounds = True is not an integer"),
        ('flag = "yes"', "flag = 'yes' is not true or false"),
        ("name = 3", "name = 3 is not text or none"),
        ("numbers = 3", "numbers = 3 is not"),
        ("numbers = [1.5]", "numbers = [1.5] is not"),
        ('[step]\nkind = "odd"', "'plain', 'fancy'"),
        ("step = 3", "step = 3 is not"),
        ('none = "name"', "must list the names"),
        ('none = ["nam"]', "did you mean name?"),
        ("factor = ", "cannot be read"),
        ("out = 'x'", "unknown key 'out'"),
    ],
)
def test_a_wrong_configuration_is_refused_at_any_depth(good, toml, hint):
    (good.work / "c.toml").write_text(toml)
    done = good.icml("run", "good.sum", "--config", "c.toml", "--out", "r")
    assert done.returncode == 2
    assert hint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (good.work / "r").exists()


def test_an_existing_run_is_refused_replaced_by_force_and_kept_when_the_new_one_is_refused(good):
    assert good.icml("run", "good.sum", "--out", "r").returncode == 0
    refused = good.icml("run", "good.sum", "--out", "r")
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    early = good.icml("run", "good.sum", "--out", "r", "--force", "--fail", "early")
    assert early.returncode == 2
    assert read(good.work / "r" / "run.json")["status"] == "done"
    assert good.icml("run", "good.sum", "--out", "r", "--force", "--factor", "5").returncode == 0
    assert read(good.work / "r" / "run.json")["result"]["sum"] == 15
    assert [p.name for p in good.work.iterdir()] == ["r"]


def test_force_refuses_to_replace_what_is_no_run(good):
    (good.work / "precious").mkdir()
    (good.work / "precious" / "data.txt").write_text("keep")
    done = good.icml("run", "good.sum", "--out", "precious", "--force")
    assert done.returncode == 2
    assert (good.work / "precious" / "data.txt").read_text() == "keep"


def test_a_failure_while_it_works_is_recorded_with_its_traceback(good):
    done = good.icml("run", "good.sum", "--fail", "late", "--out", "r")
    assert done.returncode == 1
    assert "failed: ValueError: late" in done.stderr
    assert read(good.work / "r" / "run.json")["status"] == "failed"
    assert "Traceback" in (good.work / "r" / "traceback.txt").read_text()


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_valid_run_that_can_be_resumed(good, sign):
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "icml_core",
            "run",
            "good.sum",
            "--fail",
            "hang",
            "--rounds",
            "3",
            "--out",
            "r",
        ],
        cwd=good.work,
        env=good.environment(),
        stderr=subprocess.PIPE,
        preexec_fn=heed_interrupts,
        text=True,
    )
    metrics = good.work / "r" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not metrics.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(sign)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume r" in errors
    assert read(good.work / "r" / "run.json")["status"] == "interrupted"
    changed = good.icml("run", "good.sum", "--resume", "r", "--factor", "2")
    assert changed.returncode == 2
    assert "factor = 1.0, not 2.0" in changed.stderr
    record = read(good.work / "r" / "run.json")
    record["options"]["fail"] = "no"
    (good.work / "r" / "run.json").write_text(json.dumps(record))
    resumed = good.icml("run", "good.sum", "--resume", "r", "--rounds", "4")
    assert resumed.returncode == 0, resumed.stderr
    assert len(metrics.read_text().splitlines()) == 4
    record = read(good.work / "r" / "run.json")
    assert record["status"] == "done"
    assert record["earlier"][0]["status"] == "interrupted"


@pytest.mark.skipif(os.geteuid() == 0 and sys.platform != "linux", reason="needs a path root cannot write")
def test_an_unwritable_directory_is_one_line(good):
    done = good.icml("run", "good.sum", "--out", "/proc/nothing/here")
    assert done.returncode == 2
    assert "cannot write to /proc/nothing/here" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(good):
    """A limit on file sizes stands for a full disk: writes beyond it fail."""
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from icml_core.cli import call\n"
        "sys.exit(call(['run', 'good.sum', '--out', 'r']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=good.work, env=good.environment()
    )
    assert done.returncode == 2
    assert "cannot write to r" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(good.work.glob("r/*"))


def test_a_default_directory_is_new_each_time(good):
    first = good.icml("run", "good.sum").stdout.splitlines()[-1]
    second = good.icml("run", "good.sum").stdout.splitlines()[-1]
    assert first != second
    assert "icml-runs" in first


def test_a_component_without_a_job_says_how_to_use_it(good):
    good.add(
        "jobless",
        """
        from icml_core import Component, hookimpl
        @hookimpl
        def icml_models():
            return [Component("jobless.net", "icml_jobless.net:Net", summary="no job")]
        """,
    )
    done = good.icml("run", "jobless.net")
    assert done.returncode == 2
    assert "from icml_jobless.net import Net" in done.stderr


def test_what_is_missing_is_named_with_the_command_that_brings_it(good):
    good.add(
        "needy",
        """
        from icml_core import Component, hookimpl
        @hookimpl
        def icml_models():
            return [Component("needy.net", "icml_needy.net:Net", summary="s", job="icml_needy.jobs:go",
                              requires=("pluggy>=99",)),
                    Component("needy.other", "icml_needy.net:Net", summary="s", job="icml_needy.jobs:go",
                              requires=("not-there-at-all>=1",))]
        """,
        files={"jobs.py": "def go(*, run, steps: int = 1):\n    '''Go.'''\n"},
    )
    done = good.icml("run", "needy.net", "--out", "r")
    assert done.returncode == 2
    assert "needs pluggy>=99 (found " in done.stderr
    assert 'pip install "pluggy>=99"' in done.stderr
    assert not (good.work / "r").exists()
    listing = good.icml("list").stdout
    assert "[needs not-there-at-all>=1" in listing


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "data.bin"
    target.write_text("before")

    def fail():
        with write_atomically(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fail()
    assert target.read_text() == "before"
    with write_atomically(target) as temporary:
        assert temporary.suffix == ".bin"
        temporary.write_text("after")
    assert target.read_text() == "after"
    assert [p.name for p in tmp_path.iterdir()] == ["data.bin"]


def test_a_run_refuses_to_write_outside_its_directory(tmp_path):
    run = Run(tmp_path / "r")
    with pytest.raises(ValueError, match="leads out of the run directory"):
        run.file("../elsewhere")


def test_a_broken_record_reads_as_none(tmp_path):
    assert read_record(tmp_path) is None
    (tmp_path / "run.json").write_text("{half")
    assert read_record(tmp_path) is None


def test_the_log_is_one_json_object_a_line(tmp_path):
    run = Run(tmp_path / "r")
    run.log(1, loss=0.5)
    run.log(2, loss=0.25, rate=1)
    lines = [json.loads(line) for line in run.file("metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25, "rate": 1}]

"""Requests, completions, scripted clients and what stands around a client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_lm.chat_models import chat_client
from icml_lm.client import (
    BadReplyError,
    BudgetExhaustedError,
    ChatClient,
    ChatError,
    ChatRefusedError,
    ChatUnavailableError,
    Completion,
    Request,
)
from icml_lm.model_names import ModelName
from icml_lm.scripted_client import ScriptedClient, register_script
from icml_lm.wrappers import Budget, Cached, Recorded, Retry


class Counting(ChatClient):
    """Answers with the number of calls so far; fails as told."""

    name = "scripted:counting"

    def __init__(self, *failures: ChatError | None, pause: float = 0.0) -> None:
        self.failures, self.pause = list(failures), pause
        self.calls = 0
        self._lock = threading.Lock()

    def complete(self, request: Request) -> list[Completion]:
        with self._lock:
            self.calls += 1
            number = self.calls
            failure = self.failures.pop(0) if self.failures else None
        time.sleep(self.pause)
        if failure is not None:
            raise failure
        return [
            Completion(f"{number}.{i}", tokens_in=3 if i == 0 else 0, tokens_out=2) for i in range(request.n)
        ]


@pytest.mark.parametrize(
    ("messages", "options", "says"),
    [
        ([], {}, "no message"),
        ([{"role": "robot", "content": "x"}], {}, "robot"),
        ([{"role": "user", "content": None}], {}, "None"),
        ("x", {"n": 0}, "n = 0"),
        ("x", {"max_tokens": 0}, "max_tokens = 0"),
        ("x", {"temperature": -1.0}, "temperature"),
        ("x", {"temperature": float("nan")}, "temperature"),
        ("x", {"top_p": 0.0}, "top_p"),
        ("x", {"stop": ("",)}, "stop"),
    ],
)
def test_what_cannot_be_asked_is_refused(messages, options, says):
    with pytest.raises(ValueError, match=says):
        Request.of(messages, **options)


def test_a_text_is_a_users_message_and_a_stop_may_stand_alone():
    request = Request.of("hi", stop="END")
    assert request.messages == (("user", "hi"),)
    assert request.stop == ("END",)
    assert request.as_messages() == [{"role": "user", "content": "hi"}]


def test_the_key_tells_every_difference_and_is_the_same_in_another_process():
    base = Request.of("ü")
    changes = {"n": 2, "temperature": 0.5, "top_p": 0.5, "max_tokens": 2}
    changes |= {"stop": "a", "seed": 1, "logprobs": True}
    others = [Request.of("ü", **{name: value}) for name, value in changes.items()]
    keys = {r.key("m") for r in (base, *others)} | {base.key("other")}
    assert len(keys) == len(others) + 2
    code = "from icml_lm.client import Request; print(Request.of('ü').key('m'))"
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": "5"},
    )  # fmt: skip
    assert there.stdout.strip() == base.key("m")


@pytest.mark.parametrize("text", ["", "smollm2:x", "hf:", "openai:", "nothing:here", "tiny:", "gpt-4"])
def test_names_that_name_no_model(text):
    with pytest.raises(ValueError, match="names no model"):
        ModelName.parse(text)


@pytest.mark.parametrize(
    "text",
    ["openai:m@ftp://localhost/v1", "openai:m@localhost:8000", "openai:m@http://", "openai:m@"],
)
def test_addresses_that_are_none(text):
    with pytest.raises(ValueError, match="no http address"):
        ModelName.parse(text)


@pytest.mark.parametrize(
    "address", ["http://" + "me:secret@example.com/v1", "https://example.com/v1?key=secret"]
)
def test_an_address_with_a_secret_is_refused_without_showing_it(address):
    with pytest.raises(ValueError, match="api_key_env") as caught:
        ModelName.parse(f"openai:m@{address}")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "smollm2",
        "hf:some/folder",
        "tiny:digits",
        "scripted:echo",
        "openai:gpt-oss",
        "openai:org/model:tag@http://localhost:8000/v1",
    ],
)
def test_names_read_and_written_are_the_same(text):
    assert str(ModelName.parse(text)) == text


def test_an_existing_folder_needs_no_prefix(tmp_path):
    assert ModelName.parse(str(tmp_path)) == ModelName("hf", str(tmp_path))


@settings(deadline=None)
@given(
    st.text(), st.integers(0, 9), st.integers(0, 9),
    st.none() | st.lists(st.floats(-1e6, 0)).map(tuple), st.text(max_size=9),
)  # fmt: skip
def test_completions_survive_json(text, tokens_in, tokens_out, logprobs, finish):
    completion = Completion(text, tokens_in, tokens_out, logprobs, finish, 0.25, "fp")
    assert Completion.from_json(json.loads(json.dumps(completion.to_json()))) == completion


def test_what_is_no_completion_is_refused():
    good = Completion("a").to_json()
    for bad in (
        {**good, "text": 5},
        {**good, "tokens_in": "3"},
        {k: v for k, v in good.items() if k != "finish"},
    ):
        with pytest.raises(ValueError, match="no completion"):
            Completion.from_json(bad)


def test_a_script_answers():
    client = ScriptedClient(lambda r: f"{r.seed}:{r.messages[-1][1]}")
    assert client.chat("a b", seed=3)[0] == Completion("3:a b", tokens_in=2, tokens_out=2)
    assert [c.text for c in client.chat("x", n=3)] == ["None:x"] * 3


def test_a_script_with_the_wrong_number_of_answers():
    with pytest.raises(BadReplyError, match="gave 2 answers where 3"):
        ScriptedClient(lambda r: ["a", "b"]).chat("x", n=3)


def test_scripts_by_name(tmp_path):
    assert chat_client("scripted:echo").chat("hello")[0].text == "hello"
    assert chat_client("scripted:icml_lm.scripted_client:echo").chat("hi")[0].text == "hi"
    with pytest.raises(ValueError, match="no registered script"):
        chat_client("scripted:nobody")
    with pytest.raises(ValueError, match="scripted:icml_lm.stats:nothing"):
        chat_client("scripted:icml_lm.stats:nothing")
    with pytest.raises(ValueError, match="takes no options"):
        chat_client("scripted:echo", timeout=3)
    with pytest.raises(ValueError, match="is taken"):
        register_script("echo", lambda r: "other")


def test_a_recording_replays_exactly_and_in_order(tmp_path):
    path = tmp_path / "deep" / "calls.jsonl"
    recorded = Recorded(Counting(), path)
    asked = [("a", {}), ("a", {}), ("b", {"n": 2, "seed": 1, "stop": "x"})]
    first = [recorded.chat(text, **options) for text, options in asked]
    twin = ScriptedClient.named(str(path))
    assert [twin.chat(text, **options) for text, options in asked] == first
    assert [c.text for c in first[0]] != [c.text for c in first[1]]
    with pytest.raises(BadReplyError, match="was not so often asked"):
        twin.chat("a")
    with pytest.raises(BadReplyError, match="was never asked"):
        twin.chat("c")


@pytest.mark.parametrize(
    "line", ["nonsense", "{}", '{"request": {"messages": [["user", "x"]]}, "completions": 5}', "[1]"]
)
def test_a_file_that_is_no_recording_names_its_line(tmp_path, line):
    path = tmp_path / "calls.jsonl"
    Recorded(Counting(), path).chat("a")
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match="line 2"):
        ScriptedClient.replay(path)


def test_the_same_question_is_asked_once(tmp_path):
    inner = Counting()
    cached = Cached(inner, tmp_path)
    first = cached.chat("a")
    assert cached.chat("a") == first
    assert Cached(inner, tmp_path).chat("a") == first
    assert (inner.calls, cached.hits, cached.misses) == (1, 1, 1)
    assert cached.chat("a", seed=1) != first
    assert inner.calls == 2


def test_the_same_question_from_many_threads_is_asked_once(tmp_path):
    inner = Counting(pause=0.05)
    found = Cached(inner, tmp_path).chat_many(["a"] * 16 + ["b"] * 16, concurrency=16)
    assert inner.calls == 2
    assert len({c[0].text for c in found[:16]}) == 1


def test_a_model_that_batches_gets_only_what_is_missing(tmp_path):
    batches = []

    class Batching(Counting):
        def complete_all(self, requests, *, concurrency=8, done=None):
            batches.append([r.messages[-1][1] for r in requests])
            return [ChatError("no") if r.messages[-1][1] == "bad" else self.complete(r) for r in requests]

    cached = Cached(Batching(), tmp_path)
    cached.chat("b")
    seen = []
    found = cached.chat_many(["a", "b", "a", "bad", "c"], errors="return", done=seen.append)
    assert batches == [["a", "bad", "c"]]
    assert isinstance(found[3], ChatError)
    assert found[0] == found[2]
    assert seen == [0, 1, 2, 3, 4]
    assert (cached.hits, cached.misses) == (2, 4)
    cached.chat_many(["a", "bad", "c"], errors="return")
    assert batches[1:] == [["bad"]]


def test_a_damaged_answer_is_asked_for_again(tmp_path):
    inner = Counting()
    cached = Cached(inner, tmp_path)
    cached.chat("a")
    (file,) = tmp_path.rglob("*.json")
    file.write_text(file.read_text()[:20])
    with pytest.warns(RuntimeWarning, match="asked for again"):
        assert cached.chat("a")[0].text == "2.0"
    assert cached.chat("a")[0].text == "2.0"
    assert not list(tmp_path.rglob("*.part"))


def test_failures_are_not_kept(tmp_path):
    cached = Cached(Counting(ChatUnavailableError("down")), tmp_path)
    with pytest.raises(ChatUnavailableError):
        cached.chat("a")
    assert cached.chat("a")[0].text == "2.0"


def test_calls_are_never_exceeded_by_many_threads():
    inner = Counting(pause=0.01)
    budget = Budget(inner, calls=5)
    found = budget.chat_many([str(i) for i in range(20)], concurrency=20, errors="return")
    refused = [f for f in found if isinstance(f, BudgetExhaustedError)]
    assert (inner.calls, len(refused)) == (5, 15)
    assert "all 5 calls" in str(refused[0])
    assert budget.used.calls == 5
    assert budget.used.tokens == 25


def test_tokens_are_counted_and_end_the_budget():
    budget = Budget(Counting(), tokens=11)
    budget.chat("a")
    budget.chat("a", n=2)
    assert (budget.used.tokens_in, budget.used.tokens_out) == (6, 6)
    with pytest.raises(BudgetExhaustedError, match="12 tokens are used, 11 were allowed"):
        budget.chat("a")


def test_kept_answers_cost_nothing(tmp_path):
    client = Cached(Budget(Counting(), calls=1), tmp_path)
    assert client.chat("a") == client.chat("a")
    with pytest.raises(BudgetExhaustedError):
        client.chat("b")


def test_what_helps_is_tried_again_with_growing_waits():
    waits: list[float] = []
    failures = [
        ChatUnavailableError("down"),
        BadReplyError("odd"),
        ChatUnavailableError("busy", retry_after=9.0),
    ]
    client = Retry(Counting(*failures), attempts=4, wait=1.0, sleep=waits.append)
    assert client.chat("a")[0].text == "4.0"
    assert 0.5 <= waits[0] <= 1.0
    assert 1.0 <= waits[1] <= 2.0
    assert waits[2] == 9.0


def test_the_last_error_stays_and_a_refusal_is_not_repeated():
    inner = Counting(*[ChatUnavailableError("down")] * 9)
    with pytest.raises(ChatUnavailableError) as caught:
        Retry(inner, attempts=3, sleep=lambda s: None).chat("a")
    assert inner.calls == 3
    assert caught.value.__notes__ == ["after 3 attempts"]
    inner = Counting(ChatRefusedError("no"))
    with pytest.raises(ChatRefusedError):
        Retry(inner, sleep=lambda s: None).chat("a")
    assert inner.calls == 1


@pytest.mark.parametrize(
    ("wrapper", "options"), [(Retry, {"attempts": 0}), (Budget, {"calls": -1}), (Budget, {"tokens": -1})]
)
def test_bad_settings_of_wrappers(wrapper, options):
    with pytest.raises(ValueError, match="="):
        wrapper(Counting(), **options)


def test_after_an_interrupt_answers_so_far_are_kept(tmp_path):
    inner = Counting(pause=0.02)
    cached = Cached(inner, tmp_path)

    def stop(place: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached.chat_many([str(i) for i in range(50)], concurrency=2, done=stop)
    assert 1 <= len(list(tmp_path.rglob("*.json"))) <= 6
    assert inner.calls <= 6


def test_the_client_side_imports_no_torch():
    code = (
        "import sys, icml_lm.chat_models, icml_lm.parse, icml_lm.stats, icml_lm.openai_client\n"
        "print([m for m in ('torch', 'transformers', 'icml_kernels') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_without_torch_the_error_has_the_command():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import icml_lm\n"
        "try:\n    icml_lm.TinyLM\nexcept Exception as error:\n    print(type(error).__name__, error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("NeedsError needs icml-lm[torch] for icml_lm.TinyLM")
    assert "pip install" in found.stdout

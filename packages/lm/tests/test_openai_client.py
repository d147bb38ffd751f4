"""The endpoint's client against a server that answers well, slowly, wrongly, or not at all."""

from __future__ import annotations

import asyncio
import sys
import traceback
from pathlib import Path

import pytest
from icml_core.errors import NeedsError
from icml_lm.client import (
    BadReplyError,
    ChatError,
    ChatRefusedError,
    ChatTimeoutError,
    ChatUnavailableError,
)
from icml_lm.openai_client import OpenAIClient
from icml_lm.wrappers import Cached, Recorded

sys.path.insert(0, str(Path(__file__).parent))
from chat_server import serving

KEY = "sk-this-must-never-be-seen"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)


def client(url: str, **options) -> OpenAIClient:
    return OpenAIClient(
        "parrot", url, api_key_env="TEST_KEY", **{"max_retries": 0, "timeout": 10.0, **options}
    )


def test_an_answer_arrives_with_its_costs():
    with serving() as (url, server):
        found = client(url).chat("abc", n=2, temperature=0.5, top_p=0.9, max_tokens=9, stop="END", seed=5)
    assert [c.text for c in found] == ["cba#0", "cba#1"]
    assert [c.tokens_in for c in found] == [11, 0]
    assert sum(c.tokens_out for c in found) == 7
    assert found[0].fingerprint == "fp-7"
    assert found[0].finish == "stop"
    assert found[0].seconds > 0
    body = server.bodies[0]
    assert body["model"] == "parrot"
    assert body["messages"] == [{"role": "user", "content": "abc"}]
    wanted = {"n": 2, "temperature": 0.5, "top_p": 0.9, "max_tokens": 9, "stop": ["END"], "seed": 5}
    assert {name: body[name] for name in wanted} == wanted
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_log_probabilities_of_tokens():
    with serving() as (url, _):
        (found,) = client(url).chat("abcd", logprobs=True)
    assert found.token_logprobs == (-0.5,) * 4
    assert found.tokens_out == 4


def test_without_a_seed_none_is_sent():
    with serving() as (url, server):
        client(url).chat("a")
    assert "seed" not in server.bodies[0]
    assert "stop" not in server.bodies[0]
    assert "logprobs" not in server.bodies[0]


def test_an_endpoint_that_gives_one_choice_at_a_time_is_asked_for_the_rest():
    with serving("one choice") as (url, server):
        found = client(url).chat("abc", n=3, seed=10)
    assert len(found) == 3
    assert [body["n"] for body in server.bodies] == [3, 2, 1]
    assert [body["seed"] for body in server.bodies] == [10, 11, 12]


@pytest.mark.parametrize("failure", [500, 503, (429, "0"), "hang-up"])
def test_it_asks_again_where_that_helps(failure):
    with serving(failure, failure, "ok") as (url, server):
        (found,) = client(url, max_retries=3).chat("abc")
    assert found.text == "cba#0"
    assert len(server.bodies) == 3


@pytest.mark.parametrize(
    ("act", "error", "says"),
    [
        (500, ChatUnavailableError, "answered 500"),
        (429, ChatUnavailableError, "answered 429"),
        ("hang-up", ChatUnavailableError, "cannot be reached"),
        ("slow", ChatTimeoutError, "raise timeout"),
        (401, ChatRefusedError, "TEST_KEY"),
        (404, ChatRefusedError, "refused the request with 404"),
        ("not json", BadReplyError, "parrot"),
        ("no choices", BadReplyError, "without choices"),
    ],
)
def test_failures_say_what_happened_and_hide_the_key(act, error, says):
    with serving(act) as (url, server):
        with pytest.raises(error, match=says) as caught:
            client(url, timeout=0.3 if act == "slow" else 10.0).chat("abc")
        assert len(server.bodies) == 1
    shown = "".join(traceback.format_exception(caught.value))
    assert KEY not in shown


def test_the_time_that_the_endpoint_names_is_kept():
    with serving((429, "7")) as (url, _), pytest.raises(ChatUnavailableError) as caught:
        client(url).chat("abc")
    assert caught.value.retry_after == 7.0


def test_no_server_at_all():
    with serving() as (url, _):
        pass
    with pytest.raises(ChatUnavailableError, match="is the server running"):
        client(url, timeout=2.0).chat("abc")


def test_the_key_is_in_no_name_and_no_file(tmp_path):
    with serving() as (url, _):
        inner = client(url)
        wrapped = Cached(Recorded(inner, tmp_path / "calls.jsonl"), tmp_path / "cache")
        wrapped.chat("abc")
    assert KEY not in repr(inner) + repr(wrapped) + inner.name + repr(vars(inner))
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) == 2
    assert all(KEY not in p.read_text() for p in files)


def test_many_are_asked_at_once_and_stay_in_order():
    with serving(pause=0.1) as (url, server):
        found = client(url).chat_many([f"q{i}" for i in range(12)], concurrency=6)
    assert [c[0].text for c in found] == [f"{f'q{i}'[::-1]}#0" for i in range(12)]
    assert 2 <= server.most_at_once <= 6


def test_a_failure_among_many_stays_in_its_place():
    with serving("ok", 500, "ok") as (url, _):
        found = client(url).chat_many(["a", "b", "c"], concurrency=1, errors="return")
        assert [isinstance(f, ChatError) for f in found] == [False, True, False]
    with serving("ok", 404, "ok") as (url, _), pytest.raises(ChatRefusedError) as caught:
        client(url).chat_many(["a", "b", "c"], concurrency=1)
    assert caught.value.__notes__ == ["conversation 1 of 3"]


def test_the_event_loop_is_not_blocked():
    async def both(c: OpenAIClient) -> list:
        return await asyncio.gather(*(c.achat(f"q{i}") for i in range(4)))

    with serving(pause=0.1) as (url, server):
        found = asyncio.run(both(client(url)))
    assert [c[0].text for c in found] == ["0q#0", "1q#0", "2q#0", "3q#0"]
    assert server.most_at_once >= 2


@pytest.mark.parametrize("options", [{"timeout": 0.0}, {"max_retries": -1}])
def test_bad_settings(options):
    with pytest.raises(ValueError, match="timeout"):
        OpenAIClient("m", "http://localhost:1/v1", **options)


def test_without_the_library_the_error_has_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(NeedsError, match=r"pip install .*icml-lm\[openai\]"):
        OpenAIClient("m")

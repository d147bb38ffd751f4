"""A local HTTP server that speaks the chat protocol well, slowly, wrongly, or not at all."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Behaviour:
    """What the server does next, and what it has seen.

    ``script`` holds one entry a request (the last one is repeated): ``"ok"``, ``"slow"``, ``"hang-up"``,
    ``"not json"``, ``"no choices"``, ``"one choice"``, or a status code; a pair adds ``Retry-After`` seconds.
    """

    script: list[Any] = field(default_factory=lambda: ["ok"])
    bodies: list[dict] = field(default_factory=list)
    headers: list[dict] = field(default_factory=list)
    most_at_once: int = 0
    pause: float = 0.0
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, body: dict, headers: dict) -> Any:
        with self._lock:
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            self.bodies.append(body)
            self.headers.append(headers)
            return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    def leave(self) -> None:
        with self._lock:
            self._now -= 1


@contextmanager
def serving(*script: Any, pause: float = 0.0) -> Iterator[tuple[str, Behaviour]]:
    """The address and the behaviour of a server that lives as long as the block."""
    behaviour = Behaviour(list(script) or ["ok"], pause=pause)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            act = behaviour.enter(body, dict(self.headers))
            try:
                time.sleep(behaviour.pause)
                self.answer(act, body)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client has gone, as it should
            finally:
                behaviour.leave()

        def answer(self, act: Any, body: dict) -> None:
            extra = {}
            if isinstance(act, tuple):
                act, extra["retry-after"] = act
            if act == "hang-up":
                self.connection.close()
            elif act == "slow":
                time.sleep(3)
                self.send(200, completion(body))
            elif act == "not json":
                self.send(200, "<html>proxy error</html>")
            elif act == "no choices":
                self.send(200, {"id": "1", "object": "chat.completion", "choices": []})
            elif act == "one choice":
                self.send(200, completion({**body, "n": 1}))
            elif act == "ok":
                self.send(200, completion(body))
            else:
                key = self.headers.get("authorization", "")
                self.send(act, {"error": {"message": f"no: {act}, you sent {key}"}}, extra)

        def send(self, status: int, content: Any, extra: dict | None = None) -> None:
            data = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            for name, value in (extra or {}).items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", behaviour
    finally:
        server.shutdown()
        server.server_close()


def completion(body: dict) -> dict:
    """A well-formed answer: the last message reversed, once for each choice, numbered."""
    text = body["messages"][-1]["content"][::-1]
    choices = []
    for place in range(body.get("n") or 1):
        choice: dict[str, Any] = {
            "index": place,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": f"{text}#{place}"},
            "logprobs": None,
        }
        if body.get("logprobs"):
            tokens = [{"token": c, "logprob": -0.5, "bytes": None, "top_logprobs": []} for c in text]
            choice["logprobs"] = {"content": tokens, "refusal": None}
        choices.append(choice)
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "system_fingerprint": "fp-7",
        "choices": choices,
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }

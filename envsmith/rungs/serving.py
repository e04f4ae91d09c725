"""A service over the tiny model, as another process of the env: the OpenAI form of embeddings and completions.

It listens at once and answers 503 on /health until the model is loaded. SIGTERM ends it with exit code 0.
The rungs `embed` and `merge-serve` ask it; for `embed` a recipe's own service may take its place.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .continuing import TransformersEngine


class Model:
    """The model with its name; one request at a time computes."""

    def __init__(self, folder: Path, name: str, device: str, dimension: int | None) -> None:
        self.engine = TransformersEngine(folder, device, 0)
        hidden = int(self.engine.model.config.hidden_size)
        self.dimension = dimension or hidden
        if self.dimension > hidden:
            raise SystemExit(f"the model has {hidden} numbers a vector, {self.dimension} are configured")
        self.name = name
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Mean of the last hidden states, cut to the dimension, of length 1."""
        import torch

        batch = self.engine.tokenizer(list(texts), return_tensors="pt", padding=True, add_special_tokens=False)
        batch = {name: batch[name].to(self.engine.device) for name in ("input_ids", "attention_mask")}
        with self._lock, torch.no_grad():
            states = self.engine.model(**batch, output_hidden_states=True).hidden_states[-1].float()
        mask = batch["attention_mask"].unsqueeze(-1)
        mean = (states * mask).sum(1) / mask.sum(1)
        vectors = torch.nn.functional.normalize(mean[:, : self.dimension], dim=-1)
        return [list(map(float, vector)) for vector in vectors.cpu()]

    def complete(self, prompt: str, count: int) -> tuple[str, list[int]]:
        """The greedy continuation as text and tokens."""
        with self._lock:
            (tokens,) = self.engine.greedy([prompt], count)
        return self.engine.tokenizer.decode(tokens, skip_special_tokens=True), tokens


class Server(ThreadingHTTPServer):
    """The listening side; `model` is set once it is loaded."""

    daemon_threads = True
    model: Model | None = None


class Handler(BaseHTTPRequestHandler):
    """The four addresses."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Health and models."""
        model = self.server.model
        if self.path == "/health":
            self._send(200 if model else 503, {"status": "ok" if model else "loading"})
        elif self.path == "/v1/models" and model:
            self._send(200, {"object": "list", "data": [{"id": model.name, "object": "model"}]})
        else:
            self._send(404 if model else 503, {"error": f"nothing at {self.path}"})

    def do_POST(self) -> None:
        """Embeddings and completions."""
        work: Callable[[Model, dict[str, Any]], dict[str, Any]] | None = POSTS.get(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        model = self.server.model
        if work is None or model is None:
            self._send(503 if work else 404, {"error": f"nothing at {self.path}"})
            return
        try:
            asked = json.loads(body)
            if asked["model"] != model.name:
                self._send(404, {"error": f"the model `{asked['model']}` is not here"})
                return
            self._send(200, work(model, asked))
        except (ValueError, KeyError, TypeError) as error:
            self._send(400, {"error": f"{type(error).__name__}: {error}"})

    def _send(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def embeddings(model: Model, asked: dict[str, Any]) -> dict[str, Any]:
    """Answer POST /v1/embeddings."""
    texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
    rows = [{"object": "embedding", "index": n, "embedding": row} for n, row in enumerate(model.embed(texts))]
    return {"object": "list", "model": model.name, "data": rows}


def completions(model: Model, asked: dict[str, Any]) -> dict[str, Any]:
    """Answer POST /v1/completions; the tokens are told too."""
    text, tokens = model.complete(asked["prompt"], int(asked.get("max_tokens", 16)))
    choice = {"index": 0, "text": text, "token_ids": tokens, "finish_reason": "length"}
    return {"object": "text_completion", "model": model.name, "choices": [choice]}


POSTS = {"/v1/embeddings": embeddings, "/v1/completions": completions}


def load(server: Server, arguments: argparse.Namespace) -> None:
    """Load the model; without it there is nothing to serve, so that the process ends."""
    try:
        server.model = Model(arguments.model, arguments.name, arguments.device, arguments.dimension)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)


def serve(argv: Sequence[str]) -> None:
    """Listen, load, answer until SIGTERM."""
    parser = argparse.ArgumentParser(prog="serving", allow_abbrev=False)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dimension", type=int)
    arguments = parser.parse_args(argv)
    server = Server(("127.0.0.1", arguments.port), Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    threading.Thread(target=load, args=(server, arguments), daemon=True).start()
    server.serve_forever(poll_interval=0.1)
    server.server_close()
    # A thread that still loads would keep the interpreter from ending in order.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1:])

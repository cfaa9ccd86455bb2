"""A fake `vllm serve`: the same paths, token completions that are a function of the prompt, weights that are
a version number.

Exits at the request number FAKE_DIE_AT (once: the file FAKE_DIED records it). The file FAKE_LOADED has the
folders that the process has loaded.
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STATE = {"version": "default", "loaded": [], "asked": 0, "paused": False}
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of engine `vllm_server`."""

    def log_message(self, *_):
        pass

    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        if self.headers.get("Authorization") != f"Bearer {os.environ['VLLM_API_KEY']}":
            self.answer({"error": "unauthorized"}, 401)
            return
        paths = {
            "/inference/v1/generate": self.generate,
            "/collective_rpc": self.load,
            "/update_weight_version": self.label,
        }
        paths |= {
            "/pause?mode=keep": lambda _: STATE.update(paused=True) or {},
            "/resume": lambda _: STATE.update(paused=False) or {},
        }
        self.answer(paths.get(self.path, lambda _: {})(body))

    def load(self, body):
        if body["method"] == "vlrl_prepare":
            return {}
        assert STATE["paused"], "no step may come between a load and the resets after it"
        folder, part = Path(body["kwargs"]["folder"]), body["kwargs"].get("part", False)
        STATE["loaded"].append(folder.name)
        assert (folder / ("changed.safetensors" if part else "config.json")).is_file()
        if "FAKE_LOADED" in os.environ:
            Path(os.environ["FAKE_LOADED"]).write_text(" ".join(STATE["loaded"]))
        return {}

    def label(self, body):
        STATE["version"] = body["new_version"]
        return {}

    def generate(self, body):
        with LOCK:
            STATE["asked"] += 1
            if os.environ.get("FAKE_DIE_AT") == str(STATE["asked"]):
                try:  # one creation: two replicas that reach their number together do not both end
                    Path(os.environ.get("FAKE_DIED", "/nowhere/x")).touch(exist_ok=False)
                except FileExistsError:
                    pass
                else:
                    os._exit(9)
        assert not STATE["paused"]
        settings = body["sampling_params"]
        first = sum(body["token_ids"]) % 50 + len(body.get("content_parts", ()))
        choices = []
        for index in range(settings.get("n", 1)):
            ids = [first + index] * min(3, settings["max_tokens"])
            content = [{"token_id": i, "logprob": -1.0, "top_logprobs": []} for i in ids]
            span = {"version": STATE["version"], "start": 0, "end": len(ids)}
            choices.append(
                {
                    "index": index,
                    "token_ids": ids,
                    "logprobs": {"content": content},
                    "finish_reason": "stop",
                    "weight_versions": [span],
                }
            )
        return {
            "choices": choices,
            "prompt_token_ids": body["token_ids"],
            "prompt_logprobs": [{str(i): {"logprob": -2.0}} for i in body["token_ids"]],
        }


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()

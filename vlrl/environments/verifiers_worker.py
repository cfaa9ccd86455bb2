"""The process that holds an environment of the package verifiers, of its 0.1 or its 0.4 interface. A script:
it imports nothing of vlrl.

It reads commands, and writes events, one JSON object a line:

    {"do": "rows", "key", "args", "split", "skip", "count"}    -> {"key", "rows": [{"messages", "answer"}]}
    {"do": "begin", "key", "args", "split", "index"}           -> {"key", "ask": {"messages", "tools"}} or
    {"key", "failed"} {"do": "turn", "key", "text", "calls"}                     -> {"key", "ask"}, {"key",
    "end": {"reward", "parts", "stop"}} or {"key", "failed"} {"do": "end", "key"}
    -> nothing

The package drives an episode itself and asks a model for each turn. That model is an HTTP server here, with
OpenAI's chat completions; it hands the request on as "ask" and answers when the "turn" comes. Run: `python
verifiers_worker.py ID [folder of environments ...]`.
"""

import asyncio
import contextlib
import itertools
import json
import math
import os
import sys
import time
import types
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)  # it holds a module that is called verifiers, too
MODEL = "policy"
HARNESS = "vlrl_turns"
LINE = 1 << 28  # bytes of a command or of a request


class Refused(Exception):
    """What the user must change; told without a traceback."""


def plain(value):
    """A message or a part of one as JSON."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_none=True)
    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def finite(values):
    """The numbers among named values."""
    kept = {
        name: value
        for name, value in dict(values or {}).items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }
    return {str(name): float(value) for name, value in kept.items()}


class Interface01:
    """`load_environment`, a dataset, and a rubric that scores a rollout's state (verifiers 0.1)."""

    def __init__(self, name, args):
        import verifiers

        self.environment = verifiers.load_environment(name, **args)
        if self.environment.requires_group_rollouts:
            raise Refused(
                f"environment {name!r} scores rollouts as a group (its rubric has group rewards); vlrl "
                "scores each episode by itself"
            )

    def serving(self):
        """What is held while episodes run."""
        return contextlib.AsyncExitStack()

    def dataset(self, split):
        """The dataset of a split. Raises Refused where there is none: the package would take the training
        rows."""
        environment = self.environment
        if split == "train":
            return environment.get_dataset()
        if environment.eval_dataset is None and environment.eval_dataset_source is None:
            raise Refused(
                "the environment has no evaluation dataset; take held-out rows from its training rows by "
                "`skip`"
            )
        return environment.get_eval_dataset()

    def rows(self, split, skip, count):
        dataset = self.dataset(split)
        chosen = range(min(skip, len(dataset)), min(skip + count, len(dataset)))
        return [{"messages": plain(dataset[i]["prompt"]), "answer": dataset[i].get("answer")} for i in chosen]

    async def play(self, index, split, url):
        from verifiers.types import ClientConfig

        client = ClientConfig(api_base_url=url, api_key_var="VLRL_NO_KEY", timeout=1e7, max_retries=0)
        kept = set(self.dataset(split).column_names)
        row = {name: value for name, value in self.dataset(split)[index].items() if name in kept}
        output = await self.environment.run_rollout(row, client, MODEL, {}, max_retries=0)
        if output.get("error") is not None:
            raise RuntimeError(f"the rollout failed: {str(output['error'])[:2000]}")
        return {
            "reward": output["reward"],
            "parts": finite(output["metrics"]),
            "stop": output.get("stop_condition"),
        }


class Interface04:
    """A taskset and an `Env` of one agent, whose harness is ours and runs in this process (verifiers 0.4)."""

    def __init__(self, name, args):
        from verifiers.v1.configs.agent import AgentConfig
        from verifiers.v1.utils import loaders

        sys.modules.setdefault(HARNESS, harness_module())
        config = loaders.env_config_type(name)
        seats = [
            field for field, info in config.model_fields.items() if isinstance(info.default, AgentConfig)
        ]
        if len(seats) != 1:
            raise Refused(
                f"environment {name!r} has {len(seats)} agents ({', '.join(seats)}); vlrl trains "
                "environments of one agent"
            )
        data = {
            "taskset": {"id": name, **args},
            seats[0]: {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}},
        }
        self.environment = loaders.load_environment(loaders.resolve_env_config(data))
        self.tasks = []
        self.stream = iter(self.environment.taskset)

    def serving(self):
        """What is held while episodes run: servers of tools, and the one that mediates requests."""
        return self.environment.serving()

    def upto(self, count):
        """The first `count` tasks, read once: a taskset may be endless."""
        self.tasks += itertools.islice(self.stream, max(0, count - len(self.tasks)))
        return self.tasks[:count]

    def rows(self, split, skip, count):
        if split != "train":
            raise Refused(
                "tasksets of verifiers 0.4 have no held-out split; choose one by `args`, or held-out rows "
                "by `skip`"
            )
        return [
            {"messages": first_messages(task.data), "answer": getattr(task.data, "answer", None)}
            for task in self.upto(skip + count)[skip:]
        ]

    async def play(self, index, split, url):
        from verifiers.v1.clients import ModelContext
        from verifiers.v1.configs.client import EvalClientConfig

        tasks = self.upto(index + 1)
        if len(tasks) <= index:
            raise Refused(f"the taskset has {len(tasks)} tasks, and the row is number {index}")
        context = ModelContext(model=MODEL, client=EvalClientConfig(base_url=url, api_key_var="VLRL_NO_KEY"))
        episode = await self.environment.run_episode(tasks[index], context)
        faults = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if not episode.ok or len(episode.traces) != 1:
            raise RuntimeError(
                f"the episode failed with {len(episode.traces)} traces: "
                f"{'; '.join(f'{e.type}: {e.message}' for e in faults)[:2000]}"
            )
        (trace,) = episode.traces
        parts = {
            **finite(trace.metrics),
            **finite({name: reward.score for name, reward in trace.rewards.items() if reward is not None}),
        }
        return {"reward": trace.reward, "parts": parts, "stop": trace.stop_condition}


def first_messages(data):
    """The messages that an episode of a task begins with."""
    from verifiers.v1.dialects.chat import message_to_wire

    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt is not None else []
    prompt = (
        [{"role": "user", "content": data.prompt}]
        if isinstance(data.prompt, str)
        else [message_to_wire(one) for one in data.prompt or []]
    )
    return [*system, *prompt]


def harness_module():
    """A module with a harness of verifiers 0.4: a loop of turns and tool calls (MCP) within this process."""
    import httpx
    from verifiers.v1.configs.harness import HarnessConfig
    from verifiers.v1.harness import Harness
    from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
    from verifiers.v1.runtimes import ProgramResult

    class VlrlTurnsConfig(HarnessConfig):
        """No fields of its own."""

    class VlrlTurns(Harness[VlrlTurnsConfig]):
        """Asks for turns until one has no tool call."""

        APPENDS_SYSTEM_PROMPT = SUPPORTS_MCP = SUPPORTS_RESUME = True
        EXECUTES_CODE = NEEDS_CONTAINER = False

        async def launch(
            self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None
        ):
            messages = first_messages(data)
            servers = {
                name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()
            }
            async with contextlib.AsyncExitStack() as stack:
                tools, places, connections = await connect_mcp({"mcpServers": servers}, stack)
                client = await stack.enter_async_context(httpx.AsyncClient(timeout=None, trust_env=False))
                while True:
                    body = {"model": ctx.model, "messages": messages, **({"tools": tools} if tools else {})}
                    headers = {"Authorization": f"Bearer {secret}"}
                    answer = await client.post(
                        endpoint.rstrip("/") + "/chat/completions", json=body, headers=headers
                    )
                    if answer.status_code != 200:
                        return ProgramResult(exit_code=1, stdout="", stderr=answer.text[:2000])
                    message = answer.json()["choices"][0]["message"]
                    messages.append(message)
                    if not message.get("tool_calls"):
                        return ProgramResult(exit_code=0, stdout="", stderr="")
                    for call in message["tool_calls"]:
                        messages.append(
                            {
                                "role": "tool",
                                "tool_call_id": call["id"],
                                "content": await self.result(call, places, connections),
                            }
                        )

        @staticmethod
        async def result(call, places, connections):
            """What a tool says; its errors are told to the policy."""
            name = call["function"]["name"]
            if name not in places:
                return f"Error: there is no tool {name[:40]!r}; the tools are {', '.join(places)}."
            try:
                return await call_mcp(connections, places, name, json.loads(call["function"]["arguments"]))
            except Exception as error:  # whatever the server's tool does wrong
                return f"Error: {error}"[:2000]

    module = types.ModuleType(HARNESS)
    vars(module).update(VlrlTurns=VlrlTurns, __all__=["VlrlTurns"])
    return module


def completion(text, calls):
    """A chat completion, as OpenAI's server writes it."""
    wire = [
        {
            "id": f"call_{time.monotonic_ns()}",
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
        }
        for call in calls
    ]
    message = {"role": "assistant", "content": text, **({"tool_calls": wire} if wire else {})}
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if wire else "stop",
        "logprobs": None,
    }
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    return {
        "id": "turn",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [choice],
        "usage": usage,
    }


class Worker:
    """The environments that are loaded, the episodes that run, and the server that asks for their turns."""

    def __init__(self, name, out):
        self.name, self.out = name, out
        self.loaded = {}
        self.served = set()
        self.loading = asyncio.Lock()
        self.turns = {}  # episode -> future of its next turn
        self.tasks = {}
        self.stack = contextlib.AsyncExitStack()

    def tell(self, **event):
        self.out.write((json.dumps(event, default=str) + "\n").encode())
        self.out.flush()

    async def environment(self, args, serving):
        """The environment for these arguments, loaded once, and ready for episodes if `serving`."""
        import verifiers

        key = json.dumps(args, sort_keys=True)
        async with self.loading:
            if key not in self.loaded:
                self.loaded[key] = (Interface01 if hasattr(verifiers, "load_environment") else Interface04)(
                    self.name, args
                )
            if serving and key not in self.served:
                await self.stack.enter_async_context(self.loaded[key].serving())
                self.served.add(key)
        return self.loaded[key]

    async def rows(self, key, args, split, skip, count):
        environment = await self.environment(args, False)
        self.tell(key=key, rows=environment.rows(split, skip, count))

    async def play(self, key, args, split, index):
        environment = await self.environment(args, True)
        self.tell(key=key, end=await environment.play(index, split, f"http://127.0.0.1:{self.port}/{key}/v1"))

    async def guarded(self, key, work):
        """Carry out a command; whatever it raises is told."""
        try:
            await work
        except Refused as error:
            self.tell(key=key, failed=str(error), refused=True)
        except Exception as error:  # of somebody else's environment
            self.tell(key=key, failed=f"{type(error).__name__}: {error}"[:4000])
        finally:
            waiting = self.turns.pop(key, None)
            if waiting is not None:
                waiting.cancel()  # the request of a turn that will not come
            self.tasks.pop(key, None)

    def take(self, command):
        """Carry out a command."""
        do, key = command.pop("do"), command["key"]
        if do in ("rows", "begin"):
            work = self.rows(**command) if do == "rows" else self.play(**command)
            self.tasks[key] = asyncio.get_running_loop().create_task(self.guarded(key, work))
        elif do == "turn":
            waiting = self.turns.pop(key, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(command)
        elif key in self.tasks:
            self.tasks[key].cancel()

    async def ask(self, reader, writer):
        """One connection of the HTTP server: requests for chat completions, under the path of their
        episode."""
        with (
            contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError),
            contextlib.closing(writer),
        ):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                fields = {
                    name.strip().lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head[1:] if line)
                }
                body = json.loads(await reader.readexactly(min(int(fields.get("content-length", 0)), LINE)))
                key = head[0].split(" ")[1].split("/")[1]
                turn = self.turns[key] = asyncio.get_running_loop().create_future()
                self.tell(key=key, ask={"messages": body["messages"], "tools": body.get("tools") or []})
                said = await turn
                answer = json.dumps(completion(said["text"], said["calls"])).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                    % len(answer)
                    + answer
                )
                await writer.drain()

    async def run(self):
        """Commands until the input ends."""
        server = await asyncio.start_server(self.ask, "127.0.0.1", 0, limit=1 << 20)
        self.port = server.sockets[0].getsockname()[1]
        reader = asyncio.StreamReader(limit=LINE)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        self.tell(key="", ready=True)
        while line := await reader.readline():
            self.take(json.loads(line))
        for task in list(self.tasks.values()):
            task.cancel()
        with contextlib.suppress(Exception):  # the process ends all the same
            await asyncio.wait_for(self.stack.aclose(), 3.0)


def main():
    """Read commands until the input ends. What the environment prints goes to the standard error."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(
        filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1,localhost"))
    )
    os.environ["VLRL_NO_KEY"] = "EMPTY"
    sys.path[:] = [*sys.argv[2:], *(folder for folder in sys.path if folder != HERE)]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [*sys.argv[2:], *filter(None, (os.environ.get("PYTHONPATH"),))]
    )  # for the servers of toolsets
    asyncio.run(Worker(sys.argv[1], out).run())
    out.flush()
    os._exit(0)  # threads of the environment hold nothing up


if __name__ == "__main__":
    main()

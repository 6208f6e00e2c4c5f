"""What the end-to-end tests stand on: a daemon from outside, clients, checkpoints, the reference.

A test file ends with main("suite"); each function marked @test is one test. See README.md in tests/.
"""

import contextlib
import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.environ.get("CTN_BUILD", os.path.join(ROOT, "build", "debug"))
MODELS = os.path.join(ROOT, "tests", "models")
NAMES = ("llama-stories260k", "opt-tinystories", "gpt2-tinystories")
SLOW = os.path.basename(BUILD.rstrip("/")) in ("asan", "tsan")  # time limits are wider there
LONG = bool(os.environ.get("CTN_LONG"))  # as long as it takes to find what is rare: make check-long
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, os.path.join(ROOT, "tests", "ref"))

# --- tests --------------------------------------------------------------------------------------------------------------

TESTS = []


class Skip(Exception):
    """Ends a test as skipped; the reason must stand in tests/skips.list."""


def test(fn):
    TESTS.append(fn)
    return fn


def check(condition, *what):
    """An assertion that says what it saw, also under python3 -O."""
    if not condition:
        raise AssertionError(" ".join(map(str, what)) or "condition does not hold")


def equal(found, expected, what=""):
    check(found == expected, f"{what}: " if what else "", f"found {found!r}, expected {expected!r}")


def main(suite):
    wanted = [t for t in TESTS if t.__name__ in sys.argv[1:]] if sys.argv[1:] else TESTS
    print(f"plan {len(wanted)}", flush=True)
    failed = False
    for t in wanted:
        since = time.monotonic()
        try:
            t()
        except Skip as e:
            print(f"skip {suite}/{t.__name__}: {e}", flush=True)
            continue
        except Exception:
            failed = True
            print("".join("# " + line for line in traceback.format_exc().splitlines(True)))
            print(f"not ok {suite}/{t.__name__}", flush=True)
            continue
        print(f"# {time.monotonic() - since:.2f} s")
        print(f"ok {suite}/{t.__name__}", flush=True)
    sys.exit(1 if failed else 0)


def eventually(condition, what, seconds=10.0):
    """Waits until condition() is true; returns what it said."""
    end = time.monotonic() + seconds * (4 if SLOW else 1)
    while True:
        value = condition()
        if value:
            return value
        check(time.monotonic() < end, f"{what}: not within {seconds} s")
        time.sleep(0.005)


# --- clients ------------------------------------------------------------------------------------------------------------


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Reply:
    def __init__(self, response):
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The error object of OpenAI's form, checked for that form."""
        error = self.json["error"]
        equal(sorted(error), ["code", "message", "param", "type"], "keys of an error")
        check(isinstance(error["message"], str) and error["message"], "message of an error")
        check(isinstance(error["type"], str) and error["type"], "type of an error")
        return error


class Daemon:
    """One computrond on a port that it picks. A context manager: stops the daemon by SIGTERM and checks that it ended well; when
    the test has failed, shows its log."""

    def __init__(self, *args, models_dir=MODELS, device="host,mem=256M", pool="plain,size=256M", config=None, prefix=(), env=None):
        self.dir = tempfile.mkdtemp(prefix="d-")
        self.port, self.socket = None, os.path.join(self.dir, "s")
        self.log_path = os.path.join(self.dir, "log")
        self.command = [*prefix, os.path.join(BUILD, "computrond"), "--listen", "127.0.0.1:0"]
        self.command += ["--socket", self.socket]
        for option, value in (("--models-dir", models_dir), ("--device", device), ("--pool", pool), ("--config", config)):
            self.command += [option, value] if value is not None else []
        self.command += args
        self.env = dict(os.environ, **(env or {}))
        self.process, self.stopped = None, False

    # start and stop

    def spawn(self):
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env)
        return self

    def start(self):
        self.spawn()

        def ready():
            check(self.process.poll() is None, f"the daemon ended with {self.process.returncode} at start")
            return re.search(r"\blistening\b.*http://127\.0\.0\.1:(\d+)", self.log)

        self.port = int(eventually(ready, "the daemon says where it listens", 30)[1])
        return self

    @property
    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.show_log()
            self.kill()
            raise

    def __exit__(self, kind, value, tb):
        try:
            if kind is None and not self.stopped:
                self.stop()
        except BaseException:
            self.show_log()
            raise
        finally:
            if kind is not None:
                self.show_log()
            self.kill()

    def show_log(self):
        """What a sanitizer says, wherever it stands, and the end."""
        lines = self.log.splitlines()
        first = next((i for i, line in enumerate(lines) if "Sanitizer" in line or "runtime error:" in line), len(lines))
        for line in lines[first : first + 60] + lines[max(first + 60, len(lines) - 60) if first < len(lines) else -60 :]:
            print("# | " + line)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def wait(self, seconds=30.0):
        """The exit status."""
        return self.process.wait(seconds * (4 if SLOW else 1))

    def stop(self, seconds=10.0):
        """SIGTERM; the daemon has to end with status 0 and leave nothing behind."""
        self.stopped = True
        self.process.send_signal(signal.SIGTERM)
        status = self.wait(seconds)
        equal(status, 0, "exit status after SIGTERM")
        check(not os.path.exists(self.socket), "the control socket is still there")
        with contextlib.closing(socket.socket()) as s:
            check(s.connect_ex(("127.0.0.1", self.port)) != 0, "the port is still open")

    # requests

    def connection(self, timeout=120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, connection=None):
        with contextlib.closing(connection or self.connection()) as c:
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            headers = {"Content-Type": "application/json", **(headers or {})} if body is not None else headers or {}
            c.request(method, path, body, headers)
            return Reply(c.getresponse())

    def get(self, path):
        return self.request("GET", path)

    def post(self, path, body):
        return self.request("POST", path, body)

    def completions(self, model, prompt, **fields):
        """POST /v1/completions as it is: the reply, whatever its status."""
        return self.post("/v1/completions", {"model": model, "prompt": prompt, **fields})

    def complete(self, model, prompt, n=16, **fields):
        """The first choice of a completion that has to succeed; greedy unless said otherwise."""
        fields = {"max_tokens": n, "temperature": 0, "return_token_ids": True, **fields}
        reply = self.completions(model, prompt, **fields)
        equal(reply.status, 200, f"{model}: {reply.body[:300]!r}; status")
        return reply.json["choices"][0]

    def ids(self, model, prompt, n=16, **fields):
        return self.complete(model, prompt, n, **fields)["token_ids"]

    def stream(self, model, prompt, n=16, **fields):
        """The events of a streamed completion as they come, without [DONE], which has to be the last."""
        body = {"model": model, "prompt": prompt, "max_tokens": n, "temperature": 0, "stream": True, **fields}
        with contextlib.closing(self.connection()) as c:
            c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = c.getresponse()
            equal(response.status, 200, "status of a stream")
            check(response.headers["Content-Type"].startswith("text/event-stream"), response.headers["Content-Type"])
            done = False
            for line in response:
                line = line.rstrip(b"\r\n")
                if not line:
                    continue
                check(not done, "data after [DONE]:", line)
                check(line.startswith(b"data: "), "a line of a stream:", line)
                if line == b"data: [DONE]":
                    done = True
                    continue
                yield json.loads(line[6:].decode("utf-8"))
            check(done, "the stream ended without [DONE]")

    def control(self, method, path):
        return self.request(method, path, connection=UnixConnection(self.socket, 120))

    def evict(self, model):
        reply = self.control("POST", f"/models/{model}/evict")
        check(reply.status in (200, 204), f"evict {model}: {reply.status} {reply.body!r}")

    def load(self, model):
        reply = self.control("POST", f"/models/{model}/load")
        check(reply.status in (200, 204), f"load {model}: {reply.status} {reply.body!r}")

    def tool(self, *args, status=0):
        """build/computron over this daemon's socket; its standard output."""
        run = tool(*args, "--socket", self.socket)
        equal(run.returncode, status, f"computron {' '.join(args)}: {run.stdout}{run.stderr}; status")
        return run.stdout

    # metrics

    def metrics(self):
        return Metrics(self.get("/metrics").body.decode())


def tool(*args):
    return subprocess.run([os.path.join(BUILD, "computron"), *args], capture_output=True, text=True, timeout=120)


class Metrics:
    """Samples of the Prometheus text format, by name and labels."""

    LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
    LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"(?:,|$)')

    def __init__(self, text):
        self.samples, self.types = {}, {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                self.types[name] = kind
            if not line or line.startswith("#"):
                continue
            found = self.LINE.match(line)
            check(found, "a line of /metrics:", line)
            labels = found[2] or ""
            check(self.LABEL.sub("", labels) == "", "labels of /metrics:", line)
            key = (found[1], frozenset(self.LABEL.findall(labels)))
            check(key not in self.samples, "given twice in /metrics:", line)
            self.samples[key] = float(found[3])

    def names(self):
        return {name for name, _ in self.samples}

    def find(self, name, **labels):
        """{labels: value} of the samples of a name that have these labels."""
        want = set(labels.items())
        return {key[1]: value for key, value in self.samples.items() if key[0] == name and want <= key[1]}

    def sum(self, name, **labels):
        return sum(self.find(name, **labels).values())


# --- a client that can go away ------------------------------------------------------------------------------------------


class RawRequest:
    """A completion request on a bare socket, to be cut off."""

    def __init__(self, daemon, model, prompt, n=16, **fields):
        body = json.dumps({"model": model, "prompt": prompt, "max_tokens": n, "temperature": 0, **fields}).encode()
        self.socket = socket.create_connection(("127.0.0.1", daemon.port), 60)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket.sendall(head.encode() + body)

    def readable(self, seconds):
        return bool(select.select([self.socket], [], [], seconds)[0])

    def read(self):
        return self.socket.recv(1 << 16)

    def close(self):
        """As the kernel does it for a process that was killed."""
        self.socket.close()


def parallel(*functions):
    """Runs functions in threads; raises the first exception that came; returns their results."""
    results, errors = [None] * len(functions), []

    def call(i):
        try:
            results[i] = functions[i]()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(functions))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results


# --- checkpoints and right answers --------------------------------------------------------------------------------------


def golden(name):
    with open(os.path.join(MODELS, name, "golden.json"), encoding="utf-8") as f:
        return json.load(f)


def commit_seed():
    """A seed from the commit under test, so that each commit meets other weights; printed."""
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True)
    text = os.environ.get("CTN_SEED") or head.stdout.strip()[:8] or "0"
    print(f"# seed {text} (CTN_SEED={text} repeats this)")
    return int(text, 16)


def generate(path, *options, tokenizer="llama-stories260k"):
    import generate as generator

    generator.main([path, "--tokenizer", os.path.join(MODELS, tokenizer), *map(str, options)])
    return path


TIE = 1e-3  # two right implementations may part where the two largest logits are this near


def same_as_reference(ids, expected, gaps, what):
    """Greedy ids equal the reference's, up to the first tie."""
    sure = next((i for i, gap in enumerate(gaps) if gap < TIE), len(gaps))
    equal(ids[:sure], expected[:sure], what)
    if sure == len(gaps):
        equal(ids, expected, what)


def vocabulary(name="llama-stories260k"):
    """{token: id} of a sample model's tokenizer, by its tokenizer.json."""
    with open(os.path.join(MODELS, name, "tokenizer.json"), encoding="utf-8") as f:
        return json.load(f)["model"]["vocab"]


def scripted(path, ids, eos=2, positions=256):
    """A GPT-2 that says what is written: after p + 1 tokens, whatever they are, the likeliest next one is ids[p].

    Its blocks add nothing; a token's embedding is one unit vector, a position's ten times that of the id to say, and the
    tied head reads it off."""
    import numpy as np
    import st

    width = 512  # of the vocabulary and of the embedding
    os.makedirs(path, exist_ok=True)
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": width, "n_layer": 1, "n_head": 8}
    config.update(n_positions=positions, n_inner=16, vocab_size=width, activation_function="gelu_new")
    config.update(layer_norm_epsilon=1e-5, tie_word_embeddings=True, bos_token_id=1, eos_token_id=eos)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    wpe = np.zeros((positions, width), np.float32)
    wpe[np.arange(len(ids)), ids] = 10
    block = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width), "mlp.c_fc": (width, 16), "mlp.c_proj": (16, width)}
    tensors = {"wte.weight": np.eye(width, dtype=np.float32), "wpe.weight": wpe}
    for name, shape in block.items():
        tensors[f"h.0.{name}.weight"] = np.zeros(shape, np.float32)
        tensors[f"h.0.{name}.bias"] = np.zeros(shape[1], np.float32)
    for name in ("h.0.ln_1", "h.0.ln_2", "ln_f"):
        tensors[name + ".weight"], tensors[name + ".bias"] = np.ones(width, np.float32), np.zeros(width, np.float32)
    listed = [("transformer." + n, "F32", t.shape, lambda t=t: [t.reshape(-1)]) for n, t in sorted(tensors.items())]
    st.write(os.path.join(path, "model.safetensors"), listed)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(MODELS, "llama-stories260k", name), path)
    return path

"""Calls a service that it finds by xDS and counts how that goes.

The contract is that of package clients (test/clients/doc.go).
"""

import collections
import json
import os
import signal
import sys
import threading
import time

import grpc

PERIOD = 0.1
PACE = 0.01


class Counts:
    """What has become of calls since it was last taken."""

    def __init__(self):
        self._lock = threading.Lock()
        self._ok = collections.Counter()
        self._failed = []
        self._pending = 0

    def begin(self):
        with self._lock:
            self._pending += 1

    def end(self, call, started):
        backend = dict(call.initial_metadata() or ()).get("backend", "")
        with self._lock:
            self._pending -= 1
            if call.code() == grpc.StatusCode.OK:
                self._ok[backend] += 1
            else:
                self._failed.append({"started": started, "code": call.code().value[0], "text": call.details()})

    def take(self):
        """Returns the counts, and how many calls have not ended."""
        with self._lock:
            ok, failed = self._ok, self._failed
            self._ok, self._failed = collections.Counter(), []
            return ok, failed, self._pending


def call(method, deadline, counts):
    started = int(time.time() * 1000)
    counts.begin()
    method.future(b"", timeout=deadline).add_done_callback(lambda c: counts.end(c, started))


def report(counts):
    """Prints what happened since the last report and returns how many calls are under way."""
    ok, failed, pending = counts.take()
    print(json.dumps({"time": int(time.time() * 1000), "ok": ok, "failed": failed}), flush=True)
    return pending


def run(channel, rate, deadline, stopping):
    method = channel.unary_unary("/grpc.health.v1.Health/Check")
    counts = Counts()
    begin = reported = time.monotonic()
    started = 0
    pending = 1
    while not stopping.is_set() or pending > 0:
        now = time.monotonic()
        # The calls that are due: a wait that takes long delays them and leaves none out.
        while not stopping.is_set() and started < (now - begin) * rate:
            call(method, deadline, counts)
            started += 1
        if now - reported >= PERIOD:
            pending = report(counts)
            reported = now
        time.sleep(PACE)


def main():
    target, rate, deadline, silence = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]) / 1000, int(sys.argv[4])
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())

    def until_end_of_input():
        while os.read(0, 1):  # sys.stdin would be locked when the interpreter ends
            pass
        stopping.set()

    threading.Thread(target=until_end_of_input, daemon=True).start()
    keepalive = [("grpc.keepalive_time_ms", silence), ("grpc.keepalive_timeout_ms", silence)]
    with grpc.insecure_channel(target, options=keepalive if silence > 0 else []) as channel:
        run(channel, rate, deadline, stopping)


main()

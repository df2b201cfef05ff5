#!/usr/bin/env python3
"""Language models on a terminal: what a person sees, Ctrl-C, and text that comes through a pipe in pieces.

    python3 tests/terminal.py target/release/tilewright

Needs nothing but Python on a Unix system and the embedded model's file.
"""
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import time

MODEL = next((pathlib.Path(__file__).resolve().parent.parent / "models/manual").glob("*.gguf"))
LIMIT = 60
CTRL_C = b"\x03"
# Long enough to be interrupted, whatever the machine.
ENDLESS = ["--ignore-eos", "--context-shift", "--seed", "1", "--threads", "1"]


class Terminal:
    """A program whose three streams are a terminal."""

    def __init__(self, program, *arguments, **environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(program, [program, *map(str, arguments)], {**os.environ, "TERM": "xterm", **environment})
        self.seen = b""

    def read(self, until, what):
        """What is seen up to and with a match; all after it is left for the next call."""
        end = time.monotonic() + LIMIT
        while not (match := re.search(until, self.seen)):
            ready = select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]
            try:
                more = os.read(self.fd, 1 << 16) if ready else b""
            except OSError:
                more = b""
            if not more:
                os.kill(self.pid, signal.SIGKILL)
                sys.exit(f"FAIL {what}: nothing that matches {until} in {self.seen[-500:]}")
            self.seen += more
        found, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return found

    def type(self, keys):
        os.write(self.fd, keys)

    def end(self):
        """All that is left, and the exit status."""
        while True:
            try:
                more = os.read(self.fd, 1 << 16)
            except OSError:
                break
            if not more:
                break
            self.seen += more
        return self.seen, os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def check(right, what, *seen):
    if not right:
        sys.exit(f"FAIL {what}: {seen}")
    print(f"ok   {what}", flush=True)


def generation_ends(program):
    run = Terminal(program, "generate", "-p", "The", "-n", 10_000_000, *ENDLESS)
    run.read(rb"(\w+\W+){20}", "text comes as it is generated")
    run.type(CTRL_C)
    rest, status = run.end()
    text = rest.decode()
    check(status == 1 and "error: interrupted" in text, "Ctrl-C ends a generation", status, text[-300:])
    check("stopped: interrupted" in text, "with the speed of what there was", text[-300:])


def conversation_goes_on(program):
    run = Terminal(program, "chat", MODEL, *ENDLESS)
    run.read(rb"> ", "chat asks for a message")
    for turn in ("first", "second"):
        run.type(b"Hello\n")
        run.read(rb"\n(\w+\W+){20}", f"the {turn} answer comes")
        run.type(CTRL_C)
        run.read(rb"tokens/s[^\n]*\]\s+> ", f"Ctrl-C ends the {turn} answer and chat goes on")
        print(f"ok   Ctrl-C ends the {turn} answer, and the conversation goes on", flush=True)
    run.type(b"/exit\n")
    _, status = run.end()
    check(status == 0, "chat ends as it should", status)
    run = Terminal(program, "chat", MODEL)
    run.read(rb"> ", "chat asks for a message")
    run.type(CTRL_C)
    _, status = run.end()
    check(status == 1, "Ctrl-C where nothing runs leaves chat", status)


def colours(program):
    """What a terminal gets while a model loads has no colours where nobody wants any; pipes get nothing."""
    run = Terminal(program, "generate", "-p", "The", "-n", "1", NO_COLOR="1")
    seen, status = run.end()
    check(status == 0 and not re.search(rb"\x1b\[[0-9;]*m", seen), "NO_COLOR is respected", seen)
    run = subprocess.run([program, "generate", "-p", "The", "-n", "1"], capture_output=True, timeout=LIMIT)
    check(b"\x1b" not in run.stderr and b"\r" not in run.stderr, "a pipe gets no progress", run.stderr)


def whole_characters(program, tokens):
    """Tokens of single bytes, some of which together are characters: each piece of the output is text."""
    bias = [f"--logit-bias={token}=1000" for token in tokens]
    command = [program, "generate", "-p", "The", "-n", "400", "--temp", "30", "--top-k", "0", "--top-p", "1",
               "--min-p", "0", *ENDLESS, *bias]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    pieces = []
    while piece := os.read(run.stdout.fileno(), 1 << 16):
        pieces.append(piece)
        piece.decode()
    text = b"".join(pieces).decode()
    check(run.wait() == 0 and "€" in text and "\ufffd" in text, "no half character is ever printed", text[-300:])


def tokens_of(program, text):
    import json
    command = [program, "tokenize", str(MODEL), text, "--no-special", "--format", "json"]
    run = subprocess.run(command, capture_output=True, check=True, timeout=LIMIT)
    return json.loads(run.stdout)


def closed_pipe(program):
    run = subprocess.Popen([program, "generate", "-p", "The", "-n", "10000000", *ENDLESS],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.read(run.stdout.fileno(), 10)
    run.stdout.close()
    _, message = run.communicate(timeout=LIMIT)
    check(run.returncode == 0 and b"error" not in message, "a reader that goes away ends the text", message)


def wrong_prompt(program):
    for arguments, given in ((["-p", b"ab\xffcd"], None), (["-p", "-"], b"ab\xffcd")):
        run = subprocess.run([program, "generate", *arguments], input=given, capture_output=True, timeout=LIMIT)
        error = run.stderr.decode()
        check(run.returncode in (1, 2) and "UTF-8" in error and "panick" not in error, "a prompt outside UTF-8", error)


def main():
    program = os.path.abspath(sys.argv[1])
    generation_ends(program)
    conversation_goes_on(program)
    colours(program)
    bytes_of = tokens_of(program, "€")
    whole_characters(program, bytes_of["tokens"][-3:])
    closed_pipe(program)
    wrong_prompt(program)


if __name__ == "__main__":
    main()

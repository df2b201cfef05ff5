#!/usr/bin/env node
// Runs a test program made for wasm32-unknown-unknown: `node wasm.mjs PROGRAM.wasm`.
//
// There is no output and there are no arguments on that target: the program's harness runs all tests
// in order and a failing one traps. Tests of instruction sets announce themselves through `host.log`
// (kernels/src/testing/host.rs), as do panics; this script prints the outcomes.

import { readFile } from "node:fs/promises";
import v8 from "node:v8";

// Needed up to version 20; engines that always have it ignore this.
v8.setFlagsFromString("--experimental-wasm-relaxed-simd");

let memory;
let running = null;
let count = 0;

function outcome(text) {
  if (running) console.log(`${running} ${text}`);
  running = null;
}

function log(address, length) {
  const line = new TextDecoder().decode(new Uint8Array(memory.buffer, address, length));
  if (!line.startsWith("begin ")) {
    console.log(line);
    return;
  }
  outcome("ok");
  running = line.slice("begin ".length);
  count += 1;
}

const program = await WebAssembly.compile(await readFile(process.argv[2]));
const instance = await WebAssembly.instantiate(program, { host: { log } });
memory = instance.exports.memory;
try {
  const status = instance.exports.main(0, 0);
  outcome(status === 0 ? "ok" : "FAILED");
  console.log(`${count} conformance tests ran, status ${status}`);
  process.exitCode = status === 0 && count > 0 ? 0 : 1;
} catch (error) {
  outcome("FAILED");
  console.log(error.message);
  process.exitCode = 1;
}

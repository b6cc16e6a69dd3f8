#!/usr/bin/env node
// Starts the rye binary that npm installed for this platform. There is no install script: the binary comes in an optional
// dependency of its own.
"use strict";

const { spawn } = require("node:child_process");
const { constants } = require("node:os");

const packages = { "linux-x64": "@rye-agents/linux-x64", "linux-arm64": "@rye-agents/linux-arm64" };

function binary() {
  const platform = `${process.platform}-${process.arch}`;
  const name = packages[platform];
  if (!name) {
    throw new Error(`rye has no build for ${platform}; there are builds for ${Object.keys(packages).join(", ")}`);
  }
  try {
    return require.resolve(`${name}/bin/rye`);
  } catch {
    throw new Error(`${name} is not installed; install rye-agents again without --omit=optional`);
  }
}

let path;
try {
  path = binary();
} catch (error) {
  process.stderr.write(`error: ${error.message}\n`);
  process.exit(1);
}
const child = spawn(path, process.argv.slice(2), { stdio: "inherit" });
// The terminal sends these to both; rye decides what they mean.
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"]) {
  process.on(signal, () => signal === "SIGTERM" || signal === "SIGHUP" ? child.kill(signal) : undefined);
}
child.on("error", (error) => {
  process.stderr.write(`error: ${path}: ${error.message}\n`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(signal ? 128 + constants.signals[signal] : code));

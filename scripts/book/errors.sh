# What the pages of docs/errors need. They carry no comments of their own, because `rye explain` prints them.
# Sourced once, in `~/shop`; then `before_CODE` runs before the page of that code, where there is one.

rye init -q >/dev/null
runtime='tool_type: runtime
executor_id: rye/core/primitives/subprocess
config: {command: /bin/true}'

before_RYE0106() {
  mkdir -p .ai/tools/team
  page_block docs/writing-tools.md python 0 >.ai/tools/team/greet.py
  rye -q sign tool team/greet
}

before_RYE0310() {
  yaml_tool team/ior <<<"$runtime
inputs: [json]"
  yaml_tool team/io <<<'tool_type: tool
executor_id: team/ior
outputs: [text]'
  yaml_tool team/ccr <<<"$runtime
child_constraints: {team/cc: {min_version: \"2.0.0\"}}"
  yaml_tool team/cc <<<'tool_type: tool
executor_id: team/ccr'
}

before_RYE0311() {
  yaml_tool team/one <<<'tool_type: tool
executor_id: team/two'
  yaml_tool team/two <<<'tool_type: tool
executor_id: team/three'
  yaml_tool team/three <<<'tool_type: tool
executor_id: team/one'
}

before_RYE0312() {
  for number in $(seq 1 11); do
    yaml_tool team/c$number <<<"tool_type: tool
executor_id: team/c$((number + 1))"
  done
  yaml_tool team/c12 <<<"$runtime"
}

before_RYE0313() {
  yaml_tool team/lost <<<'tool_type: tool
executor_id: team/nowhere'
}

before_RYE0314() {
  yaml_tool team/ends <<<'tool_type: tool
executor_id: null'
}

before_RYE0315() {
  yaml_tool team/nocmd <<<'tool_type: tool
executor_id: rye/core/primitives/subprocess'
  yaml_tool team/ld <<<'tool_type: tool
executor_id: rye/core/primitives/subprocess
env_config: {env: {LD_PRELOAD: x.so}}
config: {command: /bin/true}'
  yaml_tool team/odd <<<'tool_type: tool
executor_id: rye/core/primitives/subprocess
sandbox: {netwrok: false}
config: {command: /bin/true}'
}

before_RYE0506() {
  mkdir ~/pins && cd ~/pins && rye init -q >/dev/null
  rm -r .ai/tools/examples
  for name in deploy build notify; do
    python_tool team/$name <<<'def execute(params, project_path):
    return {}'
  done
  rye -q lock update team/deploy --scope project >/dev/null
  rye -q lock update team/build --scope project >/dev/null
}

before_RYE0801() {
  cd ~/shop
  python_tool team/fail <<<'def execute(params, project_path):
    print("looking for the file")
    return open("no-such-file").read()'
}

before_RYE0802() {
  yaml_tool team/slow <<<'tool_type: tool
executor_id: rye/core/primitives/subprocess
config: {command: /bin/sleep, args: ["60"], timeout: 1}'
}

before_RYE0804() {
  python_tool team/many <<<'import subprocess

SANDBOX = {"limits": {"processes": 8}}


def execute(params, project_path):
    running = [subprocess.Popen(["sleep", "5"]) for _ in range(20)]
    return [one.wait() for one in running]'
}

before_RYE0807() {
  yaml_tool team/notthere <<<'tool_type: tool
executor_id: rye/core/primitives/subprocess
config: {command: no-such-program}'
  yaml_tool team/nine <<<'tool_type: tool
executor_id: rye/core/primitives/subprocess
env_config: {interpreter: {type: system_binary, binary: python9, var: TEAM_PYTHON}}
config: {command: "${TEAM_PYTHON}"}'
}

before_RYE0809() {
  mkdir -p node_modules/.bin && cp /bin/true node_modules/.bin/lint
  yaml_tool team/lint <<<'tool_type: tool
executor_id: rye/core/primitives/subprocess
config: {command: "{project_path}/node_modules/.bin/lint"}'
}

before_RYE1131() {
  rye -q sign tool examples/hello
  rye -q run examples/greet name=Ada >/dev/null
  bind 0a1b2c3d4e5f "$(rye thread list --json | grep -o 'thread-[0-9a-f]\{12\}' | head -1 | cut -d- -f2)"
}

# version: 0.1.0
# tool_type: shell
# executor_id: rye/core/runtimes/bash/bash
# category: {category}
# name: {name}
# description: Greet by name (change me: one sentence that says what it does)
# config_schema: {"type": "object", "additionalProperties": false,
#   "properties": {"name": {"type": "string", "default": "world", "description": "Whom to greet"}}}
#
# Parameters are in RYE_PARAM_…; the last line of JSON that is printed is the result.

name=${RYE_PARAM_NAME//\\/\\\\}
name=${name//\"/\\\"}
printf '{"greeting": "Hello, %s!"}\n' "$name"

"""The items and settings of the project that workers are given."""

DIRECTIVE = """# {name}

```xml
<directive name="{name}" version="1.0.0"{more}>
<metadata>
<description>Work for a worker</description>
<category>team</category>
<author>check</author>
{permissions}
{model}
{limits}
</metadata>
<inputs><input name="label" type="string" required="true">Who it is</input></inputs>
</directive>
```

I am the {name} {{input:label}}.
"""
PERMISSIONS = """<permissions><execute><tool>team.mark</tool><tool>rye.agent.threads.*</tool></execute>
<acknowledge risk="elevated">a script</acknowledge></permissions>"""

TOOL = """# version: 1.0.0
# tool_type: shell
# executor_id: {executor}
# category: team
# name: {name}
# description: Makes a mark
# config_schema: {{"type": "object", "required": ["text"], "properties": {{"text": {{"type": "string"}}}}}}

echo "begun $RYE_PARAM_TEXT" > /dev/tcp/127.0.0.1/{port} || exit 1
sleep 0.03
echo "ended $RYE_PARAM_TEXT" > /dev/tcp/127.0.0.1/{port} || exit 1
echo '{{"marked": true}}'
"""
LIMITS = '<limits turns="200" tokens="100000000" spend="{spend}" spawns="1000" duration_seconds="100000"/>'
BASH = "rye/core/runtimes/bash/bash"

PROVIDER = """version: "1.0.0"
tool_type: provider
executor_id: null
category: rye/agent/providers/{name}
name: {name}
description: A server of this check
protocol: openai
url: {url}/v1/chat/completions
auth: {{type: bearer, variable: FAKE_MODEL_KEY}}
tier_mapping: {{general: fake-1}}
max_output_tokens: 10
pricing:
  fake-1: {{input: 0.01, output: 100.00}}
  fake-free: {{input: 0, output: 0}}
"""

RESILIENCE = """version: "1.0.0"
category: agent
name: resilience
coordination:
  max_wait_thread_ids: 1000
concurrency:
  max_concurrent_children: 1000
  max_total_threads: 2000
  queue_timeout_seconds: 3000
{more}"""

CONFIG = """version: "1.0.0"
category: ""
description: The settings of this check
threads:
  store: team
  stores:
    team:
      url: "{url}"
      schema: team
      users: [{users}]
      workers: [{workers}]
{store}"""


def directive(name, spend="1000", model="", provider="fake", more="", permissions=PERMISSIONS, limits=LIMITS):
    model = f'<model provider="{provider}" id="{model}"/>' if model else ""
    return DIRECTIVE.format(name=name, limits=limits.format(spend=spend), model=model, more=more, permissions=permissions)

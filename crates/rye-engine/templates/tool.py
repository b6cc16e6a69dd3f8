"""Describe here what {name} does; agents read this."""

__version__ = "0.1.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "{category}"
__tool_name__ = "{name}"
__tool_description__ = "Greet by name (change me: one sentence that says what it does)"

CONFIG_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "world", "description": "Whom to greet"},
    },
    "additionalProperties": False,
}


def execute(params, project_path):
    return {"greeting": f"Hello, {params['name']}!"}

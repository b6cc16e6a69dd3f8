"""Say hello: the smallest tool there is."""

__version__ = "1.0.0"
__tool_type__ = "python"
__tool_name__ = "hello"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "examples"
__tool_description__ = "Say hello to a person by name"

CONFIG_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "world", "description": "Whom to greet"},
    },
    "additionalProperties": False,
}


def execute(params: dict, project_path: str) -> dict:
    return {"greeting": f"Hello, {params.get('name', 'world')}!"}

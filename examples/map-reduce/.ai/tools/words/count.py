"""Counts the words of a file."""

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "words"
__tool_description__ = "Counts the words of a file of the project"

CONFIG_SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "The file, below the project"}},
    "required": ["path"],
}


def execute(params, project_path):
    with open(f"{project_path}/{params['path']}") as file:
        return {"words": len(file.read().split())}

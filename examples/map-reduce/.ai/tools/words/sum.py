"""Adds up what several threads have counted."""

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "words"
__tool_description__ = "Adds up the `words` that threads returned"

CONFIG_SCHEMA = {
    "type": "object",
    "properties": {"results": {"type": "object", "description": "The results of wait_threads"}},
    "required": ["results"],
}


def execute(params, project_path):
    counts = [result["outputs"]["words"] for result in params["results"].values()]
    return {"total": sum(counts), "parts": len(counts)}

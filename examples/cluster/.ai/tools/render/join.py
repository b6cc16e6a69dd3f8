"""Puts the scenes of several threads together."""

__tool_name__ = "join"
__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "render"
__tool_description__ = "Puts scenes together that threads returned"

CONFIG_SCHEMA = {
    "type": "object",
    "properties": {"results": {"type": "object", "description": "The results of wait_threads"}},
    "required": ["results"],
}


def execute(params, project_path):
    frames = [result["outputs"]["frames"] for result in params["results"].values()]
    return {"scenes": len(frames), "frames": sum(frames)}

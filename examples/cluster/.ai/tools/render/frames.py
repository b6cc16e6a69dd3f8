"""Renders a part of a scene: a few seconds of work."""

import time

__tool_name__ = "frames"
__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "render"
__tool_description__ = "Renders a part of a scene"
# A worker that takes this over from one that ended may render the part again.
__idempotent__ = True

CONFIG_SCHEMA = {
    "type": "object",
    "properties": {
        "scene": {"type": "integer", "description": "The number of the scene"},
        "part": {"type": "integer", "description": "The number of the part, from 1"},
    },
    "required": ["scene", "part"],
}


def execute(params, project_path):
    time.sleep(3)
    return {"frames": 24 * params["part"]}

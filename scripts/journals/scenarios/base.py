"""What scenarios are made of. Each sets a workspace up, runs a thread, and says how it must end."""
import re

SCENARIOS = {}
PARAMS = {}

SPAWN = "rye_agent_threads_thread_directive"
ORCHESTRATE = "rye_agent_threads_orchestrator"
APPROVAL = "rye_agent_threads_human_approval"


def scenario(protocol, **workspace):
    """Registers a scenario; `workspace` are settings of its provider."""
    def register(function):
        SCENARIOS[function.__name__] = function
        PARAMS[function.__name__] = {"protocol": protocol, **workspace}
        return function
    return register


def thread_ids(request):
    """The ids that tools told the model, in the request of a parent."""
    return list(dict.fromkeys(re.findall(r"thread-[0-9a-f]{12}", request)))


def child_of(directive="team/work", **more):
    return (SPAWN, {"directive_name": directive, **more})

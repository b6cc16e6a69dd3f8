"""The threads that are recorded."""
from journals.scenarios import answers, crashes, hooks, people, trees
from journals.scenarios.base import APPROVAL, ORCHESTRATE, PARAMS, SCENARIOS, child_of, thread_ids

__all__ = ["APPROVAL", "ORCHESTRATE", "PARAMS", "SCENARIOS", "answers", "child_of", "crashes", "hooks", "people",
           "thread_ids", "trees"]

"""LangGraph's agent with its PostgreSQL checkpointer: what `bench-workers --peer` runs beside rye's workers.

    peer_langgraph.py DATABASE MODEL_URL THREADS

It makes the same calls: 4 of the model and 3 of a tool for each thread, all threads at once. It prints the seconds they took, and its own
processor time in seconds.
"""
import asyncio
import sys
import time

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

try:
    from langchain.agents import create_agent
except ImportError:
    from langgraph.prebuilt import create_react_agent as create_agent

CONNECTIONS = 20


@tool
def add(a: int = 0, b: int = 0) -> int:
    """Adds two numbers."""
    return a + b


async def run(database, model_url, threads):
    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(database, max_size=CONNECTIONS, open=False, kwargs=settings) as pool:
        checkpointer = AsyncPostgresSaver(pool)
        await checkpointer.setup()
        model = ChatOpenAI(model="fake", base_url=f"{model_url}/v1", api_key="not-a-real-key", max_retries=0)
        agent = create_agent(model, [add], checkpointer=checkpointer)

        async def one(name):
            result = await agent.ainvoke({"messages": [("user", "hi")]}, {"configurable": {"thread_id": name}})
            assert result["messages"][-1].content == "done", result

        await one("warm")
        began, used = time.monotonic(), time.process_time()
        await asyncio.gather(*(one(str(number)) for number in range(threads)))
        print(time.monotonic() - began, time.process_time() - used)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))

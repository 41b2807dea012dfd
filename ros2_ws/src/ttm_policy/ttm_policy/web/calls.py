"""Calls of ROS services from the server's thread, while the node spins in another one."""

from __future__ import annotations

import asyncio
from typing import Any

from rclpy.client import Client

from ttm.policy.errors import UserError, printable

ANSWER_S = 5.0


async def call(client: Client, request: Any, who: str) -> Any:
    """Return the answer of a service.

    who: the node that has it. Raises `UserError` if it is not there, or gives no answer.
    """
    if not client.service_is_ready():
        raise UserError(f"{who} is not there; is it running?")
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Any] = loop.create_future()

    def tell(answer: Any) -> None:
        if not answered.done():
            answered.set_result(answer)

    future = client.call_async(request)
    future.add_done_callback(lambda done: loop.call_soon_threadsafe(tell, done.result()))
    try:
        return await asyncio.wait_for(answered, ANSWER_S)
    except asyncio.TimeoutError as error:
        client.remove_pending_request(future)
        raise UserError(f"{who} gives no answer") from error


async def ask(client: Client, request: Any, who: str) -> str:
    """Return what a service says. Raises `UserError` if it refuses, too."""
    answer = await call(client, request, who)
    if not answer.success:
        raise UserError(printable(answer.message))
    return printable(answer.message)

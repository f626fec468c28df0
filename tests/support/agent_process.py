"""A stand-in for an agent: commands on stdin go to a supervisor, its events go to stdout.

Workers inherit the standard output. Its end of file therefore says that everything is gone.
"""

import asyncio
import os
import signal
import sys

from drumbeat.agent.model.messages import Command, SupervisorEvent
from drumbeat.agent.workers.supervisor.client import SupervisorClient
from drumbeat.agent.workers.supervisor.process_tree import become_subreaper
from drumbeat.agent.workers.supervisor.protocol import Decoder, encode


def say(line: bytes) -> None:
    """Write one line at once."""
    os.write(1, line)


async def serve() -> None:
    """Serve until stdin ends; a supervisor that dies is replaced."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, say, b"interrupted\n")
    deaths: asyncio.Queue[int] = asyncio.Queue()

    def on_event(event: SupervisorEvent) -> None:
        say(encode(event))

    def on_mistake(error: BaseException) -> None:
        raise error

    client = SupervisorClient(on_event=on_event, on_death=deaths.put_nowait, on_mistake=on_mistake)

    async def restart() -> None:
        while True:
            returncode = await deaths.get()
            say(f"death {returncode}\n".encode())
            await client.start()
            say(f"supervisor {client.pid}\n".encode())

    await client.start()
    say(f"supervisor {client.pid}\n".encode())
    restarter = asyncio.create_task(restart())
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    commands: Decoder[Command] = Decoder(Command)
    while line := await reader.readline():
        for command in commands.feed(line):
            client.send(command)
    restarter.cancel()
    await client.close()
    transport.close()


if __name__ == "__main__":
    become_subreaper()
    asyncio.run(serve())

"""Shell. The process of a front end, which only a coordinator starts."""

import sys

if __name__ == "__main__":
    from drumbeat.command.loading import load_grpc_quietly, load_structlog_alone

    load_grpc_quietly()
    load_structlog_alone()
    from drumbeat.coordinator.frontends.process import run

    run(int(sys.argv[1]))

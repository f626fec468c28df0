"""Shell. Types of the options of ``agent join`` that say how large a job is."""

import click

from agent.runtime import preflight
from agent.settings.config import count_workers, parse_nnodes
from agent.workers.devices.visible import VISIBLE_DEVICES
from drumbeat import options


class NnodesType(options.ParamType):
    """How many agents a round has, as (minimum, maximum)."""

    name = "min[:max]"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Read "N" or "MIN:MAX"."""
        try:
            return parse_nnodes(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class WorkersType(options.ParamType):
    """How many workers this host has, a word for its devices resolved."""

    name = "workers"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a number, "auto", "gpu" or "cpu"."""
        # To ask the driver takes up to seconds; a number needs no GPUs.
        gpus = 0
        if value.strip().lower() in {"auto", "gpu"}:
            gpus = preflight.count_gpus(preflight.inherited_environment().get(VISIBLE_DEVICES))
        try:
            return count_workers(value, cores=preflight.usable_cores(), gpus=gpus)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)

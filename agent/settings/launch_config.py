"""Pure. What a program is told that launches a job: the settings of the job as one value."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from drumbeat.agent.errors import InvalidConfiguration
from drumbeat.agent.settings import kinds
from drumbeat.agent.settings.config import AgentConfig, JobSettings, Program
from drumbeat.command import settings
from drumbeat.text.violation import Violation

_OF_JOB = {
    name: {"setting": setting} for name, setting in settings.settings_of(JobSettings).items()
}


@dataclass(frozen=True)
class LaunchConfig(JobSettings):
    """One job that a program launches, as this host takes part in it.

    What ``torch.distributed.launcher.api.LaunchConfig`` (2.13.0) has too has its name and place;
    what that says of a rendezvous is left out: ``coordinator`` names where it is decided. Raises
    ``InvalidConfiguration``, which names every field that is impossible.
    """

    min_nodes: int = field(metadata=_OF_JOB["min_nodes"])
    max_nodes: int = field(metadata=_OF_JOB["max_nodes"])
    nproc_per_node: int = field(metadata=_OF_JOB["nproc_per_node"])
    # As for ``agent join``, but torch's default for programs.
    max_restarts: int = field(default=3, kw_only=True, metadata=_OF_JOB["max_restarts"])
    monitor_interval: float = field(default=0.1, kw_only=True)  # no meaning: ends are told
    start_method: str = field(default="spawn", kw_only=True)  # allowed is nothing else

    def __post_init__(self) -> None:
        values, violations = settings.read_settings(self)
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if violations := violations or self.validate():
            raise InvalidConfiguration(tuple(violations))

    def validate(self) -> list[Violation]:
        """All rules that the settings break, none if they are sound."""
        violations = super().validate()
        if self.start_method != "spawn":
            allowed = '"spawn", for every worker is a new interpreter'
            violations.append(Violation("start_method", self.start_method, allowed))
        if self.max_nodes > 1 and not self.is_standalone and not self.run_id:
            allowed = "a name that all hosts of this job give, and those of no other"
            violations.append(Violation("run_id", self.run_id, allowed))
        if self.logs_specs is not None and not isinstance(self.logs_specs, str):
            allowed = "nothing beside logs_specs, which decide on the files"
            for name in ("log_dir", "redirects", "tee", "local_ranks_filter"):
                if (value := getattr(self, name)) not in (None, kinds.NOWHERE):
                    violations.append(Violation(name, value, allowed))
        return violations

    def agent_config(self, program: Program, **more: Any) -> AgentConfig:
        """Return what this host's agent is told: the job as above, with what else is given."""
        shared = {field.name: getattr(self, field.name) for field in fields(JobSettings)}
        return AgentConfig(**shared | more, program=program)


def value_from_text(name: str, text: str, where: str) -> Any:
    """Return the value of a setting. Raises ``ValueError``, which says ``where`` it was given."""
    try:
        return settings.settings_of(LaunchConfig)[name].kind.parse(text)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None

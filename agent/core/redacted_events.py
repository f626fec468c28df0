"""Pure. Removes secrets from the events of workers, before anything uses them."""

from msgspec.structs import replace

from drumbeat.access.redactor import Redactor
from drumbeat.agent.core import events as ev
from drumbeat.agent.model.hang import Hang


def redacted(event: ev.Event, redact: Redactor) -> ev.Event:
    """Return what workers did without secrets in what they say; other events as they are."""
    match event:
        case ev.WorkerExited(error=error, hang=hang, preflight=named):
            return replace(
                event,
                error=error
                and replace(
                    error, message=redact(error.message), traceback=redact(error.traceback)
                ),
                preflight=tuple(
                    replace(finding, reason=redact(finding.reason)) for finding in named
                ),
                hang=hang and _without_secrets(hang, redact),
                explanation=redact(event.explanation),
                stderr_tail=redact(event.stderr_tail, is_start_cut=True),
            )
        case ev.WorkerStartFailed():
            return replace(event, message=redact(event.message))
        case ev.WorkerStep(interruption=why) if why is not None:
            why = replace(why, message=redact(why.message), traceback=redact(why.traceback))
            return replace(event, interruption=why)
        case ev.LimitExpired():
            return replace(event, hang=_without_secrets(event.hang, redact))
        case ev.SupervisorDied():
            return replace(event, explanation=redact(event.explanation))
    return event


def _without_secrets(hang: Hang, redact: Redactor) -> Hang:
    seen, standing = hang.evidence, hang.standing
    return replace(
        hang,
        scope=redact(hang.scope),
        standing=replace(standing, scope=redact(standing.scope)),
        evidence=replace(seen, stacks=redact(seen.stacks), notes=redact(seen.notes)),
    )

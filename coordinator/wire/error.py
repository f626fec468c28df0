"""Shell. Errors as details that a client can read without parsing prose."""

from __future__ import annotations

from coordinator.errors import CoordinatorError, InvalidRequest, LimitReached, SpecMismatch
from drumbeat.v1 import common_pb2
from drumbeat.violation import show_value


def error_detail(error: CoordinatorError) -> common_pb2.ErrorDetail:
    """Write an error."""
    detail = common_pb2.ErrorDetail(
        refusal=common_pb2.Refusal.Value(f"REFUSAL_{error.refusal}"),
        is_retryable=error.is_retryable,
    )
    match error:
        case InvalidRequest():
            detail.violation.field, detail.violation.allowed = error.field, error.allowed
            detail.violation.value = show_value(error.value)
        case SpecMismatch():
            for each in error.differences:
                detail.differences.add(
                    field=each.field, run=show_value(each.ours), agent=show_value(each.theirs)
                )
        case LimitReached():
            detail.limit.name, detail.limit.value = error.args
    return detail
